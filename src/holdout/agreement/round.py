"""One round at one worker: its verified messages, its two halves, and how it ends.

    proceedings   the learning half: updates, ballots, when to stop waiting
    periods       the agreement half: leads, votes, recovery
    validation    which blocks are valid here

Messages reach a round through `receive`, which screens and verifies them, or through `take`, if
they were verified before (the worker's own, and those that came before the round began).
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from holdout.agreement.context import URGENCY, Desk
from holdout.agreement.draws import Draws, Signed
from holdout.agreement.events import (
    BlobKind,
    Halt,
    MessageFault,
    Reject,
    Relay,
    ReportEvidence,
    Send,
    SetTimer,
    Timer,
    TimerKind,
    Urgency,
    Want,
)
from holdout.agreement.headers import Header, Tip, read_header
from holdout.agreement.learning_half import Phase, Phases, Proceedings, Waiting
from holdout.agreement.messages import (
    BallotMessage,
    Bundle,
    Evidence,
    GetUpdates,
    Kind,
    Lead,
    Step,
    Update,
    Vote,
)
from holdout.agreement.params import ATTEMPTS_MAX, Mode
from holdout.agreement.periods import Periods
from holdout.agreement.sortition import Role
from holdout.agreement.validation import Tools, Validation
from holdout.agreement.votes import PERIODS_KEPT, Added, Tracker
from holdout.agreement.wire import Unverified
from holdout.ids import Digest

Decide = Callable[[Header, Bundle], None]


@dataclass(slots=True)
class Round:
    """The round that is being decided."""

    desk: Desk
    tip: Tip
    draws: Draws
    tools: Tools
    decide: Decide
    """Called once, with the certificate and the header it is for."""
    phases: Phases = field(init=False)
    validation: Validation = field(init=False)
    proceedings: Proceedings = field(init=False)
    periods: Periods = field(init=False)
    decided: bool = False

    def __post_init__(self) -> None:
        desk = self.desk
        self.phases = Phases()
        self.validation = Validation(
            desk.genesis,
            self.tip,
            self.draws,
            desk.verifier,
            self.phases.payloads,
            desk.emit,
            self.tools,
        )
        self.proceedings = Proceedings(desk, self.tip, self.draws, self.phases)
        self.periods = Periods(
            desk, self.draws, self.phases, self.validation, Tracker(desk.params.quorum)
        )
        self.validation.enter(
            desk.safety.period, active=self.periods.checks_blocks(desk.safety.period)
        )

    @property
    def number(self) -> int:
        """Which round it is."""
        return self.tip.round

    def size(self) -> int:
        """How many things of peers are held: bounded, whatever they send."""
        periods = self.periods
        return (
            periods.tracker.size()
            + periods.leads.size()
            + self.phases.size()
            + self.validation.size()
            + self.draws.size()
        )

    # -- time -----------------------------------------------------------------------------------

    def begin(self) -> None:
        """Time zero, or the moment after a crash."""
        desk, timing = self.desk, self.desk.timing
        for header in map(read_header, desk.safety.held.values()):
            self.validation.hold(header)
            desk.emit(Want(BlobKind.BLOCK, header.digest, ()))
        self.proceedings.begin()
        agreeing = any(kind in {Kind.LEAD, Kind.VOTE} for kind, _, _ in desk.safety.mine)
        if agreeing or desk.safety.period:
            self.proceedings.stage = Phase.OVER
            self.periods.resume()
            return
        for kind, after in (
            (TimerKind.PROPOSALS_END, timing.propose),
            (TimerKind.BALLOTS_END, timing.propose + timing.vote),
            (TimerKind.LEAD, timing.lead_at()),
        ):
            desk.emit(SetTimer(Timer(kind, self.number, 0), desk.now + after))

    def on_timer(self, timer: Timer) -> None:
        """A timer of this round and period is due."""
        periods = self.periods
        match timer.kind:
            case TimerKind.PROPOSALS_END:
                self.proceedings.end_proposals()
            case TimerKind.BALLOTS_END:
                self.proceedings.end_ballots()
            case TimerKind.LEAD:
                self._begin_periods()
            case TimerKind.FILTER if periods.started and periods.phase == 0:
                periods.filter()
            case TimerKind.DEADLINE if periods.started and periods.phase <= 1:
                periods.deadline()
            case TimerKind.RETRY if periods.phase == 2:  # noqa: PLR2004
                periods.retry()
            case _:
                pass

    def hurry(self) -> None:
        """End a wait early, if everybody expected has been heard."""
        proceedings, periods = self.proceedings, self.periods
        if proceedings.stage is Phase.PROPOSING and proceedings.all_proposed():
            proceedings.end_proposals()
        if proceedings.stage is Phase.VOTING and proceedings.all_voted():
            proceedings.end_ballots()
        if proceedings.stage is Phase.GATHERING and proceedings.all_voted():
            self._begin_periods()
        if periods.started and periods.phase == 0 and self._all_led():
            periods.filter()

    def _begin_periods(self) -> None:
        if self.proceedings.finish() and not self.periods.started:
            self.periods.start()

    def _all_led(self) -> bool:
        period, leads = self.periods.period, self.periods.leads
        drawn = self.draws.expected(Role.LEADER)
        if drawn is None:
            return False
        if not leads.heard(period, self.desk.attendance.present(Kind.LEAD, drawn, self.number)):
            return False
        best = leads.best(period)
        return bool(best) and self.periods.acceptable(best[0])

    # -- signed messages ------------------------------------------------------------------------

    def receive(self, peer: int, data: bytes, claim: Signed) -> None:
        """A message of this round, from a peer: nobody has checked it."""
        fault = self._screen(claim)
        if fault is None:
            verified = self.draws.verify(Unverified(claim))
            if not isinstance(verified, MessageFault):
                self.take(peer, data, verified)
                return
            fault = verified
        self.desk.emit(Reject(peer, fault))

    def _screen(self, claim: Signed) -> MessageFault | None:
        """Cheap reasons to drop a message of this round, before and after it is verified."""
        period = self.periods.period
        match claim:
            case Update() | BallotMessage():
                return MessageFault.WRONG_MODEL if claim.model != self.tip.model else None
            case Lead():
                if claim.period < period:
                    return MessageFault.STALE
            case Vote():
                if claim.step > self._step_max():
                    return MessageFault.MALFORMED
                kept = PERIODS_KEPT if claim.step == Step.CERT else 1
                if claim.period < period - kept:
                    return MessageFault.STALE
        return MessageFault.TOO_EARLY if claim.period > period + 1 else None

    def take(self, peer: int, data: bytes, message: Signed) -> None:
        """A verified message; the worker's own ones come without bytes and are not relayed."""
        if not isinstance(message, Update):
            self.desk.attendance.note(message.envelope.kind, message.worker, message.round)
        fault = self._screen(message) or self._file(peer, message)
        if not data:
            return
        if fault is not None:
            self.desk.emit(Reject(peer, fault))
        else:
            self.desk.emit(Relay(data, URGENCY[message.envelope.kind], peer))

    def _file(self, peer: int, message: Signed) -> MessageFault | None:
        match message:
            case Update():
                return self._take_update(peer, message)
            case BallotMessage():
                return self._take_ballot(peer, message)
            case Lead():
                return self._take_lead(peer, message)
            case Vote():
                return self._take_vote(peer, message)

    def _take_update(self, peer: int, update: Update) -> MessageFault | None:
        if update.size != self.desk.params.payload_bytes:
            return MessageFault.MALFORMED
        fault = self.phases.add_update(update)
        if fault is not None:
            return fault
        self._publish(Kind.UPDATE, update.worker, peer)
        if update.worker != self.desk.worker and self._needs_payloads():
            self.validation.want((update.payload,), update.worker, peer)
        self._note_proposers(update.payload)
        self.phases.release()
        return None

    def _note_proposers(self, payload: Digest) -> None:
        """A proposer has spoken once its gradient is here: headers alone are cheap."""
        if payload in self.phases.payloads:
            for worker in self.phases.proposers_of(payload):
                self.desk.attendance.note(Kind.UPDATE, worker, self.number)

    def _needs_payloads(self) -> bool:
        """Those who judge, check or make blocks need gradients; others take the model at the end.

        Whoever comes to need them in a later period asks for those of the blocks that it checks.
        """
        return (
            self.periods.checks_blocks(self.periods.period)
            or self.proceedings.proof(Role.VOTER) is not None
            or self.periods.leads_now()
        )

    def _take_ballot(self, peer: int, ballot: BallotMessage) -> MessageFault | None:
        if ballot.entries[-1].proposer >= self.desk.params.workers:
            return MessageFault.MALFORMED
        result = self.phases.add_ballot(ballot)
        if isinstance(result, MessageFault):
            return result
        self._publish(Kind.BALLOT, ballot.worker, peer)
        if isinstance(result, Waiting):
            question = GetUpdates(self.desk.chain, self.number, result.missing)
            self.desk.emit(Send(peer, question.encode()))
        return None

    def _take_lead(self, peer: int, lead: Lead) -> MessageFault | None:
        leads = self.periods.leads
        fault = leads.add(lead, self.draws.priority(lead))
        if fault is not None:
            return fault
        if lead.worker in leads.evidence:
            self.phases.add_evidence(Kind.LEAD, lead.worker, leads.evidence[lead.worker])
            self._publish(Kind.LEAD, lead.worker, peer)
        self.periods.want_led(lead, peer)
        return None

    def _take_vote(self, peer: int, vote: Vote) -> MessageFault | None:
        tracker = self.periods.tracker
        match tracker.add(vote):
            case Added.DUPLICATE:
                return MessageFault.DUPLICATE
            case Added.SURPLUS:
                return MessageFault.SURPLUS
            case Added.COUNTED:
                pass
        if vote.worker in tracker.evidence:
            self.phases.add_evidence(Kind.VOTE, vote.worker, tracker.evidence[vote.worker])
            self._publish(Kind.VOTE, vote.worker, peer)
        self._on_votes(vote.period, vote.step, vote.value)
        return None

    # -- quorums --------------------------------------------------------------------------------

    def receive_bundle(self, peer: int, claim: Bundle) -> None:
        """Votes that somebody has gathered."""
        fault = self._screen_bundle(claim)
        if fault is None:
            tracker = self.periods.tracker
            bundle = self.draws.verify_bundle(Unverified(claim), tracker.seen)
            if not isinstance(bundle, MessageFault):
                tracker.add_bundle(bundle)
                self._on_votes(bundle.period, bundle.step, bundle.value)
                return
            fault = bundle
        self.desk.emit(Reject(peer, fault))

    def _step_max(self) -> int:
        """Further attempts at recovery exist only where each draws a new committee."""
        attempts = ATTEMPTS_MAX if self.desk.params.mode is Mode.SELF else 1
        return int(Step.DOWN) + 3 * (attempts - 1)

    def _screen_bundle(self, bundle: Bundle) -> MessageFault | None:
        if bundle.step > self._step_max():
            return MessageFault.MALFORMED
        if bundle.step != Step.CERT and bundle.period < self.periods.period - 1:
            return MessageFault.STALE
        if self.periods.tracker.has_reached(bundle.period, bundle.step, bundle.value):
            return MessageFault.DUPLICATE
        return None

    def _on_votes(self, period: int, step: int, value: Digest) -> None:
        reached = self.periods.tracker.newly_reached(period, step, value)
        if reached is None:
            return
        if step != Step.CERT:
            self.periods.on_quorum(reached)
            return
        certificate = self.periods.bundle(reached)
        header = self.validation.header(value)
        if header is not None:
            self._end(header, certificate)
            return
        if period > self.periods.period:
            self.periods.enter(period, with_lead=False)
        hints = tuple(mark.worker for mark in certificate.marks)
        self.desk.emit(Want(BlobKind.BLOCK, value, hints))

    def _end(self, header: Header, certificate: Bundle) -> None:
        if not self.decided:
            self.decided = True
            self.decide(header, certificate)

    # -- evidence -------------------------------------------------------------------------------

    def receive_evidence(self, peer: int, evidence: Evidence) -> None:
        """Somebody has caught a worker."""
        convicted = self.draws.convict(evidence)
        kind = evidence.first.kind
        if isinstance(convicted, MessageFault):
            self.desk.emit(Reject(peer, convicted))
        elif not self.phases.add_evidence(kind, convicted.worker, evidence):
            self.desk.emit(Reject(peer, MessageFault.DUPLICATE))
        else:
            self._publish(kind, convicted.worker, peer)

    def _publish(self, kind: Kind, worker: int, peer: int) -> None:
        """Tell everybody, once, that a worker was caught; stop if too many were."""
        evidence = self.phases.unpublished(kind, worker)
        if evidence is None:
            return
        desk = self.desk
        desk.emit(ReportEvidence(worker, self.number, evidence))
        desk.emit(Relay(evidence.encode(), Urgency.BALLOT, peer))
        liars, stands = len(self.phases.convicted(Kind.VOTE)), desk.params.byzantine
        if liars > stands and not desk.halted:
            desk.halted = True
            desk.emit(
                Halt(
                    f"{liars} workers voted twice in round {self.number}; the network stands"
                    f" {stands}"
                )
            )

    # -- blobs and results ----------------------------------------------------------------------

    def on_payload(self, payload: Digest, *, valid: bool) -> None:
        """A gradient has come."""
        self.phases.payloads[payload] = valid
        self._note_proposers(payload)
        self.validation.payload_ready()

    def on_progress(self) -> None:
        """Some block may have become valid, or its certificate may have waited for it."""
        for reached in self.periods.tracker.certified():
            header = self.validation.header(reached.value)
            if header is not None:
                self._end(header, self.periods.bundle(reached))
                return
        self.periods.go_on_leading()
        self.periods.on_available()
