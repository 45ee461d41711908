"""The learning half of a round: updates, ballots, and what is known about payloads.

A ballot is *held* once every update header that it names is held; until then it waits. Of each
worker at most two versions are kept: the second is the evidence against it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from holdout.agreement.events import Candidate, MessageFault
from holdout.agreement.messages import BallotMessage, Evidence, Kind, Update
from holdout.ids import Digest

Conviction = tuple[Kind, int]
"""What a worker did twice, and who it was."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """The ballot names updates that nobody here has seen."""

    missing: tuple[Digest, ...]


class Phases:
    """Updates and ballots of one round."""

    def __init__(self) -> None:
        self._updates: dict[int, list[Update]] = {}
        self._by_id: dict[Digest, Update] = {}
        self._proposers: dict[Digest, list[int]] = {}
        self._ballots: dict[int, list[BallotMessage]] = {}
        self._waiting: dict[int, list[BallotMessage]] = {}
        self.payloads: dict[Digest, bool] = {}
        """Payloads in hand, and whether they are valid gradients."""
        self.evidence: dict[Conviction, Evidence] = {}
        self._published: dict[Conviction, None] = {}
        self.in_time: tuple[int, ...] = ()
        """The voters whose ballots were held at T_B: a leader must include them."""

    # -- updates --------------------------------------------------------------------------------

    def add_update(self, update: Update) -> MessageFault | None:
        """Take a verified update header."""
        if update.update_id in self._by_id:
            return MessageFault.DUPLICATE
        versions = self._updates.setdefault(update.worker, [])
        if len(versions) > 1:
            return MessageFault.SURPLUS
        versions.append(update)
        self._by_id[update.update_id] = update
        self._proposers.setdefault(update.payload, []).append(update.worker)
        if len(versions) > 1:
            self._convict(Kind.UPDATE, update.worker, versions)
        return None

    def update(self, update_id: Digest) -> Update | None:
        """The update of this content."""
        return self._by_id.get(update_id)

    def proposers_of(self, payload: Digest) -> tuple[int, ...]:
        """Whose updates announce this payload."""
        return tuple(self._proposers.get(payload, ()))

    def announced(self) -> Mapping[Digest, list[int]]:
        """The payloads that update headers in hand name, and whose those are."""
        return self._proposers

    def updates(self) -> dict[int, Update]:
        """The update of each proposer that sent one only."""
        return {w: versions[0] for w, versions in self._updates.items() if len(versions) == 1}

    def candidates(self) -> tuple[Candidate, ...]:
        """What an honest voter ranks: valid, in hand, of proposers not known to have lied."""
        return tuple(
            Candidate(worker, update.update_id, update.payload)
            for worker, update in sorted(self.updates().items())
            if (Kind.UPDATE, worker) not in self.evidence and self.payloads.get(update.payload)
        )

    def proposer_settled(self, worker: int) -> bool:
        """Whether nothing more is to be waited for from this proposer."""
        versions = self._updates.get(worker, [])
        return len(versions) > 1 or any(update.payload in self.payloads for update in versions)

    # -- ballots --------------------------------------------------------------------------------

    def add_ballot(self, ballot: BallotMessage) -> MessageFault | Waiting | None:
        """Take a verified ballot: held now (None), or waiting for update headers."""
        known = [*self._ballots.get(ballot.worker, []), *self._waiting.get(ballot.worker, [])]
        if any(version.envelope.signed == ballot.envelope.signed for version in known):
            return MessageFault.DUPLICATE
        if len(known) > 1:
            return MessageFault.SURPLUS
        if known:
            self._convict(Kind.BALLOT, ballot.worker, [known[0], ballot])
        missing = tuple(e.update_id for e in ballot.entries if e.update_id not in self._by_id)
        if missing:
            self._waiting.setdefault(ballot.worker, []).append(ballot)
            return Waiting(missing)
        self._hold(ballot)
        return None

    def release(self) -> list[BallotMessage]:
        """Ballots whose update headers have come since they were sent; they are held now."""
        ready = [
            ballot
            for ballots in self._waiting.values()
            for ballot in ballots
            if all(entry.update_id in self._by_id for entry in ballot.entries)
        ]
        for ballot in ready:
            self._waiting[ballot.worker].remove(ballot)
            self._hold(ballot)
        return ready

    def ballots(self) -> dict[int, BallotMessage]:
        """The held ballot of each voter; of one that sent two, the first (it is convicted)."""
        return {worker: versions[0] for worker, versions in self._ballots.items()}

    def holds_ballot(self, worker: int) -> bool:
        """Whether a ballot of this voter is held."""
        return worker in self._ballots

    def _hold(self, ballot: BallotMessage) -> None:
        self._ballots.setdefault(ballot.worker, []).append(ballot)

    # -- evidence -------------------------------------------------------------------------------

    def add_evidence(self, kind: Kind, worker: int, evidence: Evidence) -> bool:
        """Take verified evidence from elsewhere; False if the worker was caught before."""
        if (kind, worker) in self.evidence:
            return False
        self.evidence[kind, worker] = evidence
        return True

    def _convict(
        self, kind: Kind, worker: int, versions: list[Update] | list[BallotMessage]
    ) -> None:
        self.add_evidence(kind, worker, Evidence.of(versions[0].envelope, versions[1].envelope))

    def unpublished(self, kind: Kind, worker: int) -> Evidence | None:
        """Evidence against this worker that nobody was told of yet; it counts as told now."""
        if (kind, worker) not in self.evidence or (kind, worker) in self._published:
            return None
        self._published[kind, worker] = None
        return self.evidence[kind, worker]

    def convicted(self, kind: Kind) -> list[int]:
        """The workers that were caught at this."""
        return sorted(worker for caught, worker in self.evidence if caught is kind)

    def proofs(self) -> Mapping[Conviction, Evidence]:
        """All evidence of this round, in canonical order."""
        return {key: self.evidence[key] for key in sorted(self.evidence)}

    def size(self) -> int:
        """How many headers, ballots and pieces of evidence are held."""
        lists = (self._updates, self._ballots, self._waiting)
        held = sum(len(versions) for kept in lists for versions in kept.values())
        return held + len(self.evidence)
