"""The agreement votes and the leads of one round: counting the former, ranking the latter.

Honest workers vote once for each slot, so two quorums of one step share an honest worker and cannot
be for different values. A worker that signed two values counts for each of them: the size of a
quorum allows for liars that do. Everything here was verified before; neither class knows keys.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from holdout.agreement.events import MessageFault
from holdout.agreement.messages import (
    Bundle,
    Evidence,
    Lead,
    Vote,
    VoteSignature,
    VoteStep,
    base_step,
)
from holdout.ids import Digest

VERSIONS_MAX = 2  # Of one worker's vote in one slot: two are evidence, more are noise.
PERIODS_KEPT = 32
"""CERT votes, which may still decide the round, are kept for this many periods. A value that had a
quorum of them in an older period is carried on by the later ones, so nothing is lost."""


@dataclass(frozen=True, slots=True)
class Reached:
    """A quorum: Q workers voted for this value, in this step of this period."""

    period: int
    step: int
    value: Digest


class Tracker:
    """The votes of a round, by period, step and value."""

    def __init__(self, quorum: int) -> None:
        self._quorum = quorum
        self._direct: dict[tuple[int, int], dict[int, list[Vote]]] = {}
        self._marks: dict[tuple[int, int], dict[Digest, dict[int, VoteSignature]]] = {}
        self._reached: dict[tuple[int, int, Digest], None] = {}
        self.evidence: dict[int, Evidence] = {}
        """For each worker caught: two of its votes in one slot."""

    def add(self, vote: Vote) -> MessageFault | None:
        """Count a verified vote that came by itself; returns why it cannot be counted, or None."""
        versions = self._direct.setdefault((vote.period, vote.step), {}).setdefault(vote.worker, [])
        if any(version.value == vote.value for version in versions):
            return MessageFault.DUPLICATE
        if len(versions) >= VERSIONS_MAX:
            return MessageFault.SURPLUS
        versions.append(vote)
        if len(versions) > 1 and vote.worker not in self.evidence:
            self.evidence[vote.worker] = Evidence.of(versions[0].envelope, versions[1].envelope)
        mark = VoteSignature(vote.worker, vote.envelope.signature, vote.envelope.proof)
        self._at(vote.period, vote.step, vote.value).setdefault(vote.worker, mark)
        return None

    def is_full(self, claim: Vote) -> bool:
        """Whether its worker has voted twice in this slot: no further vote of it can count."""
        versions = self._direct.get((claim.period, claim.step), {}).get(claim.worker, ())
        return len(versions) >= VERSIONS_MAX

    def add_bundle(self, bundle: Bundle) -> None:
        """Count the votes of a verified bundle, whatever else its signers have voted."""
        marks = self._at(bundle.period, bundle.step, bundle.value)
        for mark in bundle.marks:
            marks.setdefault(mark.worker, mark)

    def newly_reached(self, period: int, step: int, value: Digest) -> Reached | None:
        """The quorum for this value, if there is one now; each is told only once."""
        key = (period, step, value)
        if key in self._reached or len(self._at(*key)) < self._quorum:
            return None
        self._reached[key] = None
        return Reached(*key)

    def bundle(self, chain: Digest, round_number: int, reached: Reached) -> Bundle:
        """A bundle of exactly Q of the votes behind a quorum, ascending by worker."""
        marks = self._at(reached.period, reached.step, reached.value)
        chosen = tuple(marks[worker] for worker in sorted(marks)[: self._quorum])
        return Bundle(chain, round_number, reached.period, reached.step, reached.value, chosen)

    def quorums(self, period: int, steps: Iterable[VoteStep]) -> list[Reached]:
        """The quorums of these steps in a period, whatever the attempt, as they were reached."""
        wanted = tuple(steps)
        return [
            Reached(p, step, value)
            for p, step, value in self._reached
            if p == period and base_step(step) in wanted
        ]

    def has_reached(self, period: int, step: int, value: Digest) -> bool:
        """Whether this quorum was reached before."""
        return (period, step, value) in self._reached

    def certified(self) -> list[Reached]:
        """The quorums that decide the round; never for two values."""
        return [Reached(p, s, value) for p, s, value in self._reached if s == VoteStep.CERT]

    def values(self) -> set[Digest]:
        """All values with a quorum in some step, as far as they are remembered."""
        return {value for _, _, value in self._reached}

    def voters(self, period: int, step: int, value: Digest) -> tuple[int, ...]:
        """Who voted for this value, and so should hold its block."""
        return tuple(sorted(self._marks.get((period, step), {}).get(value, {})))

    def seen(self, worker: int, signed: bytes, signature: bytes) -> bool:
        """Whether this very signature was verified before, with a vote that came by itself."""
        # Looking through a worker's few votes is far cheaper than checking a signature.
        return any(
            version.envelope.signature == signature and version.envelope.signed == signed
            for slots in self._direct.values()
            for version in slots.get(worker, ())
        )

    def forget_before(self, period: int) -> None:
        """Drop the votes of periods before this one, except those that may still decide."""
        decided = {(p, step) for p, step, _ in self._reached if step == VoteStep.CERT}

        def over(key: tuple[int, int]) -> bool:
            oldest = period - PERIODS_KEPT if key[1] == VoteStep.CERT else period
            return key[0] < oldest and key not in decided

        for kept in (self._direct, self._marks):
            for key in [key for key in kept if over(key)]:
                del kept[key]
        for reached in [reached for reached in self._reached if over(reached[:2])]:
            del self._reached[reached]

    def size(self) -> int:
        """How many votes are held; bounded by workers, steps and open periods."""
        return sum(len(v) for slots in self._direct.values() for v in slots.values()) + sum(
            len(marks) for values in self._marks.values() for marks in values.values()
        )

    def _at(self, period: int, step: int, value: Digest) -> dict[int, VoteSignature]:
        return self._marks.setdefault((period, step), {}).setdefault(value, {})


@dataclass(frozen=True, slots=True)
class Ranked:
    """A lead and the lottery output that decides its rank."""

    priority: bytes
    lead: Lead


class Leads:
    """The leads of a round, by period; the lowest priority goes first."""

    def __init__(self) -> None:
        self._periods: dict[int, dict[int, list[Ranked]]] = {}
        self.evidence: dict[int, Evidence] = {}
        """For each worker caught: two of its leads for one period."""

    def add(self, lead: Lead, priority: bytes) -> MessageFault | None:
        """Take a verified lead; a leader that sends two is ignored in this period."""
        versions = self._periods.setdefault(lead.period, {}).setdefault(lead.worker, [])
        if any(ranked.lead.envelope.signed == lead.envelope.signed for ranked in versions):
            return MessageFault.DUPLICATE
        if len(versions) >= VERSIONS_MAX:
            return MessageFault.SURPLUS
        versions.append(Ranked(priority, lead))
        if len(versions) > 1 and lead.worker not in self.evidence:
            first, second = versions
            self.evidence[lead.worker] = Evidence.of(first.lead.envelope, second.lead.envelope)
        return None

    def is_full(self, claim: Lead) -> bool:
        """Whether its worker has led this period twice: no further lead of it can count."""
        return len(self._periods.get(claim.period, {}).get(claim.worker, ())) >= VERSIONS_MAX

    def best(self, period: int) -> list[Lead]:
        """The leads of a period by ascending priority, without leaders that sent two."""
        single = [v[0] for v in self._periods.get(period, {}).values() if len(v) == 1]
        return [ranked.lead for ranked in sorted(single, key=lambda ranked: ranked.priority)]

    def missing(self, period: int, leaders: Iterable[int]) -> list[int]:
        """Those of these leaders that have not sent a lead."""
        spoken = self._periods.get(period, {})
        return [leader for leader in leaders if leader not in spoken]

    def forget_before(self, period: int) -> None:
        """Drop the leads of periods before this one."""
        for over in [p for p in self._periods if p < period]:
            del self._periods[over]

    def size(self) -> int:
        """How many leads and pieces of evidence are held."""
        leads = sum(len(v) for leaders in self._periods.values() for v in leaders.values())
        return leads + len(self.evidence)
