"""The node's clock, and the timers that end a wait; how long to wait is the player's part."""

import heapq
import itertools
import time

from holdout.agreement.events import SetTimer, Timer


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
