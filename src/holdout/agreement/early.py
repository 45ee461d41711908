"""Messages of a round that has not begun here: verified, kept, and taken when it does.

The lottery of the coming round is known one round ahead, so nothing is kept unverified; and of each
worker only a few messages are kept, so that nobody can fill the table.
"""

from collections import Counter
from dataclasses import dataclass, field

from holdout.agreement.draws import Signed
from holdout.agreement.events import MessageFault


@dataclass(slots=True)
class _Kept:
    messages: dict[bytes, tuple[int, Signed]] = field(default_factory=dict)
    """By their bytes: the peer that each came from, and the message."""
    of_worker: Counter[int] = field(default_factory=Counter)


class Early:
    """What came too early, by round."""

    def __init__(self, per_worker: int) -> None:
        self._per_worker = per_worker
        self._rounds: dict[int, _Kept] = {}

    def fault(self, data: bytes, claim: Signed) -> MessageFault | None:
        """Why a message need not even be verified; None if it should be."""
        kept = self._rounds.get(claim.round)
        if kept is None:
            return None
        if data in kept.messages:
            return MessageFault.DUPLICATE
        return MessageFault.SURPLUS if kept.of_worker[claim.worker] >= self._per_worker else None

    def add(self, peer: int, data: bytes, verified: Signed | MessageFault) -> MessageFault | None:
        """Keep a message, if it was found good."""
        if isinstance(verified, MessageFault):
            return verified
        kept = self._rounds.setdefault(verified.round, _Kept())
        kept.messages[data] = (peer, verified)
        kept.of_worker[verified.worker] += 1
        return None

    def take(self, round_number: int) -> list[tuple[int, bytes, Signed]]:
        """A round begins: what was kept of it, in order; earlier ones are forgotten."""
        kept = self._rounds.get(round_number, _Kept())
        self._rounds = {n: later for n, later in self._rounds.items() if n > round_number}
        return [(peer, data, message) for data, (peer, message) in kept.messages.items()]

    def size(self) -> int:
        """How many messages are kept."""
        return sum(len(kept.messages) for kept in self._rounds.values())
