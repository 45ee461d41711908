"""What workers say to each other: frozen values and their canonical bytes (`wire` reads them).

Whatever is signed travels as the very bytes that were signed, so nobody encodes anything anew to
check a signature:  kind | signed part | signature | proof of having been drawn.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

from holdout.agreement.codec import (
    blob,
    digest,
    items,
    text,
    u8,
    u32,
    u64,
)
from holdout.ids import Digest

PROOF_BYTES_MAX = 80
WORKERS_MAX = 10_000
"""The largest roster: bounds every list that a peer may send."""


class Step(IntEnum):
    """The votes of a period; a later attempt's recovery votes lie three steps further."""

    SOFT = 1
    CERT = 2
    LATE = 3
    REDO = 4
    DOWN = 5


def base_step(step: int) -> Step:
    """The kind of a step, whatever the attempt."""
    return Step(step) if step <= Step.DOWN else Step(3 + (step - 3) % 3)


class Kind(IntEnum):
    """The first byte of a message."""

    UPDATE = 1
    BALLOT = 2
    LEAD = 3
    VOTE = 4
    BUNDLE = 5
    EVIDENCE = 6
    FINISHED = 7
    GET_BLOCKS = 8
    GET_UPDATES = 9
    BEHIND = 10
    HEAD_QUERY = 11
    HEAD_ANSWER = 12


REMEMBERED = frozenset({Kind.UPDATE, Kind.BALLOT, Kind.LEAD, Kind.VOTE, Kind.BUNDLE, Kind.EVIDENCE})
"""Of these one accepted copy is enough: a driver drops a second one unread. Questions may be asked
again; and a certificate of a round ahead only says that this worker is behind: it is needed again
when the rounds before it are here."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """A signed part, its signature, and the proof that the sender was drawn (or nothing)."""

    kind: Kind
    signed: bytes
    signature: bytes
    proof: bytes = b""

    def encode(self) -> bytes:
        """The bytes on the wire."""
        return b"".join([u8(self.kind), blob(self.signed), blob(self.signature), blob(self.proof)])


@dataclass(frozen=True, slots=True)
class Update:
    """A proposer's announcement of its gradient: the paper's proposal, on the wire."""

    chain: Digest
    round: int
    worker: int
    model: Digest
    """The model that the gradient was computed on."""
    payload: Digest
    """SHA-256 of the gradient's bytes, which are fetched by it."""
    size: int
    envelope: Envelope

    @property
    def update_id(self) -> Digest:
        """Names the content: two versions of an equivocating proposer never add up."""
        return digest("upd", blob(self.envelope.signed))


@dataclass(frozen=True, slots=True)
class Entry:
    """An approval on a ballot."""

    proposer: int
    update_id: Digest


@dataclass(frozen=True, slots=True)
class BallotMessage:
    """A voter's approved updates, ascending by proposer."""

    chain: Digest
    round: int
    worker: int
    model: Digest
    entries: tuple[Entry, ...]
    envelope: Envelope


@dataclass(frozen=True, slots=True)
class Lead:
    """A leader's announcement of a block for a period; fresh, or one of an earlier period again."""

    chain: Digest
    round: int
    period: int
    worker: int
    original_period: int
    value: Digest
    envelope: Envelope


@dataclass(frozen=True, slots=True)
class Vote:
    """An agreement vote."""

    chain: Digest
    round: int
    period: int
    step: int
    worker: int
    value: Digest
    envelope: Envelope


@dataclass(frozen=True, slots=True)
class VoteSignature:
    """One signature of a bundle."""

    worker: int
    signature: bytes
    proof: bytes


@dataclass(frozen=True, slots=True)
class Bundle:
    """At least Q equal votes, ascending by worker; one of step CERT is a certificate."""

    chain: Digest
    round: int
    period: int
    step: int
    value: Digest
    marks: tuple[VoteSignature, ...]

    def encode(self) -> bytes:
        """The bytes on the wire."""
        return u8(Kind.BUNDLE) + self.encode_bare()

    def encode_bare(self) -> bytes:
        """The same without the kind, inside other messages."""
        return b"".join(
            [
                blob(self.chain),
                u64(self.round),
                u32(self.period),
                u8(self.step),
                blob(self.value),
                items(
                    u32(mark.worker) + blob(mark.signature) + blob(mark.proof)
                    for mark in self.marks
                ),
            ]
        )


@dataclass(frozen=True, slots=True)
class Evidence:
    """Two different messages of one worker for one slot: it proves itself."""

    first: Envelope
    second: Envelope

    def encode(self) -> bytes:
        """The bytes on the wire; the smaller signed part comes first."""
        return u8(Kind.EVIDENCE) + self.encode_bare()

    def encode_bare(self) -> bytes:
        """The same without the kind, inside a block."""
        return blob(self.first.encode()) + blob(self.second.encode())

    @classmethod
    def of(cls, one: Envelope, other: Envelope) -> "Evidence":
        """In canonical order."""
        first, second = sorted([one, other], key=lambda envelope: envelope.signed)
        return cls(first, second)


@dataclass(frozen=True, slots=True)
class Finished:
    """The header of a round's block and its certificate: all that a worker behind must check."""

    header: bytes
    certificate: Bundle

    def encode(self) -> bytes:
        """The bytes on the wire."""
        return b"".join(
            [u8(Kind.FINISHED), blob(self.header), blob(self.certificate.encode_bare())]
        )


@dataclass(frozen=True, slots=True)
class GetBlocks:
    """Please send the finished rounds from `first` to `last`."""

    chain: Digest
    first: int
    last: int

    def encode(self) -> bytes:
        """The bytes on the wire."""
        return u8(Kind.GET_BLOCKS) + blob(self.chain) + u64(self.first) + u64(self.last)


@dataclass(frozen=True, slots=True)
class GetUpdates:
    """Please send these update headers, which a ballot of yours names."""

    chain: Digest
    round: int
    update_ids: tuple[Digest, ...]

    def encode(self) -> bytes:
        """The bytes on the wire."""
        return b"".join(
            [
                u8(Kind.GET_UPDATES),
                blob(self.chain),
                u64(self.round),
                items(blob(update_id) for update_id in self.update_ids),
            ]
        )


@dataclass(frozen=True, slots=True)
class Behind:
    """This is how far I am; please send me what I miss."""

    chain: Digest
    round: int
    period: int

    def encode(self) -> bytes:
        """The bytes on the wire."""
        return u8(Kind.BEHIND) + blob(self.chain) + u64(self.round) + u32(self.period)


@dataclass(frozen=True, slots=True)
class HeadQuery:
    """Asked by a worker that lost its memory: which is your newest certificate?"""

    chain: Digest
    nonce: bytes

    def encode(self) -> bytes:
        """The bytes on the wire."""
        return u8(Kind.HEAD_QUERY) + blob(self.chain) + blob(self.nonce)


@dataclass(frozen=True, slots=True)
class HeadAnswer:
    """A signed answer to one nonce: an old one, replayed, would name too low a round."""

    chain: Digest
    nonce: bytes
    worker: int
    round: int
    """The newest round that the sender holds a certificate of; 0: none yet."""
    envelope: Envelope


NONCE_BYTES = 32
HEADER_BYTES_MAX = 1_024
ENVELOPE_BYTES_MAX = 64 * WORKERS_MAX
BUNDLE_BYTES_MAX = 256 * WORKERS_MAX

Message: TypeAlias = (
    Update
    | BallotMessage
    | Lead
    | Vote
    | Bundle
    | Evidence
    | Finished
    | GetBlocks
    | GetUpdates
    | Behind
    | HeadQuery
    | HeadAnswer
)


def update_part(  # noqa: PLR0917  # The order in which it is encoded.
    chain: Digest, round_number: int, worker: int, model: Digest, payload: Digest, size: int
) -> bytes:
    """What a proposer signs."""
    return b"".join(
        [
            text("update"),
            blob(chain),
            u64(round_number),
            u32(worker),
            blob(model),
            blob(payload),
            u64(size),
        ]
    )


def ballot_part(
    chain: Digest, round_number: int, worker: int, model: Digest, entries: tuple[Entry, ...]
) -> bytes:
    """What a voter signs."""
    return b"".join(
        [
            text("ballot"),
            blob(chain),
            u64(round_number),
            u32(worker),
            blob(model),
            items(u32(entry.proposer) + blob(entry.update_id) for entry in entries),
        ]
    )


def lead_part(  # noqa: PLR0917  # The order in which it is encoded.
    chain: Digest, round_number: int, period: int, worker: int, original: int, value: Digest
) -> bytes:
    """What a leader signs."""
    return b"".join(
        [
            text("lead"),
            blob(chain),
            u64(round_number),
            u32(period),
            u32(worker),
            u32(original),
            blob(value),
        ]
    )


def vote_part(  # noqa: PLR0917  # The order in which it is encoded.
    chain: Digest, round_number: int, period: int, step: int, worker: int, value: Digest
) -> bytes:
    """What a member of the consensus committee signs."""
    return b"".join(
        [
            text("vote"),
            blob(chain),
            u64(round_number),
            u32(period),
            u8(step),
            u32(worker),
            blob(value),
        ]
    )


def head_part(chain: Digest, nonce: bytes, worker: int, round_number: int) -> bytes:
    """What a worker signs that tells how far the chain is."""
    return text("head") + blob(chain) + blob(nonce) + u32(worker) + u64(round_number)
