"""One round at one worker: its verified messages, its two halves, and how it ends.

    learning_half   updates, ballots, when to stop waiting
    periods         the agreement half: leads, votes, recovery
    validation      which blocks are valid here

Messages reach a round through `receive`, which screens and verifies them, or through `take` if
they were verified before: the worker's own ones, and those that came before the round began.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from holdout.agreement import events as ev
from holdout.agreement import messages as msg
from holdout.agreement.context import URGENCY, PlayerContext
from holdout.agreement.draws import Draws
from holdout.agreement.headers import Header, Tip, read_header
from holdout.agreement.learning_half import LearningHalf, LearningMessages, LearningStage, Waiting
from holdout.agreement.params import ATTEMPTS_MAX, Mode
from holdout.agreement.periods import Periods
from holdout.agreement.safety import Phase
from holdout.agreement.sortition import Role
from holdout.agreement.validation import Tools, Validation
from holdout.agreement.votes import PERIODS_KEPT, Tracker
from holdout.agreement.waits import leads_end
from holdout.agreement.wire import Unverified
from holdout.ids import Digest

Decide = Callable[[Header, msg.Bundle], None]


@dataclass(slots=True)
class Round:
    """The round that is being decided."""

    context: PlayerContext
    tip: Tip
    draws: Draws
    tools: Tools
    decide: Decide
    """Called once, with the header of the decided block and its certificate."""
    learning_messages: LearningMessages = field(init=False)
    validation: Validation = field(init=False)
    learning: LearningHalf = field(init=False)
    periods: Periods = field(init=False)
    decided: bool = False
    leads_over: bool = False
    """Whether all but B have led period 0 and the rest have had their grace."""
    _leads_shortened: bool = False

    def __post_init__(self) -> None:
        context = self.context
        self.learning_messages = LearningMessages()
        self.validation = Validation(
            context.genesis,
            self.tip,
            self.draws,
            context.verifier,
            self.learning_messages.payloads,
            context.emit,
            self.tools,
        )
        self.learning = LearningHalf(context, self.tip, self.draws, self.learning_messages)
        self.periods = Periods(
            context,
            self.draws,
            self.learning_messages,
            self.validation,
            Tracker(context.params.quorum),
        )
        self.validation.enter(
            context.safety.period, active=self.periods.checks_blocks(context.safety.period)
        )

    @property
    def number(self) -> int:
        """The number of this round."""
        return self.tip.round

    def size(self) -> int:
        """How much is held because of peers; bounded, whatever they send."""
        periods = self.periods
        return (
            periods.tracker.size()
            + periods.leads.size()
            + self.learning_messages.size()
            + self.validation.size()
            + self.draws.size()
        )

    # -- time -----------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin the round, or go on with it after a crash."""
        context, timing = self.context, self.context.timing
        context.waits.begin(self.number, context.now)
        for header in map(read_header, context.safety.held.values()):
            self.validation.hold(header)
            context.emit(ev.Want(ev.BlobKind.BLOCK, header.digest, ()))
        self.learning.begin()
        agreeing = any(kind in {msg.Kind.LEAD, msg.Kind.VOTE} for kind, _, _ in context.safety.mine)
        if agreeing or context.safety.period:
            self.learning.stage = LearningStage.OVER
            self.periods.resume()
            return
        propose, vote = self.learning.longest_waits()
        for kind, after in (
            (ev.TimerKind.PROPOSALS_END, propose),
            (ev.TimerKind.BALLOTS_END, propose + vote),
            (ev.TimerKind.LEAD, propose + vote + 2 * timing.delay),
        ):
            self._set_timer(kind, context.now + after)

    def _set_timer(self, kind: ev.TimerKind, at: int) -> None:
        self.context.emit(ev.SetTimer(ev.Timer(kind, self.number, 0), at))

    def on_timer(self, timer: ev.Timer) -> None:
        """A timer of this round and period is due."""
        periods = self.periods
        match timer.kind:
            case ev.TimerKind.PROPOSALS_END:
                self.learning.end_proposals()
            case ev.TimerKind.BALLOTS_END:
                self.learning.end_ballots()
            case ev.TimerKind.LEAD:
                self._begin_periods()
            case ev.TimerKind.LEADS_END:
                self.leads_over = self._leads_shortened  # `hurry` does the rest.
            case ev.TimerKind.FILTER if periods.started and periods.phase is Phase.FILTER:
                periods.filter()
            case ev.TimerKind.DEADLINE if periods.started and periods.phase is not Phase.RECOVERY:
                periods.deadline()
            case ev.TimerKind.RETRY if periods.phase is Phase.RECOVERY:
                periods.retry()
            case _:
                pass

    def hurry(self) -> None:
        """End each wait for which everybody worth waiting for has been heard.

        Once all but B of those expected have been heard, the rest get some grace (`waits`).
        """
        learning, periods = self.learning, self.periods
        if learning.stage is LearningStage.PROPOSING:
            if learning.all_proposed():
                learning.end_proposals()
            elif (end := learning.shortened_proposals()) is not None:
                self._set_timer(ev.TimerKind.PROPOSALS_END, end)
        if learning.stage is LearningStage.VOTING:
            if learning.all_voted():
                learning.end_ballots()
            elif (ends := learning.shortened_ballots()) is not None:
                self._set_timer(ev.TimerKind.BALLOTS_END, ends[0])
                self._set_timer(ev.TimerKind.LEAD, ends[1])
        if learning.stage is LearningStage.GATHERING and learning.all_voted():
            self._begin_periods()
        if periods.started and periods.phase is Phase.FILTER:
            self._hurry_leads()

    def _begin_periods(self) -> None:
        if self.learning.finish() and not self.periods.started:
            self.periods.start()

    def _hurry_leads(self) -> None:
        """Give the soft vote if all worth waiting for have led, and the best lead will do."""
        leads, waits, now = self.periods.leads, self.context.waits, self.context.now
        drawn, period = self.draws.expected(Role.LEADER), self.periods.period
        if drawn is None:
            return
        waited_for = waits.present(msg.Kind.LEAD, drawn, self.number)
        if (self.leads_over and not period) or not leads.missing(period, waited_for):
            best = leads.best(period)
            if best and self.periods.acceptable(best[0]):
                self.periods.filter()
            return
        led = len(drawn) - len(leads.missing(period, drawn))
        if not period and not self._leads_shortened and led >= waits.enough(drawn):
            self._leads_shortened = True
            end = leads_end(waits.period_began(self.number, now), now, self.context.timing)
            self._set_timer(ev.TimerKind.LEADS_END, end)

    # -- signed messages ------------------------------------------------------------------------

    def receive(self, peer: int, data: bytes, claim: msg.SignedMessage) -> None:
        """Take a message of this round from a peer; it was not checked before."""
        fault = self._screen(claim) or self._surplus(claim)
        if fault is None:
            verified = self.draws.verify(Unverified(claim))
            if not isinstance(verified, ev.MessageFault):
                self.take(peer, data, verified)
                return
            fault = verified
        self.context.emit(ev.Reject(peer, fault))

    def _screen(self, claim: msg.SignedMessage) -> ev.MessageFault | None:
        """A cheap reason to drop a message of this round; asked before and after verification."""
        period = self.periods.period
        match claim:
            case msg.Update() | msg.BallotMessage():
                return ev.MessageFault.WRONG_MODEL if claim.model != self.tip.model else None
            case msg.Lead():
                if claim.period < period:
                    return ev.MessageFault.STALE
            case msg.Vote():
                if claim.step > self._step_max():
                    return ev.MessageFault.MALFORMED
                kept = PERIODS_KEPT if claim.step == msg.VoteStep.CERT else 1
                if claim.period < period - kept:
                    return ev.MessageFault.STALE
        return ev.MessageFault.TOO_EARLY if claim.period > period + 1 else None

    def _surplus(self, claim: msg.SignedMessage) -> ev.MessageFault | None:
        """Whether no further message of this worker can count in its slot, whoever signed it."""
        match claim:
            case msg.Update() | msg.BallotMessage():
                full = self.learning_messages.is_full(claim)
            case msg.Lead():
                full = self.periods.leads.is_full(claim)
            case msg.Vote():
                full = self.periods.tracker.is_full(claim)
        return ev.MessageFault.SURPLUS if full else None

    def take(self, peer: int, data: bytes, message: msg.SignedMessage) -> None:
        """Take a verified message; the worker's own come without bytes and are not relayed."""
        if not isinstance(message, msg.Update):
            self._heard(message.envelope.kind, message.worker)
        fault = self._screen(message) or self._file(peer, message)
        if not data:
            return
        if fault is not None:
            self.context.emit(ev.Reject(peer, fault))
        else:
            self.context.emit(ev.Relay(data, URGENCY[message.envelope.kind], peer))

    def _heard(self, kind: msg.Kind, worker: int) -> None:
        self.context.waits.note(kind, worker, self.number, self.context.now)

    def _file(self, peer: int, message: msg.SignedMessage) -> ev.MessageFault | None:
        match message:
            case msg.Update():
                return self._take_update(peer, message)
            case msg.BallotMessage():
                return self._take_ballot(peer, message)
            case msg.Lead():
                return self._take_lead(peer, message)
            case msg.Vote():
                return self._take_vote(peer, message)

    def _take_update(self, peer: int, update: msg.Update) -> ev.MessageFault | None:
        if update.size != self.context.params.payload_bytes:
            return ev.MessageFault.MALFORMED
        fault = self.learning_messages.add_update(update)
        if fault is not None:
            return fault
        self._publish(msg.Kind.UPDATE, update.worker, peer)
        if update.worker != self.context.worker and self._needs_payloads():
            self.validation.want((update.payload,), update.worker, peer)
        self._note_proposers(update.payload)
        self.learning_messages.release()
        return None

    def _note_proposers(self, payload: Digest) -> None:
        """A proposer counts as heard once its gradient is here: a header alone is cheap."""
        if payload in self.learning_messages.payloads:
            for worker in self.learning_messages.announced().get(payload, ()):
                self._heard(msg.Kind.UPDATE, worker)

    def _needs_payloads(self) -> bool:
        """Whether this worker needs gradients: to rank them, or to check or make a block.

        Others only take the model at the end of the round. Whoever comes to need gradients in a
        later period asks for those of the blocks that it checks.
        """
        return (
            self.periods.checks_blocks(self.periods.period)
            or self.learning.proof(Role.VOTER) is not None
            or self.periods.leads_now()
        )

    def _take_ballot(self, peer: int, ballot: msg.BallotMessage) -> ev.MessageFault | None:
        if ballot.entries[-1].proposer >= self.context.params.workers:
            return ev.MessageFault.MALFORMED
        result = self.learning_messages.add_ballot(ballot)
        if isinstance(result, ev.MessageFault):
            return result
        self._publish(msg.Kind.BALLOT, ballot.worker, peer)
        if isinstance(result, Waiting):
            question = msg.GetUpdates(self.context.chain, self.number, result.missing)
            self.context.emit(ev.Send(peer, question.encode()))
        return None

    def _take_lead(self, peer: int, lead: msg.Lead) -> ev.MessageFault | None:
        leads = self.periods.leads
        fault = leads.add(lead, self.draws.priority(lead))
        if fault is not None:
            return fault
        if lead.worker in leads.evidence:
            self.learning_messages.add_evidence(
                msg.Kind.LEAD, lead.worker, leads.evidence[lead.worker]
            )
            self._publish(msg.Kind.LEAD, lead.worker, peer)
        self.periods.want_led(lead, peer)
        return None

    def _take_vote(self, peer: int, vote: msg.Vote) -> ev.MessageFault | None:
        tracker = self.periods.tracker
        fault = tracker.add(vote)
        if fault is not None:
            return fault
        if vote.worker in tracker.evidence:
            self.learning_messages.add_evidence(
                msg.Kind.VOTE, vote.worker, tracker.evidence[vote.worker]
            )
            self._publish(msg.Kind.VOTE, vote.worker, peer)
        self._on_votes(vote.period, vote.step, vote.value)
        return None

    # -- quorums --------------------------------------------------------------------------------

    def receive_bundle(self, peer: int, claim: msg.Bundle) -> None:
        """Take a bundle of votes from a peer; it was not checked before."""
        fault = self._screen_bundle(claim)
        if fault is None:
            tracker = self.periods.tracker
            bundle = self.draws.verify_bundle(Unverified(claim), tracker.seen)
            if not isinstance(bundle, ev.MessageFault):
                tracker.add_bundle(bundle)
                self._on_votes(bundle.period, bundle.step, bundle.value)
                return
            fault = bundle
        self.context.emit(ev.Reject(peer, fault))

    def _step_max(self) -> int:
        """The last step of a period; only mode `self` makes several attempts at recovery."""
        attempts = ATTEMPTS_MAX if self.context.params.mode is Mode.SELF else 1
        return int(msg.VoteStep.DOWN) + 3 * (attempts - 1)

    def _screen_bundle(self, bundle: msg.Bundle) -> ev.MessageFault | None:
        if bundle.step > self._step_max():
            return ev.MessageFault.MALFORMED
        if bundle.step != msg.VoteStep.CERT and bundle.period < self.periods.period - 1:
            return ev.MessageFault.STALE
        if self.periods.tracker.has_reached(bundle.period, bundle.step, bundle.value):
            return ev.MessageFault.DUPLICATE
        return None

    def _on_votes(self, period: int, step: int, value: Digest) -> None:
        reached = self.periods.tracker.newly_reached(period, step, value)
        if reached is None:
            return
        if step != msg.VoteStep.CERT:
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
        self.context.emit(ev.Want(ev.BlobKind.BLOCK, value, hints))

    def _end(self, header: Header, certificate: msg.Bundle) -> None:
        if not self.decided:
            self.decided = True
            self.decide(header, certificate)

    # -- evidence -------------------------------------------------------------------------------

    def receive_evidence(self, peer: int, evidence: msg.Evidence) -> None:
        """Take evidence from a peer that a worker signed two messages for one slot."""
        convicted = self.draws.convict(evidence)
        kind = evidence.first.kind
        if isinstance(convicted, ev.MessageFault):
            self.context.emit(ev.Reject(peer, convicted))
        elif not self.learning_messages.add_evidence(kind, convicted.worker, evidence):
            self.context.emit(ev.Reject(peer, ev.MessageFault.DUPLICATE))
        else:
            self._publish(kind, convicted.worker, peer)

    def _publish(self, kind: msg.Kind, worker: int, peer: int) -> None:
        """Tell everybody, once, that a worker was caught; stop voting if too many were."""
        evidence = self.learning_messages.unpublished(kind, worker)
        if evidence is None:
            return
        context = self.context
        context.emit(ev.ReportEvidence(worker, self.number, evidence))
        context.emit(ev.Relay(evidence.encode(), ev.Urgency.BALLOT, peer))
        liars = len(self.learning_messages.convicted(msg.Kind.VOTE))
        tolerated = context.params.byzantine
        if liars > tolerated and not context.halted:
            context.halted = True
            context.emit(
                ev.Halt(
                    f"{liars} workers voted twice in round {self.number}; the network tolerates"
                    f" {tolerated}"
                )
            )

    # -- blobs and results ----------------------------------------------------------------------

    def on_payload(self, payload: Digest, *, valid: bool) -> None:
        """A gradient has come: note its proposers, and go on with what waited for it."""
        self.learning_messages.payloads[payload] = valid
        self._note_proposers(payload)
        self.validation.payload_ready()

    def on_payload_failed(self, payload: Digest) -> None:
        """Somebody was asked for a gradient in vain: wait for it no longer, whoever has it."""
        if payload in self.learning_messages.announced():
            self.learning_messages.failed[payload] = None

    def on_progress(self) -> None:
        """Go on after something came: a block may be valid now, or a certificate complete."""
        for reached in self.periods.tracker.certified():
            header = self.validation.header(reached.value)
            if header is not None:
                self._end(header, self.periods.bundle(reached))
                return
        self.periods.go_on_leading()
        self.periods.on_available()
