"""How long to wait for others, and for whom. None of it affects safety.

A wait is over when everybody worth waiting for has been heard. If somebody is missing, it is over
once all but B of those expected have been heard and some grace has passed: as long again as the
round took until then (`proposals_end`), or a quarter of that (`ballots_end`); for leads, as long
as the period took (`leads_end`). No B members can move that moment: it depends on the slowest
honest member at most. It also needs no memory, so a worker that was restarted waits as all others.

Where the draw is secret nobody knows how many to expect. There a wait follows the last rounds: it
is twice the time until all had come but as many as may be liars, and at most twice the wait before.

Whoever was missing at the end of a wait for gradients is not waited for in the next rounds, twice
as many each time. For ballots and leads there is no such rule. A worker that did not wait for
somebody whom others waited for would lead with a block that they refuse, or vote for another one.
"""

import math
import statistics
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from holdout.agreement.messages import Kind
from holdout.agreement.params import Timing

PATIENCE = 3
"""Whoever was silent for this many rounds is not waited for."""
ROUNDS_REMEMBERED = 8
EXCUSED_ROUNDS_MAX = 64
FIRST_WAIT_DELAYS = 8
"""Where the draw is secret, the first wait, in delays."""


def proposals_end(began: int, now: int, timing: Timing) -> int:
    """T_P, if all but B gradients are in hand now: after as much time again.

    Example:
        >>> proposals_end(1_000, 401_000, Timing(propose_min=0))
        801000
    """
    return max(now + (now - began), began + timing.propose_min)


def ballots_end(began: int, judged: int, now: int, timing: Timing) -> tuple[int, int]:
    """T_B and T_A, if all but B ballots are held now.

    All workers hold the same ballots a message's delay apart and began the round about as far
    apart, so they agree on both but for that; the gap between the two covers it.

    Example:
        >>> ballots_end(0, 300_000, 400_000, Timing(vote_min=0))
        (500000, 700000)
    """
    passed = now - began
    end = max(now + passed // 4, judged + timing.vote_min)
    return end, end + min(2 * timing.delay, passed // 2)


def leads_end(began: int, now: int, timing: Timing) -> int:
    """When the soft vote need not wait for more leads, if all but B have led the period by now.

    Example:
        >>> leads_end(0, 50_000, Timing(delay=500_000))
        300000
    """
    return now + max(now - began, timing.delay // 2)


@dataclass(frozen=True, slots=True)
class MemberWaits:
    """How long others wait for one member: medians of the last rounds, in microseconds.

    Gradients and ballots are timed from the start of the round, leads and votes from the start of
    the round's first period. None: not heard in these rounds.
    """

    gradient: int | None
    ballot: int | None
    lead: int | None
    vote: int | None
    missed: int
    """How many waits ended without it."""
    excused_until: int
    """The first round in which it is waited for again; 0: it is waited for now."""


@dataclass(slots=True)
class _Excuse:
    """A member that was missing at the end of a wait."""

    strikes: int = 0
    until: int = 0
    """The first round in which it is waited for again."""


class Waits:
    """When each worker was heard in each role, and hence who is worth waiting for, and how long.

    This decides how long a worker waits and nothing else: what comes in time counts, whoever sent
    it.

    Attributes:
        away: Members that cannot be heard, as far as the driver knows; up to B are not waited for.
    """

    def __init__(self, workers: int, byzantine: int, timing: Timing, first_round: int) -> None:
        self._workers = workers
        self._byzantine = byzantine
        self._timing = timing
        self._first = first_round
        self._heard: dict[tuple[Kind, int], int] = {}
        self._began: dict[int, int] = {}
        self._times: dict[tuple[Kind, int], deque[int]] = {}
        self._excuses: dict[tuple[Kind, int], _Excuse] = {}
        self._missed: Counter[int] = Counter()
        self._rounds: dict[Kind, deque[dict[int, int]]] = {
            kind: deque(maxlen=ROUNDS_REMEMBERED) for kind in (Kind.UPDATE, Kind.BALLOT)
        }
        self._last: dict[Kind, int] = {}
        self._period_began: dict[int, int] = {}
        self._judged = 0
        self.away: frozenset[int] = frozenset()

    # -- measuring ------------------------------------------------------------------------------

    def begin(self, round_number: int, now: int) -> None:
        """A round begins."""
        self._began[round_number] = self._judged = now
        for kept in (self._began, self._period_began):
            for old in [number for number in kept if number < round_number - 1]:
                del kept[old]
        for kind in self._rounds:
            self._rounds[kind].append({})

    def judging(self, now: int) -> None:
        """This worker ranks the gradients in hand: from now on it waits for ballots."""
        self._judged = now

    def begin_period(self, round_number: int, now: int) -> None:
        """The first period of a round begins."""
        self._period_began.setdefault(round_number, now)

    def began(self, round_number: int) -> int:
        """When the round began."""
        return self._began[round_number]

    def period_began(self, round_number: int, now: int) -> int:
        """When the first period of the round began; now, if that is not known."""
        return self._period_began.get(round_number, now)

    def note(self, kind: Kind, worker: int, round_number: int, now: int) -> None:
        """Note that the worker was heard in this role of this round, for the first time or not."""
        known = self._heard.get((kind, worker), 0)
        if round_number <= known:
            return
        self._heard[kind, worker] = round_number
        marks = self._began if kind in {Kind.UPDATE, Kind.BALLOT} else self._period_began
        if round_number not in marks:
            return
        passed = max(0, now - marks[round_number])
        self._times.setdefault((kind, worker), deque(maxlen=ROUNDS_REMEMBERED)).append(passed)
        if kind in self._rounds and self._rounds[kind] and round_number == max(self._began):
            if kind is Kind.BALLOT:
                passed = max(0, now - self._judged)
            self._rounds[kind][-1][worker] = passed

    # -- whom to wait for -----------------------------------------------------------------------

    def present(self, kind: Kind, workers: Iterable[int], round_number: int) -> list[int]:
        """Those of these workers that should be waited for in this round."""
        since = round_number - PATIENCE
        expected = [
            worker
            for worker in workers
            if since < self._first or self._heard.get((kind, worker), 0) >= since
        ]
        if not self._excuses and not self.away:
            return expected
        # Never more than B, or a bad moment of the network would end all waits at once.
        excused = sorted(
            (worker for worker in expected if self._excused(kind, worker, round_number)),
            key=lambda worker: (-self._excused(kind, worker, round_number), worker),
        )[: self._byzantine]
        return [worker for worker in expected if worker not in excused]

    def _excused(self, kind: Kind, worker: int, round_number: int) -> int:
        """For how many more rounds the worker is not waited for; 0: it is waited for."""
        if kind is not Kind.UPDATE:
            return 0
        if worker in self.away:
            return EXCUSED_ROUNDS_MAX
        excuse = self._excuses.get((kind, worker))
        return 0 if excuse is None else max(0, excuse.until - round_number)

    def ended(
        self, kind: Kind, expected: Sequence[int], missing: Sequence[int], round_number: int
    ) -> None:
        """A wait of this round is over; some of those who were waited for are missing."""
        self._missed.update(missing)
        if kind is not Kind.UPDATE:
            return
        for worker in expected:
            if worker not in missing and (kind, worker) not in self._excuses:
                continue
            excuse = self._excuses.setdefault((kind, worker), _Excuse())
            if worker in missing:
                excuse.strikes += 1
                rounds = min(1 << excuse.strikes, EXCUSED_ROUNDS_MAX)
                excuse.until = round_number + 1 + rounds
            elif excuse.strikes and round_number >= excuse.until + (1 << excuse.strikes):
                # In time for as long as it had been excused: one strike is forgiven.
                excuse.strikes -= 1
                excuse.until = round_number

    def enough(self, expected: Sequence[int]) -> int:
        """How many of those expected will be heard, whatever B liars do."""
        return max(1, len(expected) - self._byzantine)

    # -- secret draws ---------------------------------------------------------------------------

    def guess(self, kind: Kind) -> int:
        """How long to wait for messages of this kind, where nobody knows how many will come."""
        timing = self._timing
        low, high = (
            (timing.propose_min, timing.propose)
            if kind is Kind.UPDATE
            else (timing.vote_min, timing.vote)
        )
        first = min(high, max(low, FIRST_WAIT_DELAYS * timing.delay))
        last = self._last.get(kind, first)
        rounds = [sorted(times.values()) for times in list(self._rounds[kind])[:-1]]
        if not rounds:
            wait = first
        elif not rounds[-1]:
            wait = 2 * last
        else:
            wait = 2 * int(statistics.median(self._order(times) for times in rounds if times))
        self._last[kind] = max(low, min(wait, 2 * last, high))
        return self._last[kind]

    def _order(self, times: Sequence[int]) -> int:
        """The time by which all had come but those that may be liars, who are drawn by chance."""
        share = len(times) * self._byzantine // self._workers + 1
        liars = min(share + 2 * math.isqrt(share), len(times) // 2)
        return times[-1 - liars]

    # -- for whoever watches ----------------------------------------------------------------------

    def members(self) -> dict[int, MemberWaits]:
        """How long others wait for each member of the roster."""
        return {worker: self._member(worker) for worker in range(self._workers)}

    def _member(self, worker: int) -> MemberWaits:
        return MemberWaits(
            gradient=self._median(Kind.UPDATE, worker),
            ballot=self._median(Kind.BALLOT, worker),
            lead=self._median(Kind.LEAD, worker),
            vote=self._median(Kind.VOTE, worker),
            missed=self._missed[worker],
            excused_until=max(
                (e.until for (_, w), e in self._excuses.items() if w == worker and self._open(e)),
                default=0,
            ),
        )

    def _open(self, excuse: _Excuse) -> bool:
        return excuse.until > max(self._began, default=0)

    def _median(self, kind: Kind, worker: int) -> int | None:
        times = self._times.get((kind, worker))
        return int(statistics.median(times)) if times else None

    def slow(self) -> tuple[int, ...]:
        """The members that others wait for: excused now, or far behind all but B of the rest."""
        found = {w for (_, w), excuse in self._excuses.items() if self._open(excuse)}
        for kind in (Kind.UPDATE, Kind.BALLOT, Kind.VOTE):
            times = {w: t for w in range(self._workers) if (t := self._median(kind, w)) is not None}
            if not times:
                continue
            usual = sorted(times.values())[self.enough(list(times)) - 1]
            found |= {
                worker
                for worker, time in times.items()
                if 2 * time > 3 * usual and time - usual > self._timing.delay // 4
            }
        return tuple(sorted(found))
