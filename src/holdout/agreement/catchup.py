"""Falling behind and catching up: who is asked, how often, and what a lost memory costs.

Asking changes nothing by itself: a worker goes on with its round until a valid certificate for that
round arrives. Otherwise a forged round number would silence it.
"""

from dataclasses import dataclass, field

from holdout.agreement.codec import digest, u32, u64
from holdout.agreement.messages import WORKERS_MAX
from holdout.agreement.params import Limits, Timing
from holdout.agreement.safety import NEVER


@dataclass(slots=True)
class Pace:
    """How often one peer may make this worker do something.

    It remembers as many peers as a network has at most.
    """

    interval: int
    burst: int
    _spent: dict[int, tuple[int, int]] = field(default_factory=dict)
    _forgotten: int | None = None
    """When what is over was last dropped: not at every question, it takes a while."""

    def allows(self, peer: int, now: int) -> bool:
        """Whether it may once more; counts it if so."""
        start, count = self._spent.get(peer, (now, 0))
        if now - start >= self.interval:
            start, count = now, 0
        if count >= self.burst:
            return False
        if peer not in self._spent and len(self._spent) >= WORKERS_MAX:
            self._forget(now)
            if len(self._spent) >= WORKERS_MAX:
                return False
        self._spent[peer] = (start, count + 1)
        return True

    def _forget(self, now: int) -> None:
        if self._forgotten is not None and now - self._forgotten < self.interval:
            return
        self._forgotten = now
        spent = self._spent.items()
        self._spent = {peer: item for peer, item in spent if now - item[0] < self.interval}


class Catchup:
    """What this worker knows about being behind."""

    def __init__(self, timing: Timing, limits: Limits) -> None:
        self._limits = limits
        self._questions = Pace(timing.delay, 1)
        self.target = 0
        """The highest round that a member of the roster claimed to be in."""
        self._requested_to = 0

    def claim(self, round_number: int) -> None:
        """A member says that it is in this round."""
        self.target = max(self.target, round_number)

    def request(self, round_number: int, peer: int, now: int) -> tuple[int, int] | None:
        """The rounds to ask this peer for; None if there is nothing to ask, or not yet."""
        if self.target <= round_number or not self._questions.allows(peer, now):
            return None
        last = min(self.target - 1, round_number + self._limits.blocks_per_answer - 1)
        self._requested_to = last
        return round_number, last

    def goes_on(self, round_number: int) -> bool:
        """Whether a whole answer has come and the next one should be asked for."""
        return self._requested_to < round_number < self.target


def peer_for(worker: int, round_number: int, count: int, workers: int) -> int:
    """Another worker to ask, a different one each time, without any randomness of its own."""
    number = digest("peer", u32(worker), u64(round_number), u64(count))
    return (worker + 1 + int.from_bytes(number[:8], "big") % (workers - 1)) % workers


@dataclass(slots=True)
class SigningMemory:
    """Whether this worker may sign, and what it must hear before it may again (amnesia).

    If it ever was in round r, then Q workers had committed round r - 2; a quorum of answers meets
    an honest one of them. So it was in no round beyond head + 2, where head is the newest round
    that the answering workers can prove.
    """

    votes_from: int
    quorum: int
    recoverable: bool
    """Only where everybody is in the committee do the answers meet a certificate's signers."""
    nonce: bytes = b""
    answers: dict[int, int] = field(default_factory=dict)
    """The rounds that others say are finished, by worker."""

    @property
    def lost(self) -> bool:
        """Whether it is unknown where this worker may have voted."""
        return self.votes_from == NEVER

    def settle(self, finished: int) -> bool:
        """Whether enough answers are proven by the chain up to here; votes begin soon if so."""
        if not self.lost or not self.recoverable:
            return False
        proven = sum(claimed <= finished for claimed in self.answers.values())
        if proven < self.quorum:
            return False
        self.votes_from = finished + 3
        return True
