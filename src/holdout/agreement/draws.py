"""Who holds which role in a round: the signatures and credentials of messages are checked here.

This is the only way from an unverified message to a verified one. Lottery outputs are remembered.
"""

from collections.abc import Callable
from typing import TypeAlias, TypeVar

from holdout.agreement import messages as msg
from holdout.agreement.events import MessageFault
from holdout.agreement.keys import Memo, Signer, Verifier
from holdout.agreement.params import Genesis, Mode, RoleDraw
from holdout.agreement.sortition import Role, alpha, drawn, priority, shuffled
from holdout.agreement.wire import Unverified, open_envelope
from holdout.errors import InvalidMessage
from holdout.ids import Digest

S = TypeVar("S", bound=msg.SignedMessage)
Seen: TypeAlias = Callable[[int, bytes, bytes], bool]
"""Whether a signature was verified before, by worker, signed bytes and signature."""

OUTPUTS_PER_WORKER = 16
"""Lottery outputs remembered: of two roles, leads of three periods, and votes in mode `self`."""


def nobody_seen(_worker: int, _signed: bytes, _signature: bytes) -> bool:
    """No signature was verified before: all of them have to be checked."""
    return False


class Draws:
    """The lottery of one round, and the messages that it allows."""

    def __init__(
        self, genesis: Genesis, verifier: Verifier, *, round_number: int, seed: Digest
    ) -> None:
        self._genesis = genesis
        self._params = genesis.params
        self._verifier = verifier
        self.round = round_number
        self.seed = seed
        # Evidence may name any period, and a liar holds roles in many, so the memory is bounded.
        self._outputs = Memo[tuple[int, Role, int, int, bytes], bytes](
            OUTPUTS_PER_WORKER * self._params.workers
        )

    def size(self) -> int:
        """How many lottery outputs are remembered."""
        return len(self._outputs)

    # -- who is drawn ------------------------------------------------------------------------

    def expected(self, role: Role, period: int = 0) -> tuple[int, ...] | None:
        """Everybody who holds the role, where that is public; None where it is secret."""
        params = self._params
        match role:
            case Role.COMMITTEE if params.mode is Mode.SHUFFLE:
                return self._shuffled(period, params.committee)
            case Role.COMMITTEE if params.mode is Mode.SELF:
                return None
            case Role.COMMITTEE:
                return tuple(range(params.workers))
            case Role.LEADER:
                everybody = params.leaders >= params.workers
                return tuple(range(params.workers)) if everybody else None
        size = self._size(role)
        if params.role_draw is RoleDraw.FIXED:
            return self._shuffled(role, min(size, params.workers))
        return tuple(range(params.workers)) if size >= params.workers else None

    def own_proof(
        self, signer: Signer, role: Role, worker: int, period: int = 0, step: int = 0
    ) -> bytes | None:
        """The signer's proof that it holds the role, empty where the draw is public; or None."""
        if self._public(role):
            return b"" if self._listed(role, worker, period) else None
        proof, out = signer.prove(self._alpha(role, period, step))
        return proof if drawn(out, worker, self._size(role), self._params.workers) else None

    def output(
        self, role: Role, worker: int, proof: bytes, period: int = 0, step: int = 0
    ) -> bytes | None:
        """The VRF output behind a credential (empty where the draw is public); None: not drawn."""
        if self._public(role):
            return b"" if not proof and self._listed(role, worker, period) else None
        key = (worker, role, period, step, proof)
        out = self._outputs.get(key)
        if out is None:
            out = self._check(role, worker, proof, period, step)
            if out is not None:  # There is one good proof, but a liar can make many bad ones.
                self._outputs.put(key, out)
        return out

    def priority(self, lead: msg.Lead) -> bytes:
        """The priority of a verified lead; leaders are ranked by it, lowest first."""
        out = self.output(Role.LEADER, lead.worker, lead.envelope.proof, lead.period)
        assert out is not None  # noqa: S101  # The lead was verified.
        return priority(out, lead.worker)

    # -- unverified -> verified ---------------------------------------------------------------

    def verify(self, unverified: Unverified[S]) -> S | MessageFault:
        """The message, if its sender signed it and was drawn for it."""
        message = unverified.claim
        fault = self.fault(message)
        return message if fault is None else fault

    def fault(self, message: msg.SignedMessage) -> MessageFault | None:
        """What is wrong with a message's network, round, signature or credential; or None."""
        if message.chain != self._genesis.chain:
            return MessageFault.WRONG_CHAIN
        if message.worker >= self._params.workers:
            return MessageFault.UNKNOWN_WORKER
        if message.round != self.round:
            return MessageFault.STALE
        # The signature first: it is cheaper than the credential.
        if not self._signed_by(message.worker, message.envelope):
            return MessageFault.WRONG_SIGNATURE
        role, period, step = _role(message)
        if self.output(role, message.worker, message.envelope.proof, period, step) is None:
            return MessageFault.NOT_DRAWN
        return None

    def verify_bundle(
        self, unverified: Unverified[msg.Bundle], seen: Seen = nobody_seen
    ) -> msg.Bundle | MessageFault:
        """The bundle, if at least Q members of its committee signed the same vote."""
        bundle = unverified.claim
        if bundle.chain != self._genesis.chain:
            return MessageFault.WRONG_CHAIN
        if bundle.round != self.round:
            return MessageFault.STALE
        if len(bundle.marks) < self._params.quorum:
            return MessageFault.NO_QUORUM
        for mark in bundle.marks:
            if mark.worker >= self._params.workers:
                return MessageFault.UNKNOWN_WORKER
            signed = msg.vote_part(
                bundle.chain, bundle.round, bundle.period, bundle.step, mark.worker, bundle.value
            )
            key = self._genesis.roster[mark.worker].signing
            if not seen(mark.worker, signed, mark.signature) and not self._verifier.signature(
                key, signed, mark.signature
            ):
                return MessageFault.WRONG_SIGNATURE
            out = self.output(Role.COMMITTEE, mark.worker, mark.proof, bundle.period, bundle.step)
            if out is None:
                return MessageFault.NOT_DRAWN
        return bundle

    def convict(self, evidence: msg.Evidence) -> msg.SignedMessage | MessageFault:
        """The first of the two messages, if they prove that their sender equivocated."""
        try:
            first, second = open_envelope(evidence.first), open_envelope(evidence.second)
        except InvalidMessage:
            return MessageFault.MALFORMED
        if isinstance(first, msg.HeadAnswer) or isinstance(second, msg.HeadAnswer):
            return MessageFault.NO_EVIDENCE
        if slot(first) != slot(second) or first.envelope.signed == second.envelope.signed:
            return MessageFault.NO_EVIDENCE
        return self.fault(first) or self.fault(second) or first

    def _signed_by(self, worker: int, envelope: msg.Envelope) -> bool:
        key = self._genesis.roster[worker].signing
        return self._verifier.signature(key, envelope.signed, envelope.signature)

    # -- the lottery --------------------------------------------------------------------------

    def _public(self, role: Role) -> bool:
        match role:
            case Role.COMMITTEE:
                return self._params.mode is not Mode.SELF
            case Role.LEADER:
                return False  # The VRF output is needed to rank leaders.
            case _:
                # Where everybody holds the role there is nothing to prove.
                everybody = self._size(role) >= self._params.workers
                return everybody or self._params.role_draw is RoleDraw.FIXED

    def _listed(self, role: Role, worker: int, period: int) -> bool:
        expected = self.expected(role, period)
        assert expected is not None  # noqa: S101  # Asked for public draws only.
        return len(expected) == self._params.workers or worker in expected

    def _check(self, role: Role, worker: int, proof: bytes, period: int, step: int) -> bytes | None:
        question = self._alpha(role, period, step)
        out = self._verifier.vrf(self._genesis.roster[worker].vrf, question, proof)
        if out is None or not drawn(out, worker, self._size(role), self._params.workers):
            return None
        return out

    def _alpha(self, role: Role, period: int, step: int) -> bytes:
        return alpha(self._genesis.chain, self.seed, self.round, role, period, step)

    def _shuffled(self, label: Role | int, size: int) -> tuple[int, ...]:
        return shuffled(
            self._genesis.chain, self.seed, self.round, label, self._params.workers, size
        )

    def _size(self, role: Role) -> int:
        match role:
            case Role.PROPOSER:
                return self._params.proposers
            case Role.VOTER:
                return self._params.voters
            case Role.LEADER:
                return self._params.leaders
            case Role.COMMITTEE:
                return self._params.committee


def _role(message: msg.SignedMessage) -> tuple[Role, int, int]:
    match message:
        case msg.Update():
            return Role.PROPOSER, 0, 0
        case msg.BallotMessage():
            return Role.VOTER, 0, 0
        case msg.Lead():
            return Role.LEADER, message.period, 0
        case msg.Vote():
            return Role.COMMITTEE, message.period, message.step


def slot(message: msg.SignedMessage) -> tuple[int, int, Role, int, int]:
    """The slot that a message fills, each once: (worker, round, role, period, step)."""
    return message.worker, message.round, *_role(message)
