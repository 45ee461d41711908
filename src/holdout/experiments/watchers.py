"""Who is told how a run goes: the caller's `watch`, and the trackers that the config names.

A watcher has the methods of `RunWatcher`, each of them optional; a plain function stands for one
that has `round` alone. What a caller's watcher raises ends the run, as Ctrl-C does. A tracker that
fails must not: it is reported once, its failures are counted, and the run goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from holdout.errors import UserError

if TYPE_CHECKING:
    # Only for their names: the runner is what calls all this.
    from holdout.config import Config
    from holdout.experiments.runner import Progress, Result

METHODS = ("start", "round", "finish")
FAILURES_MAX = 3
"""After so many failures in a row a tracker is not asked again."""


class RunWatcher(Protocol):
    """Somebody who follows a run; any of the methods may be left out.

    >>> import holdout
    >>> class Ends:
    ...     def finish(self, result):
    ...         print("stopped" if result is None else f"{len(result.rounds)} rounds")
    >>> x, y = [[-3.0], [3.0]] * 20, [0, 1] * 20
    >>> setting = {
    ...     "experiment": {"rules": ["mean"], "rounds": 2, "threads": 1},
    ...     "data": {"samples_per_worker": 10},
    ...     "federation": {"workers": 9, "byzantine": 0, "proposers": 4, "voters": 4},
    ...     "training": {"batch_size": 5}, "vote": {"samples": 10}, "attack": {"name": "none"},
    ... }
    >>> _ = holdout.run(setting, plugins=holdout.Plugins(data=(x, y, x, y)), watch=Ends())
    2 rounds
    """

    def start(self, config: Config) -> None:
        """Called once, before the first round."""

    def round(self, progress: Progress) -> None:
        """Called after each round."""

    def finish(self, result: Result | None) -> None:
        """Called once, at the end; with None if the run stopped early."""


class CallersWatcher:
    """What the caller passed as `watch`: an object, a function or nothing."""

    def __init__(self, watch: object) -> None:
        methods = {name: getattr(watch, name, None) for name in METHODS}
        if not any(map(callable, methods.values())):
            if watch is not None and not callable(watch):
                raise UserError(
                    "watch must be a function of a Progress, or have some of the methods "
                    f"{', '.join(METHODS)}; got {type(watch).__name__}"
                )
            methods = {"round": watch}
        self._methods: dict[str, Any] = {k: v for k, v in methods.items() if callable(v)}

    def start(self, config: Config) -> None:
        """Tell the caller."""
        self._call("start", config)

    def round(self, progress: Progress) -> None:
        """Tell the caller."""
        self._call("round", progress)

    def finish(self, result: Result | None) -> None:
        """Tell the caller."""
        self._call("finish", result)

    def _call(self, name: str, value: object) -> None:
        if name in self._methods:
            self._methods[name](value)


@dataclass(slots=True)
class GuardedTracker:
    """A tracker whose failures do not end the run."""

    name: str
    inner: RunWatcher
    tell: Callable[[str], None]
    """Takes a note for the user."""
    missed: int = 0
    """Rounds that the tracker did not take."""
    in_a_row: int = 0
    first_failure: str = ""

    def start(self, config: Config) -> None:
        """Start the tracker; nothing is lost yet, so a failure is the user's to put right."""
        try:
            self.inner.start(config)
        except Exception as error:
            raise UserError(f"track.{self.name} cannot start: {_words(error)}") from error

    def round(self, progress: Progress) -> None:
        """Tell the tracker, unless it has failed too often."""
        if self.in_a_row < FAILURES_MAX:
            record = progress.record
            where = f"round {record.round} of {record.rule}, seed {record.seed}"
            if self._try(where, lambda: self.inner.round(progress)):
                self.in_a_row = 0
                return
            self.in_a_row += 1
        self.missed += 1

    def finish(self, result: Result | None) -> None:
        """End the tracker, and count what it missed."""
        self._try("the end", lambda: self.inner.finish(result))
        if self.missed:
            rounds = f"{self.missed} round{'s' * (self.missed != 1)}"
            self.tell(f"track.{self.name} missed {rounds}; {self.first_failure}")

    def _try(self, where: str, action: Callable[[], None]) -> bool:
        try:
            action()
        except Exception as error:  # noqa: BLE001  # Whatever it is, the run matters more.
            if not self.first_failure:
                self.first_failure = f"first failure: {where}, {_words(error)}"
                self.tell(f"track.{self.name} failed in {where}; the run goes on: {_words(error)}")
            return False
        return True


def _words(error: Exception) -> str:
    """An error in one line."""
    said = " ".join(str(error).split())
    return f"{type(error).__name__}: {said[:300]}" if said else type(error).__name__


@dataclass(frozen=True, slots=True)
class Watchers:
    """All who are told, in this order."""

    each: Sequence[RunWatcher]

    @contextmanager
    def following(self, config: Config) -> Iterator[list[Result]]:
        """Tell all that the run starts and, whatever comes of it, that it has ended.

        Gives a list into which the result is put, if there is one.
        """
        ended: list[Result] = []
        begun: list[RunWatcher] = []
        try:
            for watcher in self.each:
                begun.append(watcher)
                watcher.start(config)
            yield ended
        finally:
            for watcher in begun:
                watcher.finish(ended[0] if ended else None)

    def round(self, progress: Progress) -> None:
        """Tell all of a round."""
        for watcher in self.each:
            watcher.round(progress)
