"""Who is told how a run goes: the caller's `watch`.

A watcher has the methods of `RunWatcher`, each of them optional; a plain function stands for one
that has `round` alone. What a caller's watcher raises ends the run, as Ctrl-C does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from holdout.errors import UserError

if TYPE_CHECKING:
    # Only for their names: the runner is what calls all this.
    from holdout.config import Config
    from holdout.experiments.runner import Progress, Result

METHODS = ("start", "round", "finish")


class RunWatcher(Protocol):
    """Somebody who follows a run."""

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


@dataclass(frozen=True, slots=True)
class Watchers:
    """All who are told, in this order."""

    each: Sequence[RunWatcher]

    def follow(self, config: Config, work: Callable[[], Result]) -> Result:
        """Do the work; all are told that it starts and, whatever comes of it, that it has ended."""
        result = None
        try:
            for watcher in self.each:
                watcher.start(config)
            result = work()
        finally:
            for watcher in self.each:
                watcher.finish(result)
        return result

    def round(self, progress: Progress) -> None:
        """Tell all of a round."""
        for watcher in self.each:
            watcher.round(progress)
