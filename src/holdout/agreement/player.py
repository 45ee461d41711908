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
from holdout.agreement.answers import Answers
from holdout.agreement.attendance import Attendance
from holdout.agreement.catchup import Catchup, Memory, peer_for
from holdout.agreement.desk import Desk
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
    JobFailed,
    Judged,
    ModelReady,
    PayloadReady,
    Proposed,
    Received,
    Reject,
    Relay,
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
from holdout.agreement.headers import BlockKind, Header, link_fault, read_header
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
)
from holdout.agreement.params import Genesis, Limits, Mode, Timing
from holdout.agreement.round import Round
from holdout.agreement.safety import NEVER, Safety, read_safety
from holdout.agreement.sortition import Role
from holdout.agreement.validation import Tools, Verdict
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
            attendance=Attendance(self._ledger.round),
        )
        self._decode = decode
        self._tools = tools or Tools()
        self._catchup = Catchup(timing, limits)
        self._answers = Answers(self._desk)
        self._models: dict[Digest, None] = {}
        self._unsaved: list[tuple[Finished, Header, tuple[int, ...] | None]] = []
        self._early: dict[int, dict[bytes, tuple[int, Signed]]] = {}
        self._ahead: dict[int, tuple[int, Finished]] = {}
        self._questions = 0
        self._in_round = False
        self._round = self._new_round()

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
    def _decided(self) -> int:
        """The newest round that is decided and in the store."""
        return self.round - 1 - len(self._unsaved)

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
        return self._round.size() + sum(map(len, self._early.values())) + len(self._ahead)

    def holds(self, role: Role) -> bool:
        """Whether this worker was drawn for a role of this round (`P` or `V`)."""
        return self._round.proceedings.proof(role) is not None

    def wait(self, timing: Timing) -> None:
        """Wait so long from the next timer on: for a driver that measures its network."""
        self._desk.timing = timing

    # -- the machine ----------------------------------------------------------------------------

    def handle(self, event: Event, now: int) -> list[Action]:
        """What must be done about this event, in order."""
        self._desk.now = now
        self._on_event(event)
        self._count_own()
        actions, self._desk.actions = self._desk.actions, []
        return actions

    def _on_event(self, event: Event) -> None:
        match event:
            case Received():
                self._on_received(event.peer, event.data)
            case TimerFired():
                self._on_timer(event.timer)
            case Proposed():
                self._round.proceedings.on_proposed(event)
            case Judged():
                self._round.proceedings.on_judged(event)
            case ModelReady():
                self._on_model(event.digest)
            case Start():
                self._on_start(event.nonce)
            case JobFailed():
                pass  # This worker misses a role; its agreement goes on.
            case PayloadReady() | BlockReady() | Combined():
                self._on_part(event)
            case _:
                assert_never(event)

    def _on_part(self, event: PayloadReady | BlockReady | Combined) -> None:
        """Something that a block needs."""
        validation = self._round.validation
        match event:
            case PayloadReady():
                self._round.on_payload(event.digest, valid=event.valid)
            case BlockReady():
                validation.add(event.digest, event.data)
            case Combined():
                if event.model is not None:
                    self._models[event.model] = None
                validation.combined(event)
        if self._in_round:
            self._round.on_progress()

    def _count_own(self) -> None:
        """What this worker has signed is counted after the rule that signed it has finished."""
        while True:
            if self._in_round and self._desk.timing.early:
                self._round.hurry()
            if not self._desk.own:
                return
            message = self._desk.own.popleft()
            if self._in_round and message.round == self.round:
                self._round.take(self._desk.worker, b"", message)

    # -- rounds ---------------------------------------------------------------------------------

    def _on_start(self, nonce: bytes) -> None:
        self._desk.memory.nonce = nonce
        self._ask_head()
        self._follow()

    def _ask_head(self) -> None:
        """Without memory: how far is the chain? Until enough others have told."""
        memory = self._desk.memory
        if memory.lost and memory.recoverable:
            query = HeadQuery(self._desk.chain, memory.nonce)
            self._desk.emit(Broadcast(query.encode(), Urgency.ANSWER))

    def _new_round(self) -> Round:
        tip = self._ledger.tip()
        draws = self._draws_of(tip.round, tip.seed_in)
        return Round(self._desk, tip, draws, self._tools, self._decide)

    def _draws_of(self, round_number: int, seed: Digest) -> Draws:
        return Draws(self._desk.genesis, self._desk.verifier, round_number=round_number, seed=seed)

    def _enter(self) -> None:
        """Time zero of a round; or, after a crash, wherever this worker was in it."""
        desk = self._desk
        self._in_round = True
        self._round = self._new_round()
        desk.emit(Entered(self.round, self.period))
        desk.emit(Forget(self.round))
        self._ask_head()
        for header in map(read_header, desk.safety.held.values()):
            self._models[header.model] = None
        self._round.begin()
        if desk.safety.mine or self.period:
            behind = Behind(desk.chain, self.round, self.period)
            desk.emit(Broadcast(behind.encode(), Urgency.ANSWER))
            self._repeat_own()
        for past in [number for number in self._early if number < self.round]:
            del self._early[past]
        for data, (peer, message) in self._early.pop(self.round, {}).items():
            if self._in_round and message.round == self.round:
                self._round.take(peer, data, message)

    def _repeat_own(self) -> None:
        """What was signed before a crash is sent again and counts again."""
        desk = self._desk
        for slot, data in desk.safety.mine.items():
            if slot[0] in {Kind.LEAD, Kind.VOTE}:
                desk.send_again(slot)
            message = self._decode(data).claim
            assert isinstance(message, Update | Ballot | Lead | Vote)  # noqa: S101
            desk.own.append(message)

    def _on_timer(self, timer: Timer) -> None:
        if not self._in_round:
            if (timer.kind, timer.round) == (TimerKind.RETRY, self.round):
                self._ask_peer()
        elif (timer.round, timer.period) == (self.round, self.period):
            self._round.on_timer(timer)
            if timer.kind is TimerKind.RETRY:
                self._ask_head()
                self._ask_if_behind()

    # -- the chain ------------------------------------------------------------------------------

    def _decide(self, header: Header, certificate: Bundle) -> None:
        """A certificate for the current round: it is final."""
        validation = self._round.validation
        if validation.verdict(header.digest) is Verdict.INVALID:
            why = validation.reason(header.digest)
            self._desk.emit(Alarm(f"round {header.round} is certified but invalid here: {why}"))
        block = validation.block(header.digest)
        selected = None if block is None else tuple(proposer for proposer, _ in block.selection)
        self._ledger.append(header)
        self._unsaved.append((Finished(header.encode(), certificate), header, selected))
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
            self._unsaved = []
            desk.memory.settle(self.round - 1)
            desk.safety = Safety(round=self.round)
            finished = tuple(item for item, _, _ in unsaved)
            desk.persist(((BlobKind.MODEL, self._ledger.model),), finished)
            for _, header, selected in unsaved:
                stepped = header.kind is BlockKind.STEP
                desk.emit(Commit(header.round, header.digest, header.model, stepped, selected))
            desk.emit(Relay(finished[-1].encode(), Urgency.VOTE, desk.worker))
        self._models = {self._ledger.model: None}
        self._questions = 0
        self._enter()

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
            case Bundle() | Evidence():
                self._on_gathered(peer, message)
            case Finished():
                self._on_finished(peer, message)
            case HeadAnswer():
                self._on_head_answer(peer, message)
            case GetBlocks() | GetUpdates() | Behind() | HeadQuery():
                self._answers.give(peer, message, self._decided, self._round)
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
            self._round.receive(peer, data, claim)
        elif ahead <= 1 and not getattr(claim, "period", 0):
            self._on_early(peer, data, claim)
        else:
            self._on_ahead(peer, claim)

    def _on_gathered(self, peer: int, message: Bundle | Evidence) -> None:
        """A bundle, or evidence."""
        if isinstance(message, Evidence):
            if self._in_round:
                self._round.receive_evidence(peer, message)
            else:
                self._reject(peer, Fault.STALE)
        elif message.chain != self._desk.chain:
            self._reject(peer, Fault.WRONG_CHAIN)
        elif message.round != self.round or not self._in_round:
            early = message.round >= self.round
            self._reject(peer, Fault.TOO_EARLY if early else Fault.STALE)
        else:
            self._round.receive_bundle(peer, message)

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
            if header.round < self.round + self._desk.limits.blocks_per_answer:
                self._ahead[header.round] = (peer, finished)
            self._ask(peer)
        else:
            self._check_finished(peer, header, certificate)
            self._take_ahead()

    def _take_ahead(self) -> None:
        """Rounds whose certificates came out of order, nobody has checked them yet."""
        while self.round in self._ahead:
            peer, finished = self._ahead.pop(self.round)
            self._check_finished(peer, read_header(finished.header), finished.certificate)
        for past in [number for number in self._ahead if number < self.round]:
            del self._ahead[past]

    def _check_finished(self, peer: int, header: Header, certificate: Bundle) -> None:
        desk = self._desk
        if link_fault(header, self._ledger.tip(), desk.genesis, desk.verifier) is not None:
            self._reject(peer, Fault.INVALID_BLOCK)
            return
        draws, tracker = self._round.draws, self._round.periods.tracker
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
        """Somebody is slow, or stuck in a round that is over: then send it the certificate."""
        self._reject(peer, Fault.STALE)
        if claim.round == self.round - 1 and self._is_signed(claim.worker, claim.envelope):
            self._desk.attendance.note(claim.envelope.kind, claim.worker, claim.round)
        stuck = isinstance(claim, Vote) and (claim.step > Step.CERT or claim.period > 0)
        if stuck and self._desk.worker != claim.worker:
            paced = self._answers.pace.allows(claim.worker, self._desk.now)
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
        self._ask_head()
        self._ask_again()

    def _some_peer(self) -> int:
        params = self._desk.params
        return peer_for(self._desk.worker, self.round, self._questions, params.workers)

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
            if memory.settle(self._decided):
                self._desk.persist()
