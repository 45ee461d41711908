"""The agreement state machine of one worker: `handle(event, now)` -> actions.

A round has two halves. In the learning half proposers announce gradients and voters send ballots
(`proceedings`). In the other half leaders announce blocks and the consensus committee votes, period
after period, until a certificate exists (`periods`):

    phase 0   before the filter      SOFT  for the best acceptable lead
    phase 1   before the deadline    CERT  for the value with a soft quorum, once it is valid here
    phase 2   recovery               LATE  the soft quorum's value; it is valid here
                                     REDO  the value by which this period was entered
                                     DOWN  neither: next period with a fresh block

A quorum of LATE, REDO or DOWN ends the period; a quorum of CERT ends the round. Rounds never fork
because a worker that voted CERT recovers with LATE or not at all, and never votes CERT after a
recovery vote of the same period.

This module takes messages in, from peers and from the worker itself, and follows the chain. Bad
input is a counted `Reject`; nothing raises, whatever the bytes.
"""

from collections.abc import Callable, Sequence
from typing import assert_never

from holdout.agreement import wire
from holdout.agreement.blocks import BlockKind, Header, read_header
from holdout.agreement.catchup import Catchup, Memory, peer_for
from holdout.agreement.desk import URGENCY, Desk
from holdout.agreement.draws import Draws, Signed
from holdout.agreement.events import (
    Action,
    Alarm,
    BlobKind,
    BlockReady,
    Broadcast,
    Combined,
    Commit,
    Entered,
    Event,
    Fault,
    Forget,
    Halt,
    JobFailed,
    Judged,
    ModelReady,
    PayloadReady,
    Proposed,
    Received,
    Reject,
    Relay,
    Report,
    Send,
    SendBlocks,
    SetTimer,
    Start,
    Timer,
    TimerFired,
    TimerKind,
    Urgency,
    Want,
)
from holdout.agreement.keys import Signer, Verifier
from holdout.agreement.ledger import Ledger
from holdout.agreement.messages import (
    Ballot,
    Behind,
    Bundle,
    Envelope,
    Evidence,
    Finished,
    GetBlocks,
    GetUpdates,
    HeadAnswer,
    HeadQuery,
    Kind,
    Lead,
    Message,
    Step,
    Update,
    Vote,
    head_part,
)
from holdout.agreement.params import Genesis, Limits, Mode, Timing
from holdout.agreement.periods import Periods
from holdout.agreement.phases import Phases, Waiting
from holdout.agreement.proceedings import Proceedings, Stage
from holdout.agreement.safety import NEVER, Safety, read_safety
from holdout.agreement.sortition import Role
from holdout.agreement.validation import Tools, Validation, Verdict
from holdout.agreement.votes import Added, Tracker
from holdout.agreement.wire import Unverified
from holdout.errors import InvalidMessage
from holdout.ids import Digest


class Player:
    """One worker's part in the protocol."""

    def __init__(
        self,
        genesis: Genesis,
        worker: int,
        signer: Signer,
        verifier: Verifier,
        *,
        timing: Timing,
        safety: bytes | None,
        finished: Sequence[Finished] = (),
        limits: Limits | None = None,
        decode: Callable[[bytes], Unverified[Message]] = wire.decode,
        tools: Tools | None = None,
    ) -> None:
        """A worker as its store left it.

        Args:
            genesis: The network.
            worker: This worker's place in the roster.
            signer: Its keys.
            verifier: Checks what others sign.
            timing: How long it waits.
            safety: What it wrote last (`safety.initial` at registration); None: memory lost.
            finished: The decided rounds in its store, all or enough of the last ones.
            limits: What peers may make it hold.
            decode: `wire.decode`, or a version that remembers.
            tools: Functions on blocks, or versions that remember.
        """
        self._ledger = Ledger(genesis)
        for item in finished:
            self._ledger.append(read_header(item.header))
        limits = limits or Limits()
        stored = None if safety is None else read_safety(safety, genesis.chain)
        state = self._continue(stored)
        self._desk = Desk(
            genesis,
            worker,
            signer,
            verifier,
            timing,
            limits,
            safety=state,
            memory=Memory(state.votes_from, genesis.params.quorum, genesis.params.mode is Mode.ALL),
        )
        self._decode = decode
        self._tools = tools or Tools()
        self._catchup = Catchup(timing, limits)
        self._models: dict[Digest, None] = {}
        self._unsaved: list[tuple[Finished, Header, tuple[int, ...] | None]] = []
        self._early: dict[int, dict[bytes, tuple[int, Signed]]] = {}
        self._questions = 0
        self._in_round = False
        self._new_round()

    def _continue(self, stored: Safety | None) -> Safety:
        """Where this worker goes on, as far as its store can tell."""
        if stored is None:
            return Safety(round=self._ledger.round, votes_from=NEVER)
        if stored.round == self._ledger.round:
            return stored
        # Rounds are missing in the store: it may have voted up to this one.
        votes_from = max(stored.votes_from, stored.round + 1)
        return Safety(round=self._ledger.round, votes_from=votes_from)

    # -- for whoever watches --------------------------------------------------------------------

    @property
    def round(self) -> int:
        """The round to be decided."""
        return self._ledger.round

    @property
    def period(self) -> int:
        """The current period."""
        return self._desk.safety.period

    @property
    def phase(self) -> int:
        """0 before the filter, 1 before the deadline, 2 recovery."""
        return self._desk.safety.phase

    @property
    def model(self) -> Digest:
        """The newest decided model."""
        return self._ledger.model

    @property
    def observer(self) -> bool:
        """Whether this worker only watches, because it may have forgotten votes."""
        return self._desk.safety.round < self._desk.memory.votes_from

    @property
    def halted(self) -> bool:
        """Whether this worker has stopped voting for good."""
        return self._desk.halted

    def held(self) -> int:
        """How many messages of peers are in memory: bounded, whatever they send."""
        return (
            self._periods.tracker.size()
            + self._periods.leads.size()
            + self._phases.size()
            + self._validation.size()
            + sum(map(len, self._early.values()))
        )

    def holds(self, role: Role) -> bool:
        """Whether this worker was drawn for a role of this round (`P` or `V`)."""
        return self._proceedings.proof(role) is not None

    # -- the machine ----------------------------------------------------------------------------

    def handle(self, event: Event, now: int) -> list[Action]:
        """What must be done about this event, in order."""
        self._desk.now = now
        self._on_event(event)
        self._count_own()
        self._hurry()
        actions, self._desk.actions = self._desk.actions, []
        return actions

    def _on_event(self, event: Event) -> None:  # noqa: C901  # One line for each kind of event.
        match event:
            case Received():
                self._on_received(event.peer, event.data)
            case TimerFired():
                self._on_timer(event.timer)
            case PayloadReady():
                self._on_payload(event)
            case BlockReady():
                self._on_block(event)
            case Combined():
                self._on_combined(event)
            case Proposed():
                self._proceedings.on_proposed(event)
            case Judged():
                self._proceedings.on_judged(event)
            case ModelReady():
                self._on_model(event.digest)
            case Start():
                self._on_start(event.nonce)
            case JobFailed():
                pass  # This worker misses a role; its agreement goes on.
            case _:
                assert_never(event)

    def _count_own(self) -> None:
        """What this worker has signed is counted after the rule that signed it has finished."""
        while self._desk.own:
            message = self._desk.own.popleft()
            if self._in_round and message.round == self.round:
                self._take(self._desk.worker, b"", message)

    def _hurry(self) -> None:
        """End a wait early, if everybody expected has been heard."""
        if not self._desk.timing.early or not self._in_round:
            return
        proceedings = self._proceedings
        if proceedings.stage is Stage.PROPOSING and proceedings.all_proposed():
            proceedings.end_proposals()
        if proceedings.stage is Stage.VOTING and proceedings.all_voted():
            proceedings.end_ballots()
        if proceedings.stage is Stage.GATHERING and proceedings.all_voted():
            self._begin_periods()
        periods = self._periods
        if periods.started and periods.phase == 0 and self._all_led():
            periods.filter()
        if self._desk.own:
            self._count_own()
            self._hurry()

    def _all_led(self) -> bool:
        expected = self._draws.expected(Role.LEADER)
        if expected is None or self._periods.leads.heard(self.period) < len(expected):
            return False
        best = self._periods.leads.best(self.period)
        return bool(best) and self._periods.acceptable(best[0])

    # -- rounds ---------------------------------------------------------------------------------

    def _on_start(self, nonce: bytes) -> None:
        if self._desk.memory.lost:
            self._desk.memory.nonce = nonce
            self._desk.emit(Broadcast(HeadQuery(self._desk.chain, nonce).encode(), Urgency.ANSWER))
        self._follow()

    def _follow(self) -> None:
        """Nothing can be done before the newest model is here."""
        self._in_round = False
        if self._ledger.model in self._models:
            self._commit()
            return
        hints: tuple[int, ...] = ()
        if self._unsaved:
            hints = tuple(mark.worker for mark in self._unsaved[-1][0].certificate.marks)
        self._desk.emit(Want(BlobKind.MODEL, self._ledger.model, hints))
        self._ask_again()

    def _ask_again(self) -> None:
        self._questions += 1
        at = self._desk.now + self._desk.timing.retry_after(min(self._questions, 3))
        self._desk.emit(SetTimer(Timer(TimerKind.RETRY, self.round, 0), at))

    def _on_model(self, model: Digest) -> None:
        self._models[model] = None
        if not self._in_round and model == self._ledger.model:
            self._commit()

    def _commit(self) -> None:
        """The newest decided model is here: make it durable, tell, and go on."""
        desk, unsaved = self._desk, self._unsaved
        if unsaved:
            desk.memory.settle(self.round - 1)
            desk.safety = Safety(round=self.round)
            finished = tuple(item for item, _, _ in unsaved)
            desk.persist(((BlobKind.MODEL, self._ledger.model),), finished)
            for _, header, selected in unsaved:
                stepped = header.kind is BlockKind.STEP
                desk.emit(Commit(header.round, header.digest, header.model, stepped, selected))
            desk.emit(Relay(finished[-1].encode(), Urgency.VOTE, desk.worker))
            self._unsaved = []
        self._models = {self._ledger.model: None}
        self._questions = 0
        self._enter()

    def _new_round(self) -> None:
        desk = self._desk
        tip = self._ledger.tip()
        self._draws = self._draws_of(tip.round, tip.seed_in)
        self._phases = Phases()
        self._validation = Validation(
            desk.genesis,
            tip,
            self._draws,
            desk.verifier,
            self._phases.payloads,
            desk.emit,
            self._tools,
        )
        self._proceedings = Proceedings(desk, tip, self._draws, self._phases)
        self._periods = Periods(
            desk, self._draws, self._phases, self._validation, Tracker(desk.params.quorum)
        )

    def _draws_of(self, round_number: int, seed: Digest) -> Draws:
        return Draws(self._desk.genesis, self._desk.verifier, round_number=round_number, seed=seed)

    def _enter(self) -> None:
        """Time zero of a round."""
        desk = self._desk
        resumed = bool(desk.safety.mine) or desk.safety.period > 0
        self._in_round = True
        self._new_round()
        desk.emit(Entered(self.round, desk.safety.period))
        desk.emit(Forget(self.round))
        for header in map(read_header, desk.safety.held.values()):
            self._validation.hold(header)
            self._models[header.model] = None
            desk.emit(Want(BlobKind.BLOCK, header.digest, ()))
        self._proceedings.begin()
        if resumed:
            behind = Behind(desk.chain, self.round, self.period)
            desk.emit(Broadcast(behind.encode(), Urgency.ANSWER))
        self._begin_waiting()
        for data in desk.safety.mine.values():
            self._take_own(data)
        self._take_early()

    def _begin_waiting(self) -> None:
        """Set the round's timers; after a crash, go on where it happened."""
        desk, timing = self._desk, self._desk.timing
        if any(kind in {Kind.LEAD, Kind.VOTE} for kind, _, _ in desk.safety.mine) or self.period:
            self._proceedings.stage = Stage.OVER
            self._periods.resume()
            for slot in desk.safety.mine:
                if slot[0] in {Kind.LEAD, Kind.VOTE}:
                    desk.send_again(slot)
        else:
            for kind, after in (
                (TimerKind.PROPOSALS_END, timing.propose),
                (TimerKind.BALLOTS_END, timing.propose + timing.vote),
                (TimerKind.LEAD, timing.lead_at()),
            ):
                desk.emit(SetTimer(Timer(kind, self.round, 0), desk.now + after))

    def _take_early(self) -> None:
        """What came before its round began."""
        early = self._early.pop(self.round, {})
        for stale in [r for r in self._early if r < self.round]:
            del self._early[stale]
        for data, (peer, message) in early.items():
            if self._in_round and message.round == self.round:
                self._take(peer, data, message)

    def _take_own(self, data: bytes) -> None:
        """What was signed before a crash counts again."""
        message = self._decode(data).claim
        if isinstance(message, Update | Ballot | Lead | Vote):
            self._desk.own.append(message)

    def _begin_periods(self) -> None:
        if self._proceedings.finish() and not self._periods.started:
            self._periods.start()

    def _on_timer(self, timer: Timer) -> None:
        if not self._in_round:
            if (timer.kind, timer.round) == (TimerKind.RETRY, self.round):
                self._ask_peer()
            return
        if (timer.round, timer.period) != (self.round, self.period):
            return
        periods = self._periods
        match timer.kind:
            case TimerKind.PROPOSALS_END:
                self._proceedings.end_proposals()
            case TimerKind.BALLOTS_END:
                self._proceedings.end_ballots()
            case TimerKind.LEAD:
                self._begin_periods()
            case TimerKind.FILTER if periods.started and self.phase == 0:
                periods.filter()
            case TimerKind.DEADLINE if periods.started and self.phase <= 1:
                periods.deadline()
            case TimerKind.RETRY if self.phase == 2:  # noqa: PLR2004
                periods.retry()
                self._ask_if_behind()
            case _:
                pass

    # -- what comes from peers ------------------------------------------------------------------

    def _reject(self, peer: int, fault: Fault) -> None:
        self._desk.emit(Reject(peer, fault))

    def _on_received(self, peer: int, data: bytes) -> None:
        try:
            unverified = self._decode(data)
        except InvalidMessage:
            self._reject(peer, Fault.MALFORMED)
            return
        message = unverified.claim
        match message:
            case Update() | Ballot() | Lead() | Vote():
                self._on_signed(peer, data, message)
            case Bundle():
                self._on_bundle(peer, message)
            case Evidence():
                self._on_evidence(peer, message)
            case Finished():
                self._on_finished(peer, message)
            case HeadAnswer():
                self._on_head_answer(peer, message)
            case GetBlocks() | GetUpdates() | Behind() | HeadQuery():
                self._on_question(peer, message)
            case _:
                assert_never(message)

    def _on_signed(self, peer: int, data: bytes, claim: Signed) -> None:
        ahead = claim.round - self.round
        if claim.chain != self._desk.chain:
            self._reject(peer, Fault.WRONG_CHAIN)
        elif claim.worker >= self._desk.params.workers:
            self._reject(peer, Fault.UNKNOWN_WORKER)
        elif ahead < 0:
            self._on_old(peer, claim)
        elif ahead == 0 and self._in_round:
            self._on_current(peer, data, claim)
        elif ahead <= 1 and not getattr(claim, "period", 0):
            self._on_early(peer, data, claim)
        else:
            self._on_ahead(peer, claim)

    def _on_current(self, peer: int, data: bytes, claim: Signed) -> None:
        fault = self._screen(claim)
        if fault is None:
            verified = self._draws.verify(Unverified(claim))
            if not isinstance(verified, Fault):
                self._take(peer, data, verified)
                return
            fault = verified
        self._reject(peer, fault)

    def _screen(self, claim: Signed) -> Fault | None:
        """Cheap reasons to drop a message of this round unread."""
        match claim:
            case Update() | Ballot():
                return Fault.WRONG_MODEL if claim.model != self._validation.tip.model else None
            case Lead():
                if claim.period < self.period:
                    return Fault.STALE
            case Vote():
                if claim.period < self.period - 1 and claim.step != Step.CERT:
                    return Fault.STALE
        return Fault.TOO_EARLY if claim.period > self.period + 1 else None

    def _take(self, peer: int, data: bytes, message: Signed) -> None:
        """A verified message of this round; the own ones come without bytes."""
        match message:
            case Update():
                fault = self._take_update(peer, message)
            case Ballot():
                fault = self._take_ballot(peer, message)
            case Lead():
                fault = self._take_lead(peer, message)
            case Vote():
                fault = self._take_vote(message)
        if fault is not None:
            self._reject(peer, fault)
        elif data:
            self._desk.emit(Relay(data, URGENCY[message.envelope.kind], peer))

    def _take_update(self, peer: int, update: Update) -> Fault | None:
        if update.model != self._validation.tip.model:
            return Fault.WRONG_MODEL
        if update.size != self._desk.params.payload_bytes:
            return Fault.MALFORMED
        fault = self._phases.add_update(update)
        if fault is not None:
            return fault
        self._publish(Kind.UPDATE, update.worker)
        if update.worker != self._desk.worker and self._needs_payloads():
            self._validation.want((update.payload,), update.worker, peer)
        self._phases.release()
        return None

    def _needs_payloads(self) -> bool:
        """Voters and the consensus committee need gradients; others take the model at the end."""
        if self._desk.params.mode is not Mode.SHUFFLE or self.holds(Role.VOTER):
            return True
        members = self._draws.expected(Role.COMMITTEE, self.period)
        return members is None or self._desk.worker in members

    def _take_ballot(self, peer: int, ballot: Ballot) -> Fault | None:
        if ballot.model != self._validation.tip.model:
            return Fault.WRONG_MODEL
        if ballot.entries[-1].proposer >= self._desk.params.workers:
            return Fault.MALFORMED
        result = self._phases.add_ballot(ballot)
        if isinstance(result, Fault):
            return result
        self._publish(Kind.BALLOT, ballot.worker)
        if isinstance(result, Waiting):
            question = GetUpdates(self._desk.chain, self.round, result.missing)
            self._desk.emit(Send(peer, question.encode()))
        return None

    def _take_lead(self, peer: int, lead: Lead) -> Fault | None:
        fault = self._screen(lead)
        if fault is not None:
            return fault
        periods = self._periods
        fault = periods.leads.add(lead, self._draws.priority(lead))
        if fault is not None:
            return fault
        if lead.worker in periods.leads.evidence:
            self._phases.add_evidence(Kind.LEAD, lead.worker, periods.leads.evidence[lead.worker])
            self._publish(Kind.LEAD, lead.worker)
        best = periods.leads.best(lead.period)[: self._desk.limits.bodies]
        if lead in best:
            periods.want_block(lead.value, lead.worker, peer)
        return None

    def _take_vote(self, vote: Vote) -> Fault | None:
        fault = self._screen(vote)
        if fault is not None:
            return fault
        tracker = self._periods.tracker
        match tracker.add(vote):
            case Added.DUPLICATE:
                return Fault.DUPLICATE
            case Added.SURPLUS:
                return Fault.SURPLUS
            case Added.COUNTED:
                pass
        if vote.worker in tracker.evidence:
            self._phases.add_evidence(Kind.VOTE, vote.worker, tracker.evidence[vote.worker])
            self._publish(Kind.VOTE, vote.worker)
        self._on_votes(vote.period, vote.step, vote.value)
        return None

    def _on_votes(self, period: int, step: int, value: Digest) -> None:
        reached = self._periods.tracker.newly_reached(period, step, value)
        if reached is None:
            return
        if step != Step.CERT:
            self._periods.on_quorum(reached)
            return
        certificate = self._periods.bundle(reached)
        header = self._validation.header(value)
        if header is not None:
            self._decide(header, certificate)
            return
        if period > self.period:
            self._periods.enter(period, with_lead=False)
        hints = tuple(mark.worker for mark in certificate.marks)
        self._desk.emit(Want(BlobKind.BLOCK, value, hints))

    def _on_bundle(self, peer: int, bundle: Bundle) -> None:
        fault = self._screen_bundle(bundle)
        if fault is not None:
            self._reject(peer, fault)
            return
        tracker = self._periods.tracker
        verified = self._draws.verify_bundle(Unverified(bundle), tracker.seen)
        if isinstance(verified, Fault):
            self._reject(peer, verified)
            return
        tracker.add_bundle(verified)
        self._on_votes(verified.period, verified.step, verified.value)

    def _screen_bundle(self, bundle: Bundle) -> Fault | None:
        if bundle.chain != self._desk.chain:
            return Fault.WRONG_CHAIN
        if bundle.round != self.round or not self._in_round:
            return Fault.STALE if bundle.round < self.round else Fault.TOO_EARLY
        if bundle.step != Step.CERT and bundle.period < self.period - 1:
            return Fault.STALE
        if self._periods.tracker.has_reached(bundle.period, bundle.step, bundle.value):
            return Fault.DUPLICATE
        return None

    # -- evidence -------------------------------------------------------------------------------

    def _publish(self, kind: Kind, worker: int) -> None:
        """Tell everybody, once, that a worker was caught."""
        evidence = self._phases.unpublished(kind, worker)
        if evidence is None:
            return
        self._desk.emit(Report(worker, self.round, evidence))
        self._desk.emit(Broadcast(evidence.encode(), Urgency.BALLOT))
        liars = self._phases.convicted(Kind.VOTE)
        if len(liars) > self._desk.params.byzantine and not self._desk.halted:
            self._desk.halted = True
            self._desk.emit(
                Halt(
                    f"{len(liars)} workers voted twice in round {self.round}; the network"
                    f" stands {self._desk.params.byzantine}"
                )
            )

    def _on_evidence(self, peer: int, evidence: Evidence) -> None:
        if not self._in_round:
            self._reject(peer, Fault.STALE)
            return
        kind = evidence.first.kind
        convicted = self._draws.convict(evidence)
        if isinstance(convicted, Fault):
            self._reject(peer, convicted)
        elif not self._phases.add_evidence(kind, convicted.worker, evidence):
            self._reject(peer, Fault.DUPLICATE)
        else:
            self._publish(kind, convicted.worker)

    # -- blobs ----------------------------------------------------------------------------------

    def _on_payload(self, event: PayloadReady) -> None:
        self._phases.payloads[event.digest] = event.valid
        self._validation.payload_ready()
        self._on_progress()

    def _on_block(self, event: BlockReady) -> None:
        self._validation.add(event.digest, event.data)
        self._on_progress()

    def _on_combined(self, event: Combined) -> None:
        if event.model is not None:
            self._models[event.model] = None
        self._validation.combined(event)
        self._on_progress()

    def _on_progress(self) -> None:
        """Some block may have become valid, or its certificate may have waited for it."""
        if not self._in_round:
            return
        for reached in self._periods.tracker.certified():
            header = self._validation.header(reached.value)
            if header is not None:
                self._decide(header, self._periods.bundle(reached))
                return
        self._periods.go_on_leading()
        self._periods.on_available()

    # -- the chain ------------------------------------------------------------------------------

    def _decide(self, header: Header, certificate: Bundle) -> None:
        """A certificate for the current round: it is final."""
        if self._validation.verdict(header.digest) is Verdict.INVALID:
            why = self._validation.reason(header.digest)
            self._desk.emit(Alarm(f"round {header.round} is certified but invalid here: {why}"))
        block = self._validation.block(header.digest)
        selected = None if block is None else tuple(proposer for proposer, _ in block.selection)
        self._ledger.append(header)
        self._unsaved.append((Finished(header.encode(), certificate), header, selected))
        if header.kind is BlockKind.NOOP:
            pass  # The model stays.
        elif header.model in self._models:
            self._models = {header.model: None}
        self._follow()

    def _on_finished(self, peer: int, finished: Finished) -> None:
        certificate = finished.certificate
        try:
            header = read_header(finished.header)
        except InvalidMessage:
            self._reject(peer, Fault.MALFORMED)
            return
        matches = (certificate.value, certificate.round) == (header.digest, header.round)
        if not matches or certificate.step != Step.CERT:
            self._reject(peer, Fault.MALFORMED)
        elif header.round < self.round:
            self._reject(peer, Fault.STALE)
        elif header.round > self.round:
            self._catchup.claim(header.round + 1)
            self._ask(peer)
        else:
            self._check_finished(peer, header, certificate)

    def _check_finished(self, peer: int, header: Header, certificate: Bundle) -> None:
        if self._ledger.link_fault(header, self._desk.verifier) is not None:
            self._reject(peer, Fault.INVALID_BLOCK)
            return
        draws, tracker = self._draws, self._periods.tracker
        if draws.round != header.round:  # Several rounds behind: no round of its own meanwhile.
            draws = self._draws_of(header.round, self._ledger.tip().seed_in)
        verified = draws.verify_bundle(Unverified(certificate), tracker.seen)
        if isinstance(verified, Fault):
            self._reject(peer, verified)
            return
        self._decide(header, verified)
        if self._catchup.goes_on(self.round):
            self._ask(peer)

    # -- behind, ahead --------------------------------------------------------------------------

    def _on_early(self, peer: int, data: bytes, claim: Signed) -> None:
        """Of the round that comes next: its lottery is known already, so it can be verified."""
        seed = self._ledger.seed(claim.round)
        held = self._early.setdefault(claim.round, {})
        if seed is None or data in held:
            self._reject(peer, Fault.DUPLICATE if seed else Fault.TOO_EARLY)
            return
        of_worker = sum(message.worker == claim.worker for _, message in held.values())
        if of_worker >= self._desk.limits.early:
            self._reject(peer, Fault.SURPLUS)
            return
        draws = self._draws_of(claim.round, seed)
        verified = draws.verify(Unverified(claim))
        if isinstance(verified, Fault):
            self._reject(peer, verified)
            return
        held[data] = (peer, verified)

    def _on_ahead(self, peer: int, claim: Signed) -> None:
        """Somebody is further: ask, if it is a member and not only says so."""
        if not self._is_signed(claim.worker, claim.envelope):
            self._reject(peer, Fault.WRONG_SIGNATURE)
            return
        self._reject(peer, Fault.TOO_EARLY)
        self._catchup.claim(claim.round)
        self._ask(peer)

    def _on_old(self, peer: int, claim: Signed) -> None:
        """Somebody is stuck in a round that is over: send its certificate, not too often."""
        self._reject(peer, Fault.STALE)
        stuck = isinstance(claim, Vote) and (claim.step > Step.CERT or claim.period > 0)
        if stuck and self._desk.worker != claim.worker:
            paced = self._catchup.answers.allows(claim.worker, self._desk.now)
            if paced and self._is_signed(claim.worker, claim.envelope):
                self._desk.emit(SendBlocks(claim.worker, claim.round, claim.round))

    def _is_signed(self, worker: int, envelope: Envelope) -> bool:
        key = self._desk.genesis.roster[worker].signing
        return self._desk.verifier.signature(key, envelope.signed, envelope.signature)

    def _ask(self, peer: int) -> None:
        wanted = self._catchup.request(self.round, peer, self._desk.now)
        if wanted is not None:
            self._desk.emit(Send(peer, GetBlocks(self._desk.chain, *wanted).encode()))

    def _ask_if_behind(self) -> None:
        if self._catchup.target > self.round:
            self._questions += 1
            self._ask(self._some_peer())

    def _ask_peer(self) -> None:
        """Still without the newest model: tell somebody else where this worker stands."""
        behind = Behind(self._desk.chain, self.round, 0)
        self._desk.emit(Send(self._some_peer(), behind.encode()))
        if self._desk.memory.lost:
            query = HeadQuery(self._desk.chain, self._desk.memory.nonce)
            self._desk.emit(Broadcast(query.encode(), Urgency.ANSWER))
        self._ask_again()

    def _some_peer(self) -> int:
        params = self._desk.params
        return peer_for(self._desk.worker, self.round, self._questions, params.workers)

    def _on_question(
        self, peer: int, question: GetBlocks | GetUpdates | Behind | HeadQuery
    ) -> None:
        if question.chain != self._desk.chain:
            self._reject(peer, Fault.WRONG_CHAIN)
            return
        if not self._catchup.answers.allows(peer, self._desk.now):
            self._reject(peer, Fault.SURPLUS)
            return
        match question:
            case GetBlocks():
                self._send_blocks(peer, question.first, question.last)
            case GetUpdates():
                self._send_updates(peer, question)
            case Behind():
                self._on_behind(peer, question)
            case HeadQuery():
                self._answer_head(peer, question)

    def _send_blocks(self, peer: int, first: int, last: int) -> None:
        decided = self.round - 1 - len(self._unsaved)
        last = min(last, decided, first + self._desk.limits.blocks_per_answer - 1)
        if 1 <= first <= last:
            self._desk.emit(SendBlocks(peer, first, last))

    def _send_updates(self, peer: int, question: GetUpdates) -> None:
        if question.round != self.round:
            return
        for update_id in question.update_ids:
            update = self._phases.update(update_id)
            if update is not None:
                self._desk.emit(Send(peer, update.envelope.encode(), Urgency.UPDATE))

    def _on_behind(self, peer: int, behind: Behind) -> None:
        if behind.round < self.round:
            self._send_blocks(peer, behind.round, self.round - 1)
        elif behind.round == self.round and self._in_round:
            for bundle in self._periods.evidence_of_progress():
                self._desk.emit(Send(peer, bundle.encode(), Urgency.VOTE))

    def _answer_head(self, peer: int, query: HeadQuery) -> None:
        decided = self.round - 1 - len(self._unsaved)
        part = head_part(self._desk.chain, query.nonce, self._desk.worker, decided)
        envelope = Envelope(Kind.HEAD_ANSWER, part, self._desk.signer.sign(part))
        self._desk.emit(Send(peer, envelope.encode()))

    def _on_head_answer(self, peer: int, answer: HeadAnswer) -> None:
        memory = self._desk.memory
        wanted = memory.lost and answer.nonce == memory.nonce and answer.chain == self._desk.chain
        if not wanted or answer.worker in {self._desk.worker, *memory.answers}:
            self._reject(peer, Fault.UNASKED)
        elif answer.worker >= self._desk.params.workers:
            self._reject(peer, Fault.UNKNOWN_WORKER)
        elif not self._is_signed(answer.worker, answer.envelope):
            self._reject(peer, Fault.WRONG_SIGNATURE)
        else:
            memory.answers[answer.worker] = answer.round
            self._catchup.claim(answer.round + 1)
            self._ask(peer)
            if memory.settle(self.round - 1 - len(self._unsaved)):
                self._desk.persist()
