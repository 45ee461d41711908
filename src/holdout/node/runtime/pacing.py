"""How long to wait for others, learned from the last rounds, within the operator's bounds.

Waits end as soon as everybody expected has been heard. This is for when somebody stays silent: then
waiting twice as long as the slowest of those that do speak is enough. None of it affects safety.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from holdout.agreement.params import Timing

ROUNDS_REMEMBERED = 8
FACTOR = 2.0


@dataclass(slots=True)
class _Moments:
    """When things came in one round, in microseconds from its start."""

    began: int
    proposed: dict[int, int] = field(default_factory=dict)
    """A gradient in hand, by proposer."""
    voted: dict[int, int] = field(default_factory=dict)
    judged: int | None = None
    """When the own T_P was."""


class Pacing:
    """Watches rounds; gives the waits of the next one."""

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
        """The own ballot is being made."""
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
        """The waits of the next round, by all that is known now."""
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
        """Twice the time of the slowest worker that speaks in most rounds; None: unknown."""
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
