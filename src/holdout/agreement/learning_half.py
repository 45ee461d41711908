"""The learning half of a round at one worker: propose, judge, and decide when to stop waiting.

    start   a proposer computes its gradient and announces it
    T_P     a voter ranks what is in hand and sends its ballot
    T_B     ballots held now must be in every block of the first periods
    T_A     leaders assemble

Where the senders are public (everybody, or a fixed draw), each wait is over as soon as all of them
have been heard.

`LearningMessages` holds what workers sent in this half. A ballot is *held* once every update header
that it names is held; until then it waits. At most two versions of a worker's message are kept:
the second is the evidence against it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from holdout.agreement import events as ev
from holdout.agreement import messages as msg
from holdout.agreement.context import PlayerContext
from holdout.agreement.draws import Draws
from holdout.agreement.headers import Tip
from holdout.agreement.sortition import Role
from holdout.agreement.waits import ballots_end, proposals_end
from holdout.ids import Digest

Conviction = tuple[msg.Kind, int]
"""The kind of message that a worker sent in two versions, and the worker."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A ballot is not held yet: it names these updates, whose headers are missing."""

    missing: tuple[Digest, ...]


class LearningMessages:
    """Updates and ballots of one round."""

    def __init__(self) -> None:
        self._updates: dict[int, list[msg.Update]] = {}
        self._by_id: dict[Digest, msg.Update] = {}
        self._proposers: dict[Digest, list[int]] = {}
        self._ballots: dict[int, list[msg.BallotMessage]] = {}
        self._waiting: dict[int, list[msg.BallotMessage]] = {}
        self.payloads: dict[Digest, bool] = {}
        """The payloads in hand, and whether each is a valid gradient."""
        self.failed: dict[Digest, None] = {}
        """Announced payloads that somebody was asked for in vain; nobody waits for them."""
        self.evidence: dict[Conviction, msg.Evidence] = {}
        self._published: dict[Conviction, None] = {}
        self.in_time: tuple[int, ...] = ()
        """The voters whose ballots were held at T_B: a leader must include them."""

    # -- updates --------------------------------------------------------------------------------

    def add_update(self, update: msg.Update) -> ev.MessageFault | None:
        """Take a verified update header."""
        if update.update_id in self._by_id:
            return ev.MessageFault.DUPLICATE
        versions = self._updates.setdefault(update.worker, [])
        if len(versions) > 1:
            return ev.MessageFault.SURPLUS
        versions.append(update)
        self._by_id[update.update_id] = update
        self._proposers.setdefault(update.payload, []).append(update.worker)
        if len(versions) > 1:
            self._convict(msg.Kind.UPDATE, update.worker, versions)
        return None

    def is_full(self, claim: msg.Update | msg.BallotMessage) -> bool:
        """Whether its worker has sent two of this kind: no further one can count."""
        if isinstance(claim, msg.Update):
            return len(self._updates.get(claim.worker, ())) > 1
        kept = (self._ballots, self._waiting)
        return sum(len(ballots.get(claim.worker, ())) for ballots in kept) > 1

    def update(self, update_id: Digest) -> msg.Update | None:
        """The update header with this id, if it is in hand."""
        return self._by_id.get(update_id)

    def announced(self) -> Mapping[Digest, list[int]]:
        """The payloads that update headers in hand announce, each with its proposers."""
        return self._proposers

    def updates(self) -> dict[int, msg.Update]:
        """The update of each proposer that sent exactly one."""
        return {w: versions[0] for w, versions in self._updates.items() if len(versions) == 1}

    def candidates(self) -> tuple[ev.Candidate, ...]:
        """What an honest voter ranks: valid updates in hand of proposers that did not lie."""
        return tuple(
            ev.Candidate(worker, update.update_id, update.payload)
            for worker, update in sorted(self.updates().items())
            if (msg.Kind.UPDATE, worker) not in self.evidence and self.payloads.get(update.payload)
        )

    def proposer_settled(self, worker: int) -> bool:
        """Whether this proposer's gradient is in hand, or it has lied and it does not matter."""
        versions = self._updates.get(worker, [])
        return len(versions) > 1 or any(update.payload in self.payloads for update in versions)

    def proposer_failed(self, worker: int) -> bool:
        """Whether this proposer announced a gradient that somebody was asked for in vain."""
        return any(update.payload in self.failed for update in self._updates.get(worker, []))

    # -- ballots --------------------------------------------------------------------------------

    def add_ballot(self, ballot: msg.BallotMessage) -> ev.MessageFault | Waiting | None:
        """Take a verified ballot; None: it is held, `Waiting`: it needs update headers first."""
        known = [*self._ballots.get(ballot.worker, []), *self._waiting.get(ballot.worker, [])]
        if any(version.envelope.signed == ballot.envelope.signed for version in known):
            return ev.MessageFault.DUPLICATE
        if len(known) > 1:
            return ev.MessageFault.SURPLUS
        if known:
            self._convict(msg.Kind.BALLOT, ballot.worker, [known[0], ballot])
        missing = tuple(e.update_id for e in ballot.entries if e.update_id not in self._by_id)
        if missing:
            self._waiting.setdefault(ballot.worker, []).append(ballot)
            return Waiting(missing)
        self._hold(ballot)
        return None

    def release(self) -> list[msg.BallotMessage]:
        """Hold the waiting ballots whose update headers have all come, and return them."""
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

    def ballots(self) -> dict[int, msg.BallotMessage]:
        """The held ballot of each voter; of a convicted one that sent two, the first."""
        return {worker: versions[0] for worker, versions in self._ballots.items()}

    def holds_ballot(self, worker: int) -> bool:
        """Whether a ballot of this voter is held."""
        return worker in self._ballots

    def _hold(self, ballot: msg.BallotMessage) -> None:
        self._ballots.setdefault(ballot.worker, []).append(ballot)

    # -- evidence -------------------------------------------------------------------------------

    def add_evidence(self, kind: msg.Kind, worker: int, evidence: msg.Evidence) -> bool:
        """Take verified evidence from elsewhere; False if the worker was caught before."""
        if (kind, worker) in self.evidence:
            return False
        self.evidence[kind, worker] = evidence
        return True

    def _convict(
        self, kind: msg.Kind, worker: int, versions: list[msg.Update] | list[msg.BallotMessage]
    ) -> None:
        self.add_evidence(kind, worker, msg.Evidence.of(versions[0].envelope, versions[1].envelope))

    def unpublished(self, kind: msg.Kind, worker: int) -> msg.Evidence | None:
        """Evidence against this worker that is still to be published; it is returned only once."""
        if (kind, worker) not in self.evidence or (kind, worker) in self._published:
            return None
        self._published[kind, worker] = None
        return self.evidence[kind, worker]

    def convicted(self, kind: msg.Kind) -> list[int]:
        """The workers caught sending two messages of this kind."""
        return sorted(worker for caught, worker in self.evidence if caught is kind)

    def proofs(self) -> Mapping[Conviction, msg.Evidence]:
        """All evidence of this round, in canonical order."""
        return {key: self.evidence[key] for key in sorted(self.evidence)}

    def size(self) -> int:
        """How many update headers, ballots and pieces of evidence are held."""
        lists = (self._updates, self._ballots, self._waiting)
        held = sum(len(versions) for kept in lists for versions in kept.values())
        return held + len(self.evidence) + len(self.failed)


UPDATE_SLOT = (msg.Kind.UPDATE, 0, 0)
BALLOT_SLOT = (msg.Kind.BALLOT, 0, 0)


class LearningStage(IntEnum):
    """How far the learning half is."""

    PROPOSING = 0
    """Until T_P."""
    VOTING = 1
    """Until T_B."""
    GATHERING = 2
    """Until T_A: ballots that others held in time are still on their way."""
    OVER = 3


@dataclass(slots=True)
class LearningHalf:
    """What one worker does in the learning half of a round."""

    context: PlayerContext
    tip: Tip
    draws: Draws
    learning_messages: LearningMessages
    stage: LearningStage = LearningStage.PROPOSING
    _judging: ev.Judge | None = None
    _judged_at: int = 0
    """When T_P came."""
    _shortened: dict[LearningStage, None] = field(default_factory=dict)
    """The stages whose end was brought forward, since all but B have been heard."""
    _proofs: dict[Role, bytes | None] = field(default_factory=dict)

    def proof(self, role: Role) -> bytes | None:
        """This worker's credential for a role of this round; None if it was not drawn."""
        if role not in self._proofs:
            self._proofs[role] = self.draws.own_proof(
                self.context.signer, role, self.context.worker
            )
        return self._proofs[role]

    # -- proposing ------------------------------------------------------------------------------

    def begin(self) -> None:
        """A drawn proposer starts computing; after a crash it repeats what it has signed."""
        for slot in (UPDATE_SLOT, BALLOT_SLOT):
            if self.context.signed(slot) is not None:
                self.context.send_again(slot)
        if not self.context.may_sign or self.context.signed(UPDATE_SLOT) is not None:
            return
        if self.proof(Role.PROPOSER) is not None:
            self.context.emit(ev.Compute(ev.Propose(self.tip.round, self.tip.model)))

    def on_proposed(self, event: ev.Proposed) -> None:
        """This worker's gradient is computed: announce it."""
        proof = self.proof(Role.PROPOSER)
        current = event.job == ev.Propose(self.tip.round, self.tip.model)
        if not current or proof is None or not self.context.may_sign:
            return
        if self.context.signed(UPDATE_SLOT) is not None:
            return
        self.learning_messages.payloads[event.payload] = True
        part = msg.update_part(
            self.context.chain,
            self.tip.round,
            self.context.worker,
            self.tip.model,
            event.payload,
            self.context.params.payload_bytes,
        )
        self.context.sign(UPDATE_SLOT, part, proof, ((ev.BlobKind.PAYLOAD, event.payload),))

    # -- judging --------------------------------------------------------------------------------

    def end_proposals(self) -> None:
        """T_P: rank the updates in hand."""
        if self.stage is not LearningStage.PROPOSING:
            return
        self.stage = LearningStage.VOTING
        self._judged_at = self.context.now
        self.context.waits.judging(self.context.now)
        self._ended(Role.PROPOSER)
        if not self.context.may_sign or self.context.signed(BALLOT_SLOT) is not None:
            return
        candidates = self.learning_messages.candidates()
        if not candidates or self.proof(Role.VOTER) is None:
            return
        self._judging = ev.Judge(
            self.tip.round,
            self.tip.model,
            candidates,
            self.tip.radius,
            self.context.params.rate(self.tip.steps + 1),
            self.context.params.approve_count(len(candidates)),
        )
        self.context.emit(ev.Compute(self._judging))

    def on_judged(self, event: ev.Judged) -> None:
        """This worker's ballot is ready: send it, even if late, for later leaders to use."""
        job, proof = self._judging, self.proof(Role.VOTER)
        if event.job != job or proof is None or not self.context.may_sign:
            return
        if self.context.signed(BALLOT_SLOT) is not None:
            return
        approved = [
            job.candidates[place] for place in sorted(set(event.approved))[: job.approve_max]
        ]
        if not approved:
            return
        entries = tuple(
            msg.Entry(candidate.proposer, candidate.update_id) for candidate in approved
        )
        part = msg.ballot_part(
            self.context.chain, self.tip.round, self.context.worker, self.tip.model, entries
        )
        # Whoever counts this ballot may need the gradients after their proposers have left.
        payloads = dict.fromkeys(candidate.payload for candidate in approved)
        self.context.sign(
            BALLOT_SLOT, part, proof, tuple((ev.BlobKind.PAYLOAD, payload) for payload in payloads)
        )

    # -- waiting --------------------------------------------------------------------------------

    def end_ballots(self) -> None:
        """T_B: a leader must include the ballots that are held now."""
        self.end_proposals()
        if self.stage is LearningStage.VOTING:
            self.stage = LearningStage.GATHERING
            self._ended(Role.VOTER)
            self.learning_messages.in_time = tuple(sorted(self.learning_messages.ballots()))

    def finish(self) -> bool:
        """T_A: end this half; False if it was over before."""
        self.end_ballots()
        if self.stage is LearningStage.OVER:
            return False
        self.stage = LearningStage.OVER
        return True

    def longest_waits(self) -> tuple[int, int]:
        """How long gradients, and after that ballots, are waited for at most."""
        timing, waits = self.context.timing, self.context.waits
        if not timing.ends_waits_early:
            return timing.propose, timing.vote
        propose, vote = timing.propose, timing.vote
        if self.draws.expected(Role.PROPOSER) is None:
            propose = waits.guess(msg.Kind.UPDATE)
        if self.draws.expected(Role.VOTER) is None:
            vote = waits.guess(msg.Kind.BALLOT)
        return propose, vote

    def all_proposed(self) -> bool:
        """Whether everybody worth waiting for has proposed."""
        return self._missing(Role.PROPOSER) == []

    def all_voted(self) -> bool:
        """Whether everybody worth waiting for has sent a ballot."""
        return self._missing(Role.VOTER) == []

    def shortened_proposals(self) -> int | None:
        """When T_P comes, now that all but B gradients are in hand; told only once."""
        if not self._enough(Role.PROPOSER):
            return None
        context = self.context
        return proposals_end(context.waits.began(self.tip.round), context.now, context.timing)

    def shortened_ballots(self) -> tuple[int, int] | None:
        """When T_B and T_A come, now that all but B ballots are held; told only once."""
        if not self._enough(Role.VOTER):
            return None
        context = self.context
        began = context.waits.began(self.tip.round)
        return ballots_end(began, self._judged_at, context.now, context.timing)

    def _enough(self, role: Role) -> bool:
        """Whether all but B of those drawn have been heard, and that was not told before."""
        drawn = self.draws.expected(role)
        if drawn is None or self.stage in self._shortened:
            return False
        settled = sum(map(self._heard(role), drawn))
        if settled < self.context.waits.enough(drawn):
            return False
        self._shortened[self.stage] = None
        return True

    def _ended(self, role: Role) -> None:
        """Note who was missing at the end of a wait."""
        waited_for, heard = self._waited_for(role), self._heard(role)
        if waited_for is not None:
            missing = [worker for worker in waited_for if not heard(worker)]
            self.context.waits.ended(_KINDS[role], waited_for, missing, self.tip.round)

    def _missing(self, role: Role) -> list[int] | None:
        """Who is waited for and has not been heard; None: nobody knows who is drawn."""
        waited_for = self._waited_for(role)
        if waited_for is None:
            return None
        heard, failed = self._heard(role), self.learning_messages.proposer_failed
        given_up = failed if role is Role.PROPOSER else lambda _: False
        return [worker for worker in waited_for if not (heard(worker) or given_up(worker))]

    def _waited_for(self, role: Role) -> list[int] | None:
        drawn = self.draws.expected(role)
        if drawn is None:
            return None
        return self.context.waits.present(_KINDS[role], drawn, self.tip.round)

    def _heard(self, role: Role) -> Callable[[int], bool]:
        messages = self.learning_messages
        return messages.proposer_settled if role is Role.PROPOSER else messages.holds_ballot


_KINDS = {Role.PROPOSER: msg.Kind.UPDATE, Role.VOTER: msg.Kind.BALLOT}
