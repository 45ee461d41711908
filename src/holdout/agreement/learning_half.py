"""The learning half of a round at one worker: propose, judge, and know when to stop waiting.

    start   a proposer computes its gradient and announces it
    T_P     a voter ranks what is in hand and sends its ballot
    T_B     ballots held now must be in every block of the first periods
    T_A     leaders assemble

Where the senders are public (everybody, or a fixed draw), each wait is over as soon as all of them
have been heard.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum

from holdout.agreement.context import Desk
from holdout.agreement.draws import Draws
from holdout.agreement.events import BlobKind, Compute, Judge, Judged, Propose, Proposed
from holdout.agreement.headers import Tip
from holdout.agreement.learning_messages import Phases
from holdout.agreement.messages import Entry, Kind, ballot_part, update_part
from holdout.agreement.sortition import Role

UPDATE_SLOT = (Kind.UPDATE, 0, 0)
BALLOT_SLOT = (Kind.BALLOT, 0, 0)


class Phase(IntEnum):
    """How far the learning half is."""

    PROPOSING = 0
    VOTING = 1
    GATHERING = 2
    """Ballots that others held in time are still on their way."""
    OVER = 3


@dataclass(slots=True)
class Proceedings:
    """Proposals and ballots of one round."""

    desk: Desk
    tip: Tip
    draws: Draws
    phases: Phases
    stage: Phase = Phase.PROPOSING
    _judging: Judge | None = None
    _proofs: dict[Role, bytes | None] = field(default_factory=dict)

    def proof(self, role: Role) -> bytes | None:
        """The own credential for a role of this round, or None."""
        if role not in self._proofs:
            self._proofs[role] = self.draws.own(self.desk.signer, role, self.desk.worker)
        return self._proofs[role]

    # -- proposing ------------------------------------------------------------------------------

    def begin(self) -> None:
        """A drawn proposer starts computing; after a crash it repeats what it has signed."""
        for slot in (UPDATE_SLOT, BALLOT_SLOT):
            if self.desk.signed(slot) is not None:
                self.desk.send_again(slot)
        if not self.desk.may_sign or self.desk.signed(UPDATE_SLOT) is not None:
            return
        if self.proof(Role.PROPOSER) is not None:
            self.desk.emit(Compute(Propose(self.tip.round, self.tip.model)))

    def on_proposed(self, event: Proposed) -> None:
        """The own gradient is there: announce it."""
        proof = self.proof(Role.PROPOSER)
        current = event.job == Propose(self.tip.round, self.tip.model)
        if not current or proof is None or not self.desk.may_sign:
            return
        if self.desk.signed(UPDATE_SLOT) is not None:
            return
        self.phases.payloads[event.payload] = True
        part = update_part(
            self.desk.chain,
            self.tip.round,
            self.desk.worker,
            self.tip.model,
            event.payload,
            self.desk.params.payload_bytes,
        )
        self.desk.sign(UPDATE_SLOT, part, proof, ((BlobKind.PAYLOAD, event.payload),))

    # -- judging --------------------------------------------------------------------------------

    def end_proposals(self) -> None:
        """T_P: rank what is in hand."""
        if self.stage is not Phase.PROPOSING:
            return
        self.stage = Phase.VOTING
        if not self.desk.may_sign or self.desk.signed(BALLOT_SLOT) is not None:
            return
        candidates = self.phases.candidates()
        if not candidates or self.proof(Role.VOTER) is None:
            return
        self._judging = Judge(
            self.tip.round,
            self.tip.model,
            candidates,
            self.tip.radius,
            self.desk.params.rate(self.tip.steps + 1),
            self.desk.params.approve_count(len(candidates)),
        )
        self.desk.emit(Compute(self._judging))

    def on_judged(self, event: Judged) -> None:
        """The own ballot is there: send it, however late; later leaders may still use it."""
        job, proof = self._judging, self.proof(Role.VOTER)
        if event.job != job or proof is None or not self.desk.may_sign:
            return
        if self.desk.signed(BALLOT_SLOT) is not None:
            return
        approved = [
            job.candidates[place] for place in sorted(set(event.approved))[: job.approve_max]
        ]
        if not approved:
            return
        entries = tuple(Entry(candidate.proposer, candidate.update_id) for candidate in approved)
        part = ballot_part(
            self.desk.chain, self.tip.round, self.desk.worker, self.tip.model, entries
        )
        # Who counts this ballot may need the gradients when their proposers are gone.
        payloads = dict.fromkeys(candidate.payload for candidate in approved)
        self.desk.sign(
            BALLOT_SLOT, part, proof, tuple((BlobKind.PAYLOAD, payload) for payload in payloads)
        )

    # -- waiting --------------------------------------------------------------------------------

    def end_ballots(self) -> None:
        """T_B: what is held now, a leader must include."""
        self.end_proposals()
        if self.stage is Phase.VOTING:
            self.stage = Phase.GATHERING
            self.phases.in_time = tuple(sorted(self.phases.ballots()))

    def finish(self) -> bool:
        """T_A: the other half begins; False if it has begun before."""
        self.end_ballots()
        if self.stage is Phase.OVER:
            return False
        self.stage = Phase.OVER
        return True

    def all_proposed(self) -> bool:
        """Whether everybody worth waiting for has proposed."""
        return self._all(Role.PROPOSER, Kind.UPDATE, self.phases.proposer_settled)

    def all_voted(self) -> bool:
        """Whether everybody worth waiting for has sent a ballot."""
        return self._all(Role.VOTER, Kind.BALLOT, self.phases.holds_ballot)

    def _all(self, role: Role, kind: Kind, heard: Callable[[int], bool]) -> bool:
        drawn = self.draws.expected(role)
        if drawn is None:
            return False
        waited_for = self.desk.attendance.present(kind, drawn, self.tip.round)
        return all(map(heard, waited_for))
