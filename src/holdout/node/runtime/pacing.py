"""How long to wait for others, and the timers that end a wait. None of it affects safety.

A wait ends as soon as everybody expected has been heard. If somebody stays silent, it ends after
twice the time that the slowest of the others took in the last rounds, within the operator's bounds.
"""

import heapq
import itertools
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from holdout.agreement.events import SetTimer, Timer
from holdout.agreement.params import Timing

ROUNDS_REMEMBERED = 8
FACTOR = 2.0


def now() -> int:
    """Microseconds of a monotonic clock."""
    return time.monotonic_ns() // 1_000


class Timers:
    """The player's timers, by when they are due; equal ones in the order in which they were set."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Timer]] = []
        self._order = itertools.count()

    def set(self, action: SetTimer) -> None:
        """Set a timer."""
        heapq.heappush(self._heap, (action.at, next(self._order), action.timer))

    def due(self) -> Timer | None:
        """Take out the next timer, if its time has come."""
        if self._heap and self._heap[0][0] <= now():
            return heapq.heappop(self._heap)[2]
        return None

    def seconds(self) -> float | None:
        """How long until the next timer is due; None: there is none."""
        return max(0.0, (self._heap[0][0] - now()) / 1e6) if self._heap else None

    def forget(self, before_round: int) -> None:
        """Drop the timers of earlier rounds."""
        self._heap = [item for item in self._heap if item[2].round >= before_round]
        heapq.heapify(self._heap)


@dataclass(slots=True)
class _Moments:
    """When things happened in one round, in microseconds after it began."""

    began: int
    """When the round began, on the clock of `now`."""
    proposed: dict[int, int] = field(default_factory=dict)
    """When each proposer's gradient was in hand."""
    voted: dict[int, int] = field(default_factory=dict)
    """How long after `judged` each voter's ballot was in hand."""
    judged: int | None = None
    """When this node began to make its own ballot (T_P)."""


class Pacing:
    """Measures the last rounds, and sets the waits of the next one by them."""

    def __init__(self, lowest: Timing, highest: Timing) -> None:
        self._lowest = lowest
        self._highest = highest
        self._rounds: deque[_Moments] = deque(maxlen=ROUNDS_REMEMBERED)
        self._current: _Moments | None = None

    def began(self, now: int) -> None:
        """A round begins."""
        if self._current is not None and self._current.judged is not None:
            self._rounds.append(self._current)
        self._current = _Moments(now)

    def proposed(self, worker: int, now: int) -> None:
        """A worker's gradient is in hand."""
        if self._current is not None:
            self._current.proposed.setdefault(worker, now - self._current.began)

    def judging(self, now: int) -> None:
        """This node begins to make its own ballot."""
        if self._current is not None and self._current.judged is None:
            self._current.judged = now - self._current.began

    def voted(self, worker: int, now: int) -> None:
        """A worker's ballot is in hand."""
        if self._current is not None and self._current.judged is not None:
            passed = now - self._current.began - self._current.judged
            self._current.voted.setdefault(worker, max(0, passed))

    def left(self, worker: int) -> None:
        """A worker has said goodbye: how slow it was no longer matters."""
        for moments in (*self._rounds, *(() if self._current is None else (self._current,))):
            moments.proposed.pop(worker, None)
            moments.voted.pop(worker, None)

    def timing(self) -> Timing:
        """The waits of the next round, by what is known now."""
        rounds = list(self._rounds)
        if self._current is not None and self._current.judged is not None:
            rounds.append(self._current)
        propose = self._wait([moments.proposed for moments in rounds])
        vote = self._wait([moments.voted for moments in rounds])
        low, high = self._lowest, self._highest
        return replace(
            high,
            propose=high.propose if propose is None else _clamp(propose, low.propose, high.propose),
            vote=high.vote if vote is None else _clamp(vote, low.vote, high.vote),
        )

    def _wait(self, rounds: list[Mapping[int, int]]) -> int | None:
        """Twice the time of the slowest worker heard in most rounds; None: nobody was heard."""
        known = [moments for moments in rounds if moments]
        if not known:
            return None
        workers = sorted({worker for moments in known for worker in moments})
        times = [
            max(moments[worker] for moments in known if worker in moments)
            for worker in workers
            if 2 * sum(worker in moments for moments in known) > len(known)
        ]
        return int(FACTOR * max(times)) if times else None


def _clamp(value: int, low: int, high: int) -> int:
    return max(low, min(value, high))
