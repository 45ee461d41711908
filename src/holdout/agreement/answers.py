"""Help for others: what a worker answers when a peer asks where the chain is."""

from holdout.agreement.catchup import Pace
from holdout.agreement.context import Desk
from holdout.agreement.events import MessageFault, Reject, Send, SendBlocks, Urgency
from holdout.agreement.messages import (
    Behind,
    Envelope,
    GetBlocks,
    GetUpdates,
    HeadQuery,
    Kind,
    head_part,
)
from holdout.agreement.round import Round

BURST = 4
"""Answers that one peer gets within one delay."""


class ChainAnswers:
    """Answers questions, each peer's not too often."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._pace = Pace(desk.timing.delay, BURST)

    def give(
        self,
        peer: int,
        question: GetBlocks | GetUpdates | Behind | HeadQuery,
        decided: int,
        current: Round,
    ) -> None:
        """Answer, with rounds up to `decided` and with what the current round holds."""
        if question.chain != self._desk.chain:
            self._desk.emit(Reject(peer, MessageFault.WRONG_CHAIN))
            return
        if not self._pace.allows(peer, self._desk.now):
            self._desk.emit(Reject(peer, MessageFault.SURPLUS))
            return
        match question:
            case GetBlocks() if not 1 <= question.first <= question.last:
                self._desk.emit(Reject(peer, MessageFault.MALFORMED))
            case GetBlocks():
                self._send_blocks(peer, question.first, min(question.last, decided))
            case GetUpdates():
                self._send_updates(peer, question, current)
            case Behind():
                self._send_blocks(peer, question.round, decided)
                if question.round == current.number:
                    self._send_bundles(peer, current)
            case HeadQuery():
                self._tell_head(peer, question.nonce, decided)

    def _send_blocks(self, peer: int, first: int, last: int) -> None:
        last = min(last, first + self._desk.limits.blocks_per_answer - 1)
        if 1 <= first <= last:
            self._desk.emit(SendBlocks(peer, first, last))

    def _send_updates(self, peer: int, question: GetUpdates, current: Round) -> None:
        if question.round != current.number:
            return
        # Each once: a question must not be worth many times its size.
        for update_id in dict.fromkeys(question.update_ids):
            update = current.phases.update(update_id)
            if update is not None:
                self._desk.emit(Send(peer, update.envelope.encode(), Urgency.UPDATE))

    def _send_bundles(self, peer: int, current: Round) -> None:
        for bundle in current.periods.evidence_of_progress():
            self._desk.emit(Send(peer, bundle.encode(), Urgency.VOTE))

    def _tell_head(self, peer: int, nonce: bytes, decided: int) -> None:
        part = head_part(self._desk.chain, nonce, self._desk.worker, decided)
        envelope = Envelope(Kind.HEAD_ANSWER, part, self._desk.signer.sign(part))
        self._desk.emit(Send(peer, envelope.encode()))
