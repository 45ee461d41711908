"""Rounds other than the current one: catching up with them, helping others to, waiting for them.

    ChainSync      certificates of rounds that others have decided, and how to get them
    ChainAnswers   what this worker answers when a peer asks where the chain is
    EarlyMessages  messages of a round that has not begun here

A message of a later round, a certificate that comes before its turn or an answer about the head
only makes this worker ask. It leaves its round for one reason, a valid certificate for that round:
otherwise a forged round number would silence it.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from holdout.agreement import events as ev
from holdout.agreement import messages as msg
from holdout.agreement.codec import digest, u32, u64
from holdout.agreement.context import PlayerContext
from holdout.agreement.draws import Draws
from holdout.agreement.headers import Header, Ledger, link_fault, read_header
from holdout.agreement.params import Limits, Timing
from holdout.agreement.round import Round
from holdout.agreement.wire import Unverified
from holdout.errors import InvalidMessage
from holdout.ids import Digest


@dataclass(slots=True)
class Pace:
    """How often one peer may make this worker do something.

    It remembers at most as many peers as the largest network has.
    """

    interval: int
    burst: int
    _spent: dict[int, tuple[int, int]] = field(default_factory=dict)
    _forgotten: int | None = None
    """When peers whose interval is over were last dropped; slow, so it is not done at each call."""

    def allows(self, peer: int, now: int) -> bool:
        """Whether the peer may do it now; if so, this is counted."""
        start, count = self._spent.get(peer, (now, 0))
        if now - start >= self.interval:
            start, count = now, 0
        if count >= self.burst:
            return False
        if peer not in self._spent and len(self._spent) >= msg.WORKERS_MAX:
            self._forget(now)
            if len(self._spent) >= msg.WORKERS_MAX:
                return False
        self._spent[peer] = (start, count + 1)
        return True

    def _forget(self, now: int) -> None:
        if self._forgotten is not None and now - self._forgotten < self.interval:
            return
        self._forgotten = now
        spent = self._spent.items()
        self._spent = {peer: item for peer, item in spent if now - item[0] < self.interval}


class Catchup:
    """How far behind this worker is, as far as it knows, and what it has asked for."""

    def __init__(self, timing: Timing, limits: Limits) -> None:
        self._limits = limits
        self._questions = Pace(timing.delay, 1)
        self.target = 0
        """The highest round that a member of the roster claimed to be in."""
        self._requested_to = 0

    def claim(self, round_number: int) -> None:
        """Note that a member claims to be in this round."""
        self.target = max(self.target, round_number)

    def request(self, round_number: int, peer: int, now: int) -> tuple[int, int] | None:
        """The first and last round to ask this peer for; None if there is nothing to ask now."""
        if self.target <= round_number or not self._questions.allows(peer, now):
            return None
        last = min(self.target - 1, round_number + self._limits.blocks_per_answer - 1)
        self._requested_to = last
        return round_number, last

    def goes_on(self, round_number: int) -> bool:
        """Whether an answer has come in full and the next rounds should be asked for."""
        return self._requested_to < round_number < self.target


def peer_for(worker: int, round_number: int, count: int, workers: int) -> int:
    """Another worker to ask, varying with `count`; chosen by a hash, not at random."""
    number = digest("peer", u32(worker), u64(round_number), u64(count))
    return (worker + 1 + int.from_bytes(number[:8], "big") % (workers - 1)) % workers


@dataclass(slots=True)
class _Kept:
    messages: dict[bytes, tuple[int, msg.SignedMessage]] = field(default_factory=dict)
    """The messages, by their bytes, each with the peer that it came from."""
    of_worker: Counter[int] = field(default_factory=Counter)


class EarlyMessages:
    """Messages of rounds that have not begun here: verified, kept, and taken when one begins.

    The lottery of the coming round is known one round ahead, so nothing is kept unverified. Only a
    few messages of each worker are kept, so that nobody can fill the memory.
    """

    def __init__(self, per_worker: int) -> None:
        self._per_worker = per_worker
        self._rounds: dict[int, _Kept] = {}

    def fault(self, data: bytes, claim: msg.SignedMessage) -> ev.MessageFault | None:
        """Why a message is dropped without being verified; None if it should be verified."""
        kept = self._rounds.get(claim.round)
        if kept is None:
            return None
        if data in kept.messages:
            return ev.MessageFault.DUPLICATE
        return ev.MessageFault.SURPLUS if kept.of_worker[claim.worker] >= self._per_worker else None

    def add(
        self, peer: int, data: bytes, verified: msg.SignedMessage | ev.MessageFault
    ) -> ev.MessageFault | None:
        """Keep a message if it was verified; otherwise return its fault."""
        if isinstance(verified, ev.MessageFault):
            return verified
        kept = self._rounds.setdefault(verified.round, _Kept())
        kept.messages[data] = (peer, verified)
        kept.of_worker[verified.worker] += 1
        return None

    def take(self, round_number: int) -> list[tuple[int, bytes, msg.SignedMessage]]:
        """The messages kept for the round that begins now; those of earlier rounds are dropped."""
        kept = self._rounds.get(round_number, _Kept())
        self._rounds = {n: later for n, later in self._rounds.items() if n > round_number}
        return [(peer, data, message) for data, (peer, message) in kept.messages.items()]

    def size(self) -> int:
        """How many messages are kept."""
        return sum(len(kept.messages) for kept in self._rounds.values())


LOOKS = 8
"""Messages of later rounds whose signatures are checked, of one peer within one delay."""
BURST = 4
"""Answers that one peer gets within one delay."""


class ChainAnswers:
    """Answers peers that ask where the chain is, none of them too often."""

    def __init__(self, context: PlayerContext) -> None:
        self._context = context
        self._pace = Pace(context.timing.delay, BURST)

    def give(
        self,
        peer: int,
        question: msg.GetBlocks | msg.GetUpdates | msg.Behind | msg.HeadQuery,
        decided: int,
        current: Round,
    ) -> None:
        """Answer from the rounds up to `decided` and from what the current round holds."""
        if question.chain != self._context.chain:
            self._context.emit(ev.Reject(peer, ev.MessageFault.WRONG_CHAIN))
            return
        if not self._pace.allows(peer, self._context.now):
            self._context.emit(ev.Reject(peer, ev.MessageFault.SURPLUS))
            return
        match question:
            case msg.GetBlocks() if not 1 <= question.first <= question.last:
                self._context.emit(ev.Reject(peer, ev.MessageFault.MALFORMED))
            case msg.GetBlocks():
                self._send_blocks(peer, question.first, min(question.last, decided))
            case msg.GetUpdates():
                self._send_updates(peer, question, current)
            case msg.Behind():
                self._send_blocks(peer, question.round, decided)
                if question.round == current.number:
                    self._send_bundles(peer, current)
            case msg.HeadQuery():
                self._tell_head(peer, question.nonce, decided)

    def _send_blocks(self, peer: int, first: int, last: int) -> None:
        last = min(last, first + self._context.limits.blocks_per_answer - 1)
        if 1 <= first <= last:
            self._context.emit(ev.SendBlocks(peer, first, last))

    def _send_updates(self, peer: int, question: msg.GetUpdates, current: Round) -> None:
        if question.round != current.number:
            return
        # Each update once: a short question must not call for an answer many times its size.
        for update_id in dict.fromkeys(question.update_ids):
            update = current.learning_messages.update(update_id)
            if update is not None:
                self._context.emit(ev.Send(peer, update.envelope.encode(), ev.Urgency.UPDATE))

    def _send_bundles(self, peer: int, current: Round) -> None:
        for bundle in current.periods.progress_bundles():
            self._context.emit(ev.Send(peer, bundle.encode(), ev.Urgency.VOTE))

    def _tell_head(self, peer: int, nonce: bytes, decided: int) -> None:
        part = msg.head_part(self._context.chain, nonce, self._context.worker, decided)
        envelope = msg.Envelope(msg.Kind.HEAD_ANSWER, part, self._context.signer.sign(part))
        self._context.emit(ev.Send(peer, envelope.encode()))


Unsaved = tuple[msg.Finished, Header, tuple[int, ...] | None]
"""A decided round, and the proposers selected in it, if they are known."""


class ChainSync:
    """Follows the chain: knows where it stands and how far others claim to be."""

    def __init__(
        self, context: PlayerContext, ledger: Ledger, decide: Callable[[Header, msg.Bundle], None]
    ) -> None:
        """At first nobody is known to be ahead.

        Args:
            context: What the parts of the player share.
            ledger: The chain so far.
            decide: Called with each valid certificate for the round to be decided.
        """
        self._context = context
        self._ledger = ledger
        # Separate from the pace of answers: anybody may send a worker's old votes, and that must
        # not keep the worker from getting answers when it asks.
        self._help = Pace(context.timing.delay, BURST)
        self._decide = decide
        self._catchup = Catchup(context.timing, context.limits)
        self._looks = Pace(context.timing.delay, LOOKS)
        self._ahead: dict[int, tuple[int, msg.Finished]] = {}
        self.unsaved: list[Unsaved] = []
        """Rounds that are decided but not in the store, because the newest model is not here."""
        self.questions = 0
        """How often this worker has asked since it last made progress."""

    @property
    def round(self) -> int:
        """The round to be decided."""
        return self._ledger.round

    @property
    def decided(self) -> int:
        """The newest round that is decided and in the store."""
        return self.round - 1 - len(self.unsaved)

    def size(self) -> int:
        """How many certificates and answers of peers are held."""
        return len(self._ahead) + len(self._context.memory.answers)

    def draws_of(self, round_number: int, seed: Digest) -> Draws:
        """The lottery of a round."""
        return Draws(
            self._context.genesis, self._context.verifier, round_number=round_number, seed=seed
        )

    def _reject(self, peer: int, fault: ev.MessageFault) -> None:
        self._context.emit(ev.Reject(peer, fault))

    # -- certificates -----------------------------------------------------------------------------

    def on_finished(self, peer: int, finished: msg.Finished, current: Round) -> None:
        """Take a header and its certificate from a peer; neither was checked before."""
        certificate = finished.certificate
        try:
            header = read_header(finished.header)
        except InvalidMessage:
            self._reject(peer, ev.MessageFault.MALFORMED)
            return
        matches = (certificate.value, certificate.round) == (header.digest, header.round)
        if not matches or certificate.step != msg.VoteStep.CERT:
            self._reject(peer, ev.MessageFault.MALFORMED)
        elif certificate.chain != self._context.chain:
            self._reject(peer, ev.MessageFault.WRONG_CHAIN)
        elif header.round < self.round:
            self._reject(peer, ev.MessageFault.STALE)
        elif header.round > self.round:
            self._on_later(peer, header.round, finished)
        else:
            self._check(peer, header, certificate, current)
            self._take_ahead(current)

    def _on_later(self, peer: int, number: int, finished: msg.Finished) -> None:
        """Keep a certificate whose turn has not come.

        It cannot be verified while the chain before it is missing, but what is obviously wrong is
        refused.
        """
        marks = finished.certificate.marks
        if len(marks) < self._context.params.quorum:
            self._reject(peer, ev.MessageFault.NO_QUORUM)
        elif marks[-1].worker >= self._context.params.workers:
            self._reject(peer, ev.MessageFault.UNKNOWN_WORKER)
        else:
            self._catchup.claim(number + 1)
            if number < self.round + self._context.limits.blocks_per_answer:
                self._ahead[number] = (peer, finished)
            self._ask(peer)

    def _take_ahead(self, current: Round) -> None:
        """Check the certificates that came out of order and whose turn has come."""
        while self.round in self._ahead:
            peer, finished = self._ahead.pop(self.round)
            self._check(peer, read_header(finished.header), finished.certificate, current)
        for past in [number for number in self._ahead if number < self.round]:
            del self._ahead[past]

    def _check(self, peer: int, header: Header, certificate: msg.Bundle, current: Round) -> None:
        context, tip = self._context, self._ledger.tip()
        if link_fault(header, tip, context.genesis, context.verifier) is not None:
            self._reject(peer, ev.MessageFault.INVALID_BLOCK)
            return
        draws = current.draws
        if draws.round != header.round:  # Several rounds behind: `current` is an older one.
            draws = self.draws_of(header.round, tip.seed_in)
        verified = draws.verify_bundle(Unverified(certificate), current.periods.tracker.seen)
        if isinstance(verified, ev.MessageFault):
            self._reject(peer, verified)
            return
        self._decide(header, verified)
        if self._catchup.goes_on(self.round):
            self._ask(peer)

    # -- others are ahead, or behind --------------------------------------------------------------

    def on_ahead(self, peer: int, claim: msg.SignedMessage) -> None:
        """A message of a later round: if a member really signed it, ask for what is missing.

        A few are enough to learn that others are ahead, so no more are looked at.
        """
        if not self._looks.allows(peer, self._context.now):
            self._reject(peer, ev.MessageFault.TOO_EARLY)
            return
        if not self._is_signed(claim.worker, claim.envelope):
            self._reject(peer, ev.MessageFault.WRONG_SIGNATURE)
            return
        self._reject(peer, ev.MessageFault.TOO_EARLY)
        self._catchup.claim(claim.round)
        self._ask(peer)

    def on_old(self, peer: int, claim: msg.SignedMessage) -> None:
        """A message of an earlier round: if its sender is stuck there, send the certificate."""
        self._reject(peer, ev.MessageFault.STALE)
        late = claim.round == self.round - 1
        stuck = isinstance(claim, msg.Vote) and (claim.step > msg.VoteStep.CERT or claim.period > 0)
        if not (late or stuck) or not self._is_signed(claim.worker, claim.envelope):
            return
        if late:
            self._context.waits.note(
                claim.envelope.kind, claim.worker, claim.round, self._context.now
            )
        other = self._context.worker != claim.worker
        # Counted only after the signature is checked: forged votes must not use up the help.
        if stuck and other and self._help.allows(claim.worker, self._context.now):
            self._context.emit(ev.SendBlocks(claim.worker, claim.round, claim.round))

    def _is_signed(self, worker: int, envelope: msg.Envelope) -> bool:
        key = self._context.genesis.roster[worker].signing
        return self._context.verifier.signature(key, envelope.signed, envelope.signature)

    def _ask(self, peer: int) -> None:
        wanted = self._catchup.request(self.round, peer, self._context.now)
        if wanted is not None:
            self._context.emit(ev.Send(peer, msg.GetBlocks(self._context.chain, *wanted).encode()))

    def ask_if_behind(self) -> None:
        """Ask some peer for the rounds that others claim to have decided."""
        if self._catchup.target > self.round:
            self.questions += 1
            self._ask(self._some_peer())

    def tell_somebody(self) -> None:
        """Tell some peer, a different one each time, where this worker stands."""
        behind = msg.Behind(self._context.chain, self.round, 0)
        self._context.emit(ev.Send(self._some_peer(), behind.encode()))

    def _some_peer(self) -> int:
        params = self._context.params
        return peer_for(self._context.worker, self.round, self.questions, params.workers)

    # -- a lost memory ----------------------------------------------------------------------------

    def ask_head(self) -> None:
        """If the memory is lost, ask everybody how far the chain is, until enough have answered."""
        memory = self._context.memory
        if memory.lost and memory.recoverable:
            query = msg.HeadQuery(self._context.chain, memory.nonce)
            self._context.emit(ev.Broadcast(query.encode(), ev.Urgency.ANSWER))

    def on_head_answer(self, peer: int, answer: msg.HeadAnswer) -> None:
        """Take a member's answer to how far the chain is."""
        memory = self._context.memory
        wanted = (
            memory.lost and answer.nonce == memory.nonce and answer.chain == self._context.chain
        )
        if not wanted or answer.worker in {self._context.worker, *memory.answers}:
            self._reject(peer, ev.MessageFault.UNASKED)
        elif answer.worker >= self._context.params.workers:
            self._reject(peer, ev.MessageFault.UNKNOWN_WORKER)
        elif not self._is_signed(answer.worker, answer.envelope):
            self._reject(peer, ev.MessageFault.WRONG_SIGNATURE)
        else:
            memory.answers[answer.worker] = answer.round
            self._catchup.claim(answer.round + 1)
            self._ask(peer)
            if memory.settle(self.decided):
                self._context.persist()
