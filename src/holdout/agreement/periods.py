"""The agreement half of a round: leads, votes and recovery, period after period.

The rules are those in the table of the module `player`, one method each. Safety rests on three
details: no CERT vote follows a recovery vote in the same period; recovery prefers LATE over REDO
over DOWN, by what is known at the time of voting; and what a vote rests on (why the period was
entered, its soft quorum, the block behind a CERT vote) is durable before the vote leaves.
"""

from dataclasses import dataclass, field

from holdout.agreement import events as ev
from holdout.agreement.blocks import Draft, assemble
from holdout.agreement.codec import BOTTOM, digest, u32
from holdout.agreement.context import Blobs, PlayerContext
from holdout.agreement.draws import Draws
from holdout.agreement.learning_half import LearningMessages
from holdout.agreement.messages import Bundle, Kind, Lead, VoteStep, lead_part, vote_part
from holdout.agreement.params import ATTEMPTS_MAX, Mode
from holdout.agreement.safety import OwnSlot, Phase
from holdout.agreement.sortition import Role, next_seed, seed_alpha
from holdout.agreement.validation import Validation, Validity
from holdout.agreement.votes import Leads, Reached, Tracker
from holdout.ids import Digest


@dataclass(slots=True)
class Periods:
    """The agreement half of one round: its current period, leads and votes."""

    context: PlayerContext
    draws: Draws
    learning_messages: LearningMessages
    validation: Validation
    tracker: Tracker
    leads: Leads = field(default_factory=Leads)
    started: bool = False
    """Whether the learning half is over and the timers of a period run."""
    _draft: Draft | None = None
    _leader: tuple[int, bytes | None] | None = None
    """A period and this worker's credential to lead it."""
    _retries: int = 0

    @property
    def round(self) -> int:
        """The round that is being decided."""
        return self.context.safety.round

    @property
    def period(self) -> int:
        """The current period."""
        return self.context.safety.period

    @property
    def phase(self) -> Phase:
        """How far this worker is in the period."""
        return self.context.safety.phase

    # -- entering -------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin period 0, at T_A: lead if drawn, and start the timers."""
        self.started = True
        self.context.waits.begin_period(self.round, self.context.now)
        self._set_timers()
        self.lead()
        self.try_cert()

    def resume(self) -> None:
        """Go on after a crash, as if the period began now; a recovery continues at once."""
        for bundle in self.context.safety.bundles:
            self.tracker.add_bundle(bundle)
            self.tracker.newly_reached(bundle.period, bundle.step, bundle.value)
        self.prepare()
        if any(
            kind is Kind.VOTE and step > VoteStep.CERT and period == self.period
            for kind, period, step in self.context.safety.mine
        ):
            self.context.safety.phase = Phase.RECOVERY
        self.started = True
        if self.phase is Phase.RECOVERY:
            self._set_timer(ev.TimerKind.RETRY, self.context.now)
        else:
            self._set_timers()

    def enter(self, period: int, *, with_lead: bool) -> None:
        """Enter a period: a quorum ended the one before, or was reached in this one already."""
        safety = self.context.safety
        safety.period, safety.phase = period, Phase.FILTER
        self.started = True
        self._draft, self._retries = None, 0
        self.tracker.forget_before(period - 1)
        self.leads.forget_before(period)
        safety.forget_before(period)
        self._remember()
        self.prepare()
        self.context.emit(ev.Entered(self.round, period))
        self._set_timers()
        # At once, not only at the next retry: what one worker knows when it enters, all must know
        # by the time of their soft vote.
        for reached in self._reasons():
            self._broadcast(reached)
        if with_lead:
            self.lead()
        self.try_cert()

    def prepare(self) -> None:
        """Keep and check the blocks that may be voted on in this period; forget the others."""
        self.validation.enter(
            self.period,
            active=self.checks_blocks(self.period),
            needed=self.tracker.values().union(self.context.safety.held),
            announced=self.learning_messages.announced(),
        )
        carried = self.carried()
        if carried is not None:
            self.want_block(carried)
        for lead in self.leads.best(self.period):
            self.want_led(lead)

    def checks_blocks(self, period: int) -> bool:
        """Whether this worker may have to vote in a period, and so must check its blocks.

        In mode `self` everybody must: whoever is ready to certify a block, drawn or not, must not
        contradict it later.
        """
        if self.context.params.mode is not Mode.SHUFFLE:
            return True
        members = self.draws.expected(Role.COMMITTEE, period)
        return members is None or self.context.worker in members

    def _set_timers(self) -> None:
        timing, now = self.context.timing, self.context.now
        self._set_timer(ev.TimerKind.FILTER, now + timing.filter_after(self.period))
        self._set_timer(ev.TimerKind.DEADLINE, now + timing.deadline_after(self.period))

    def _set_timer(self, kind: ev.TimerKind, at: int) -> None:
        self.context.emit(ev.SetTimer(ev.Timer(kind, self.round, self.period), at))

    # -- why this period was entered ---------------------------------------------------------------

    def _reasons(self) -> list[Reached]:
        """The quorums that ended the period before: for at most one block, and for bottom."""
        return self.tracker.quorums(self.period - 1, (VoteStep.LATE, VoteStep.REDO, VoteStep.DOWN))

    def carried(self) -> Digest | None:
        """The value that was carried over from the period before, if any."""
        return next((r.value for r in self._reasons() if r.value != BOTTOM), None)

    def bottom(self) -> bool:
        """Whether the period before ended with a quorum for bottom, that is for a fresh block."""
        return any(reached.value == BOTTOM for reached in self._reasons())

    def bound_to(self) -> Digest | None:
        """The value that this period must repeat: carried over, without a quorum for bottom."""
        return None if self.bottom() else self.carried()

    # -- leading --------------------------------------------------------------------------------

    def lead(self) -> None:
        """If drawn to lead, announce a block: a fresh one, or the one that was carried over."""
        slot = (Kind.LEAD, self.period, 0)
        if not self.context.may_sign:
            return
        if self.context.signed(slot) is not None:
            self.context.send_again(slot)
            return
        proof = self._lead_proof()
        if proof is None:
            return
        if self.period == 0 or self.bottom():
            self._draft = self._assemble()
            self.validation.want(self._draft.needs)
            self.go_on_leading()
        elif (value := self.carried()) is not None:
            header = self.validation.header(value)
            if header is not None:
                self._announce(proof, header.original_period, value, ())

    def leads_now(self) -> bool:
        """Whether this worker is drawn to lead the period."""
        return self._lead_proof() is not None

    def _lead_proof(self) -> bytes | None:
        if self._leader is None or self._leader[0] != self.period:
            proof = self.draws.own_proof(
                self.context.signer, Role.LEADER, self.context.worker, self.period
            )
            self._leader = (self.period, proof)
        return self._leader[1]

    def _assemble(self) -> Draft:
        """The draft of a block from everything that is held by now."""
        tip = self.validation.tip
        seed_proof, out = b"", None
        if self.period == 0:
            seed_proof, out = self.context.signer.prove(
                seed_alpha(self.context.chain, tip.round, tip.seed_in)
            )
        return assemble(
            tip,
            self.context.genesis,
            leader=self.context.worker,
            original_period=self.period,
            seed=next_seed(tip.round, tip.seed_in, self.context.worker, out, tip.old_block),
            seed_proof=seed_proof,
            updates=self.learning_messages.updates(),
            ballots=self.learning_messages.ballots(),
            evidence=tuple(self.learning_messages.proofs().values()),
        )

    def go_on_leading(self) -> None:
        """Announce this worker's block as soon as everything that it needs is there."""
        if self._draft is None:
            return
        block = self.validation.finish(self._draft)
        proof = self._lead_proof()
        if block is None or proof is None:
            return
        self._draft = None
        value = block.header.digest
        self.validation.add_own(block)
        self.context.emit(ev.Keep(value, block.encode()))
        self._announce(proof, self.period, value, ((ev.BlobKind.BLOCK, value),))

    def _announce(self, proof: bytes, original: int, value: Digest, blobs: Blobs) -> None:
        part = lead_part(
            self.context.chain, self.round, self.period, self.context.worker, original, value
        )
        self.context.sign((Kind.LEAD, self.period, 0), part, proof, blobs)

    # -- soft and cert --------------------------------------------------------------------------

    def filter(self) -> None:
        """Give the soft vote, for the best acceptable lead; at most one in a period."""
        self.context.safety.phase = Phase.DEADLINE
        bound = self.bound_to()
        if bound is not None:
            self._vote(VoteStep.SOFT, bound)
            return
        for lead in self.leads.best(self.period):
            fresh = lead.original_period == self.period
            if self.acceptable(lead) if fresh else lead.value == self.carried():
                self._vote(VoteStep.SOFT, lead.value)
                return

    def acceptable(self, lead: Lead) -> bool:
        """Whether a fresh lead may get the soft vote.

        Its block must be valid, made by this leader and, in the first periods, include all ballots
        that were held in time.
        """
        header = self.validation.header(lead.value)
        if header is None or self.validation.verdict(lead.value) is not Validity.VALID:
            return False
        if (header.leader, header.original_period) != (lead.worker, lead.period):
            return False
        return self.period > self.context.params.inclusion_periods or self._includes(lead.value)

    def _includes(self, value: Digest) -> bool:
        block = self.validation.block(value)
        if block is None:
            return False
        accounted = {ballot.worker for ballot in block.ballots}
        for evidence in block.evidence:
            convicted = self.draws.convict(evidence)
            if not isinstance(convicted, str):
                accounted.add(convicted.worker)
        return all(worker in accounted for worker in self.learning_messages.in_time)

    def staged(self) -> Digest | None:
        """The value with a soft quorum in this period."""
        reached = self.tracker.quorums(self.period, (VoteStep.SOFT,))
        return reached[0].value if reached else None

    def committable(self) -> Digest | None:
        """The value with a soft quorum in this period, if its block is valid here."""
        value = self.staged()
        if value is None or self.validation.verdict(value) is not Validity.VALID:
            return None
        return value

    def try_cert(self) -> None:
        """Give the cert vote if possible; never after a recovery vote in the same period."""
        value = self.committable()
        if value is not None and self.phase is not Phase.RECOVERY:
            self._vote(VoteStep.CERT, value)

    # -- recovery -------------------------------------------------------------------------------

    def deadline(self) -> None:
        """The period has taken too long: begin its recovery."""
        if self.phase is Phase.FILTER:
            self.filter()
        self.context.safety.phase = Phase.RECOVERY
        self.recover()
        self._set_retry()

    def retry(self) -> None:
        """The period is still not over: repeat the recovery, by what is known now."""
        self._retries += 1
        self.recover()
        self._set_retry()

    def _set_retry(self) -> None:
        if self.context.params.mode is Mode.SELF and self._retries < ATTEMPTS_MAX:
            interval = 4 * self.context.timing.delay << self._retries
        else:
            interval = self.context.timing.retry_after(self._retries)
        name = digest("jitter", u32(self.context.worker), u32(self.period), u32(self._retries))
        jitter = int.from_bytes(name[:4], "big") % (interval // 4 + 1)
        self._set_timer(ev.TimerKind.RETRY, self.context.now + interval + jitter)

    def recover(self) -> None:
        """Vote LATE, else REDO, else DOWN, by what is known now; then repeat earlier messages."""
        said = tuple(self.context.safety.mine)
        shift = 3 * self._attempt()
        value, bound = self.committable(), self.bound_to()
        if value is not None:
            self._vote(VoteStep.LATE + shift, value)
        elif (Kind.VOTE, self.period, VoteStep.CERT) in self.context.safety.mine:
            pass  # The block is no longer here, but nothing may contradict the CERT vote.
        elif bound is not None:
            self._vote(VoteStep.REDO + shift, bound)
        else:
            self._vote(VoteStep.DOWN + shift, BOTTOM)
        self.resync(said)

    def _attempt(self) -> int:
        return min(self._retries, ATTEMPTS_MAX - 1) if self.context.params.mode is Mode.SELF else 0

    def resync(self, said: tuple[OwnSlot, ...]) -> None:
        """Repeat earlier messages, and send what brings others to where this worker is."""
        for slot in said:
            if slot[0] in {Kind.UPDATE, Kind.BALLOT} or slot[1] == self.period:
                self.context.send_again(slot)
        for bundle in self.progress_bundles():
            self.context.emit(ev.Broadcast(bundle.encode(), ev.Urgency.VOTE))
        value = self.staged()
        if value is not None:
            self.want_block(value)

    def want_block(self, value: Digest, *hints: int) -> None:
        """Have a block fetched from these workers, then from those who voted for it."""
        if self.validation.header(value) is not None:
            return
        voters = self.tracker.voters(self.period, VoteStep.SOFT, value)
        if not voters:  # Carried on from the period before.
            voters = self.tracker.voters(self.period - 1, VoteStep.LATE, value)
        self.context.emit(ev.Want(ev.BlobKind.BLOCK, value, (*hints, *voters)))

    def want_led(self, lead: Lead, *hints: int) -> None:
        """Have the block of a lead fetched, if this worker may have to vote for it."""
        # A block that was carried over is fetched when its quorum is seen: anybody can claim one.
        fresh = lead.original_period == lead.period
        if fresh and self.validation.active:
            best = self.leads.best(lead.period)[: self.context.limits.bodies]
            if lead in best:
                self.want_block(lead.value, lead.worker, *hints)

    # -- voting ---------------------------------------------------------------------------------

    def _vote(self, step: int, value: Digest) -> None:
        slot = (Kind.VOTE, self.period, step)
        if not self.context.may_sign or self.context.signed(slot) is not None:
            return
        blobs = self._back(step, value)
        self._remember()
        proof = self.draws.own_proof(
            self.context.signer, Role.COMMITTEE, self.context.worker, self.period, step
        )
        if proof is None:
            # It would vote so, but is not drawn. It must not contradict that after a crash either.
            if self.context.params.mode is Mode.SELF:
                self.context.persist(blobs)
            return
        part = vote_part(
            self.context.chain, self.round, self.period, step, self.context.worker, value
        )
        self.context.sign(slot, part, proof, blobs)

    def _back(self, step: int, value: Digest) -> Blobs:
        """The block and model that a CERT or LATE vote vouches for; they must outlive a crash."""
        if step == VoteStep.SOFT or value == BOTTOM or self.committable() != value:
            return ()
        header = self.validation.header(value)
        assert header is not None  # noqa: S101  # It is committable.
        self.context.safety.held[value] = header.encode()
        return (ev.BlobKind.BLOCK, value), (ev.BlobKind.MODEL, header.model)

    def _remember(self) -> None:
        """Put the quorums by which the period was entered, and its soft one, into the state."""
        reasons = [*self._reasons(), *self.tracker.quorums(self.period, (VoteStep.SOFT,))]
        self.context.safety.bundles = tuple(map(self.bundle, reasons))

    # -- quorums --------------------------------------------------------------------------------

    def on_quorum(self, reached: Reached) -> None:
        """A quorum was reached in a step other than CERT."""
        ends = reached.step > VoteStep.CERT
        if not ends:
            if reached.period > self.period:
                self.enter(reached.period, with_lead=False)
            if reached.period == self.period:
                # Fetched even without a vote in this period: it is the block that is about to be
                # decided, and its header is needed for that.
                self.want_block(reached.value)
                self.on_available()
        elif reached.period >= self.period:
            self.enter(reached.period + 1, with_lead=True)
        elif reached.period == self.period - 1:
            self._broadcast(reached)
            if reached.value != BOTTOM:
                self.want_block(reached.value)

    def on_available(self) -> None:
        """A block became valid here, or got its soft quorum: vote for it if that is due."""
        self.try_cert()
        if self.phase is Phase.RECOVERY and self.committable() is not None:
            self.recover()

    def progress_bundles(self) -> list[Bundle]:
        """The bundles that bring others to where this worker is, or beyond.

        A certificate among them is for a block that is not here yet; others may have it.
        """
        soft = self.tracker.quorums(self.period, (VoteStep.SOFT,))
        known = [*self._reasons(), *soft, *self.tracker.certified()]
        return [self.bundle(reached) for reached in known]

    def bundle(self, reached: Reached) -> Bundle:
        """The bundle of the votes behind a quorum."""
        return self.tracker.bundle(self.context.chain, self.round, reached)

    def _broadcast(self, reached: Reached) -> None:
        self.context.emit(ev.Broadcast(self.bundle(reached).encode(), ev.Urgency.VOTE))
