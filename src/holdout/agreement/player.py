"""The agreement state machine of one worker: `handle(event, now)` -> actions.

A round has two halves. In the learning half proposers announce gradients and voters send ballots
(`learning_half`). In the other half leaders announce blocks and the consensus committee votes,
period after period, until a certificate exists (`periods`):

    FILTER     SOFT   the best acceptable lead, when the phase ends
    DEADLINE   CERT   (in FILTER too) the value with a soft quorum, once its block is valid here
    RECOVERY   LATE   the value with a soft quorum, if its block is valid here
               REDO   otherwise the value that was carried over from the period before
               DOWN   if there is neither: the next period begins with a fresh block

A quorum of LATE, REDO or DOWN ends the period; a quorum of CERT ends the round. Rounds never fork
because a worker that voted CERT recovers with LATE or not at all, and never votes CERT after a
recovery vote of the same period.

This module takes in messages, from peers and from the worker itself, and goes from round to round;
`chain_sync` follows rounds that others have decided. Bad input leads to a `Reject`, which is
counted; nothing raises, whatever the bytes.
"""

from collections.abc import Callable, Sequence
from typing import assert_never

from holdout.agreement import events as ev
from holdout.agreement import messages as msg
from holdout.agreement import wire
from holdout.agreement.chain_sync import ChainAnswers, ChainSync, EarlyMessages
from holdout.agreement.context import PlayerContext
from holdout.agreement.headers import BlockKind, Header, Ledger, read_header
from holdout.agreement.keys import Signer, Verifier
from holdout.agreement.params import Genesis, Limits, Mode, Timing
from holdout.agreement.round import Round
from holdout.agreement.safety import NEVER, Phase, Safety, SigningMemory, read_safety
from holdout.agreement.sortition import Role
from holdout.agreement.validation import Tools, Validity
from holdout.agreement.waits import Waits
from holdout.agreement.wire import Unverified
from holdout.errors import InvalidMessage
from holdout.ids import Digest

MODELS_MAX = 64
"""How many models of a round a player remembers to be in hand."""


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
        finished: Sequence[msg.Finished] = (),
        decode: Callable[[bytes], Unverified[msg.Message]] = wire.decode,
        tools: Tools | None = None,
    ) -> None:
        """Start from what the worker's store holds.

        Args:
            genesis: The network.
            worker: This worker's place in the roster.
            signer: Its keys.
            verifier: Checks what others sign.
            timing: How long it waits.
            safety: The state it wrote last (`safety.initial` at registration); None if it is lost.
            finished: The decided rounds in its store, all or enough of the last ones.
            decode: `wire.decode`, or a version that remembers its answers.
            tools: Functions on blocks, or versions that remember their answers.
        """
        self._ledger = Ledger(genesis)
        for item in finished:
            self._ledger.append(read_header(item.header))
        limits = Limits()
        stored = None if safety is None else read_safety(safety, genesis.chain)
        state = self._continue(stored)
        self._context = PlayerContext(
            genesis,
            worker,
            signer,
            verifier,
            timing,
            limits,
            safety=state,
            memory=SigningMemory(
                state.votes_from, genesis.params.quorum, genesis.params.mode is Mode.ALL
            ),
            waits=Waits(
                genesis.params.workers, genesis.params.byzantine, timing, self._ledger.round
            ),
        )
        self._decode = decode
        self._tools = tools or Tools()
        self._answers = ChainAnswers(self._context)
        self._chain_sync = ChainSync(self._context, self._ledger, self._decide)
        self._models: dict[Digest, None] = {}
        self._early_messages = EarlyMessages(limits.early_messages)
        self._in_round = False
        self._round = self._new_round()

    def _continue(self, stored: Safety | None) -> Safety:
        """The state to go on from, as far as the store can tell."""
        if stored is None:
            return Safety(round=self._ledger.round, votes_from=NEVER)
        if stored.round == self._ledger.round:
            return stored
        # Rounds are missing in the store, so this worker may have voted up to `stored.round`.
        return Safety(self._ledger.round, votes_from=max(stored.votes_from, stored.round + 1))

    # -- for whoever watches --------------------------------------------------------------------

    @property
    def round(self) -> int:
        """The round to be decided."""
        return self._ledger.round

    @property
    def period(self) -> int:
        """The current period."""
        return self._context.safety.period

    @property
    def phase(self) -> Phase:
        """How far this worker is in the period."""
        return self._context.safety.phase

    @property
    def model(self) -> Digest:
        """The newest decided model."""
        return self._ledger.model

    @property
    def observer(self) -> bool:
        """Whether this worker only watches, because it may have forgotten some of its votes."""
        return self._context.safety.round < self._context.memory.votes_from

    @property
    def halted(self) -> bool:
        """Whether this worker has stopped voting for good."""
        return self._context.halted

    def held(self) -> int:
        """How much is held because of peers; bounded, whatever they send."""
        parts = (self._round, self._early_messages, self._chain_sync)
        return sum(part.size() for part in parts) + len(self._models)

    def holds(self, role: Role) -> bool:
        """Whether this worker was drawn for a role of this round (`P` or `V`)."""
        return self._round.learning.proof(role) is not None

    @property
    def waits(self) -> Waits:
        """When others were heard, and who is waited for; the driver says there who is away."""
        return self._context.waits

    # -- the machine ----------------------------------------------------------------------------

    def handle(self, event: ev.Event, now: int) -> list[ev.Action]:
        """Take an event; return the actions that the driver must carry out, in order."""
        self._context.now = now
        self._on_event(event)
        self._count_own()
        actions, self._context.actions = self._context.actions, []
        return actions

    def _on_event(self, event: ev.Event) -> None:
        match event:
            case ev.Received():
                self._on_received(event.peer, event.data)
            case ev.TimerFired():
                self._on_timer(event.timer)
            case ev.Proposed():
                self._round.learning.on_proposed(event)
            case ev.Judged():
                self._round.learning.on_judged(event)
            case ev.ModelReady():
                self._on_model(event.digest)
            case ev.Start():
                self._on_start(event.nonce)
            case ev.JobFailed():
                pass  # This worker misses a role; its agreement goes on.
            case ev.PayloadReady() | ev.BlockReady() | ev.Combined():
                self._on_part(event)
            case ev.PayloadFailed():
                self._round.on_payload_failed(event.digest)
            case _:
                assert_never(event)

    def _on_part(self, event: ev.PayloadReady | ev.BlockReady | ev.Combined) -> None:
        """Take something that a block needs, or a block."""
        validation = self._round.validation
        match event:
            case ev.PayloadReady():
                self._round.on_payload(event.digest, valid=event.valid)
            case ev.BlockReady():
                validation.add(event.digest, event.data)
            case ev.Combined():
                if event.model is not None:
                    self._hold_model(event.model)
                validation.combined(event)
        if self._in_round:
            self._round.on_progress()

    def _hold_model(self, model: Digest) -> None:
        """Note that a model is in hand; liars' blocks may lead to many, so old ones are dropped."""
        self._models[model] = None
        if len(self._models) > MODELS_MAX:  # If one is wanted later, the driver reports it again.
            self._models.pop(next(name for name in self._models if name != self._ledger.model))

    def _count_own(self) -> None:
        """Count what this worker has signed, after the rule that signed it has finished."""
        while True:
            if self._in_round and self._context.timing.ends_waits_early:
                self._round.hurry()
            if not self._context.uncounted:
                return
            message = self._context.uncounted.popleft()
            if self._in_round and message.round == self.round:
                self._round.take(self._context.worker, b"", message)

    # -- rounds ---------------------------------------------------------------------------------

    def _on_start(self, nonce: bytes) -> None:
        self._context.memory.nonce = nonce
        self._chain_sync.ask_head()
        self._follow()

    def _new_round(self) -> Round:
        tip = self._ledger.tip()
        draws = self._chain_sync.draws_of(tip.round, tip.seed_in)
        return Round(self._context, tip, draws, self._tools, self._decide)

    def _enter(self) -> None:
        """Begin a round; after a crash, go on from where this worker was in it."""
        context = self._context
        self._in_round = True
        self._round = self._new_round()
        context.emit(ev.Entered(self.round, self.period))
        context.emit(ev.Forget(self.round))
        self._chain_sync.ask_head()
        for header in map(read_header, context.safety.held.values()):
            self._models[header.model] = None
        self._round.begin()
        if context.safety.mine or self.period:
            behind = msg.Behind(context.chain, self.round, self.period)
            context.emit(ev.Broadcast(behind.encode(), ev.Urgency.ANSWER))
            self._repeat_own()
        for peer, data, message in self._early_messages.take(self.round):
            if self._in_round and message.round == self.round:
                self._round.take(peer, data, message)

    def _repeat_own(self) -> None:
        """Send again, and count again, what was signed before a crash."""
        context = self._context
        for slot, data in context.safety.mine.items():
            if slot[0] in {msg.Kind.LEAD, msg.Kind.VOTE}:
                context.send_again(slot)
            message = self._decode(data).claim
            assert isinstance(message, msg.SignedMessage)  # noqa: S101
            context.uncounted.append(message)

    def _on_timer(self, timer: ev.Timer) -> None:
        if not self._in_round:
            if (timer.kind, timer.round) == (ev.TimerKind.RETRY, self.round):
                # The newest model is still missing: another peer may help.
                self._chain_sync.tell_somebody()
                self._chain_sync.ask_head()
                self._ask_again()
        elif (timer.round, timer.period) == (self.round, self.period):
            self._round.on_timer(timer)
            if timer.kind is ev.TimerKind.RETRY:
                self._chain_sync.ask_head()
                self._chain_sync.ask_if_behind()

    # -- the chain ------------------------------------------------------------------------------

    def _decide(self, header: Header, certificate: msg.Bundle) -> None:
        """The current round has a certificate: it is decided for good."""
        validation = self._round.validation
        if validation.verdict(header.digest) is Validity.INVALID:
            why = validation.reason(header.digest)
            self._context.emit(
                ev.Alarm(f"round {header.round} is certified but invalid here: {why}")
            )
        block = validation.block(header.digest)
        selected = None if block is None else tuple(proposer for proposer, _ in block.selection)
        self._ledger.append(header)
        finished = msg.Finished(header.encode(), certificate)
        self._chain_sync.unsaved.append((finished, header, selected))
        self._follow()

    def _follow(self) -> None:
        """Go on to the next round if the newest model is here; otherwise ask for it."""
        self._in_round = False
        if self._ledger.model in self._models:
            self._commit()
            return
        hints: tuple[int, ...] = ()
        if self._chain_sync.unsaved:
            finished, _, _ = self._chain_sync.unsaved[-1]
            hints = tuple(mark.worker for mark in finished.certificate.marks)
        self._context.emit(ev.Want(ev.BlobKind.MODEL, self._ledger.model, hints))
        self._ask_again()

    def _ask_again(self) -> None:
        self._chain_sync.questions += 1
        at = self._context.now + self._context.timing.retry_after(
            min(self._chain_sync.questions, 3)
        )
        self._context.emit(ev.SetTimer(ev.Timer(ev.TimerKind.RETRY, self.round, 0), at))

    def _on_model(self, model: Digest) -> None:
        self._models[model] = None
        if not self._in_round and model == self._ledger.model:
            self._commit()

    def _commit(self) -> None:
        """The newest decided model is here: make it durable, report it, and go on."""
        context, unsaved = self._context, self._chain_sync.unsaved
        if unsaved:
            self._chain_sync.unsaved = []
            context.memory.settle(self.round - 1)
            # Blocks behind this worker's votes are on disk already; others are kept if in hand.
            blocks = tuple(
                (ev.BlobKind.BLOCK, header.digest)
                for _, header, selected in unsaved
                if selected is not None and header.digest not in context.safety.held
            )
            context.safety = Safety(round=self.round)
            finished = tuple(item for item, _, _ in unsaved)
            context.persist(((ev.BlobKind.MODEL, self._ledger.model), *blocks), finished)
            for _, header, selected in unsaved:
                stepped = header.kind is BlockKind.STEP
                context.emit(
                    ev.Commit(header.round, header.digest, header.model, stepped, selected)
                )
            context.emit(ev.Relay(finished[-1].encode(), ev.Urgency.VOTE, context.worker))
        self._models = {self._ledger.model: None}
        self._chain_sync.questions = 0
        self._enter()

    # -- what comes from peers ------------------------------------------------------------------

    def _reject(self, peer: int, fault: ev.MessageFault) -> None:
        self._context.emit(ev.Reject(peer, fault))

    def _on_received(self, peer: int, data: bytes) -> None:
        try:
            unverified = self._decode(data)
        except InvalidMessage:
            self._reject(peer, ev.MessageFault.MALFORMED)
            return
        message = unverified.claim
        match message:
            case msg.Update() | msg.BallotMessage() | msg.Lead() | msg.Vote():
                self._on_signed(peer, data, message)
            case msg.Bundle() | msg.Evidence():
                self._on_gathered(peer, message)
            case msg.Finished():
                self._chain_sync.on_finished(peer, message, self._round)
            case msg.HeadAnswer():
                self._chain_sync.on_head_answer(peer, message)
            case msg.GetBlocks() | msg.GetUpdates() | msg.Behind() | msg.HeadQuery():
                self._answers.give(peer, message, self._chain_sync.decided, self._round)
            case _:
                assert_never(message)

    def _on_signed(self, peer: int, data: bytes, claim: msg.SignedMessage) -> None:
        ahead = claim.round - self.round
        if claim.chain != self._context.chain:
            self._reject(peer, ev.MessageFault.WRONG_CHAIN)
        elif claim.worker >= self._context.params.workers:
            self._reject(peer, ev.MessageFault.UNKNOWN_WORKER)
        elif ahead < 0:
            self._chain_sync.on_old(peer, claim)
        elif ahead == 0 and self._in_round:
            self._round.receive(peer, data, claim)
        elif ahead <= 1 and not getattr(claim, "period", 0):
            self._on_early(peer, data, claim)
        else:
            self._chain_sync.on_ahead(peer, claim)

    def _on_gathered(self, peer: int, message: msg.Bundle | msg.Evidence) -> None:
        """Take a bundle or evidence, which concern the current round only."""
        if isinstance(message, msg.Evidence):
            if self._in_round:
                self._round.receive_evidence(peer, message)
            else:
                self._reject(peer, ev.MessageFault.STALE)
        elif message.chain != self._context.chain:
            self._reject(peer, ev.MessageFault.WRONG_CHAIN)
        elif message.round != self.round or not self._in_round:
            early = message.round >= self.round
            self._reject(peer, ev.MessageFault.TOO_EARLY if early else ev.MessageFault.STALE)
        else:
            self._round.receive_bundle(peer, message)

    def _on_early(self, peer: int, data: bytes, claim: msg.SignedMessage) -> None:
        """Keep a message of the coming round; its lottery is known, so it can be verified."""
        seed = self._ledger.seed(claim.round)
        if seed is None:
            self._reject(peer, ev.MessageFault.TOO_EARLY)
            return
        found = self._early_messages.fault(data, claim)
        if found is None:
            draws = self._chain_sync.draws_of(claim.round, seed)
            found = self._early_messages.add(peer, data, draws.verify(Unverified(claim)))
        if found is not None:
            self._reject(peer, found)
