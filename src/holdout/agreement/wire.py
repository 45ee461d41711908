"""From bytes to messages that are not verified yet.

`decode` makes an `Unverified` message of bytes, or raises `InvalidMessage`. Its `claim` may be
read, for cheap filters, but not relied on: whatever counts, ranks or stores takes the message
itself, which only a check of signature and credential (`draws`) gets out of `Unverified`.
"""

import struct
from dataclasses import dataclass
from itertools import pairwise
from typing import Generic, TypeVar

from holdout.agreement.codec import BOTTOM, DIGEST_BYTES, Reader
from holdout.agreement.codec import decode as decode_with
from holdout.agreement.keys import SIGNATURE_BYTES
from holdout.agreement.messages import (
    BUNDLE_BYTES_MAX,
    ENVELOPE_BYTES_MAX,
    HEADER_BYTES_MAX,
    NONCE_BYTES,
    PROOF_BYTES_MAX,
    WORKERS_MAX,
    BallotMessage,
    Behind,
    Bundle,
    Entry,
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
    VoteSignature,
    base_step,
)
from holdout.errors import InvalidMessage
from holdout.ids import Digest

M = TypeVar("M")


@dataclass(frozen=True, slots=True)
class Unverified(Generic[M]):
    """A message that was not checked yet: its claims may be read, not counted."""

    claim: M


def decode(data: bytes) -> Unverified[Message]:
    """The message that these bytes hold; raises `InvalidMessage`, and nothing else."""
    return Unverified(decode_with(data, _read))


def encode(message: Message) -> bytes:
    """The bytes on the wire: the inverse of `decode`."""
    match message:
        case Update() | BallotMessage() | Lead() | Vote() | HeadAnswer():
            return message.envelope.encode()
        case _:
            return message.encode()


def _read(reader: Reader) -> Message:
    code = reader.u8()
    match code:
        case Kind.UPDATE | Kind.BALLOT | Kind.LEAD | Kind.VOTE | Kind.HEAD_ANSWER:
            return open_envelope(_read_envelope(reader, Kind(code)))
        case Kind.BUNDLE:
            return read_bundle(reader)
        case Kind.EVIDENCE:
            return read_evidence(reader)
        case Kind.FINISHED:
            header = reader.blob(HEADER_BYTES_MAX)
            return Finished(header, decode_with(reader.blob(BUNDLE_BYTES_MAX), read_bundle))
        case Kind.GET_BLOCKS:
            return GetBlocks(reader.digest(), reader.u64(), reader.u64())
        case Kind.GET_UPDATES:
            return GetUpdates(
                reader.digest(), reader.u64(), reader.items(Reader.digest, WORKERS_MAX)
            )
        case Kind.BEHIND:
            return Behind(reader.digest(), reader.u64(), reader.u32())
        case Kind.HEAD_QUERY:
            return HeadQuery(reader.digest(), reader.exactly(NONCE_BYTES))
        case _:
            raise InvalidMessage(f"there is no message of kind {code}")


def _read_envelope(reader: Reader, kind: Kind) -> Envelope:
    return Envelope(
        kind,
        reader.blob(ENVELOPE_BYTES_MAX),
        reader.exactly(SIGNATURE_BYTES),
        reader.blob(PROOF_BYTES_MAX),
    )


def decode_envelope(data: bytes) -> Envelope:
    """The envelope of a signed message inside another message."""

    def read(reader: Reader) -> Envelope:
        code = reader.u8()
        if code not in (Kind.UPDATE, Kind.BALLOT, Kind.LEAD, Kind.VOTE):
            raise InvalidMessage(f"a message of kind {code} cannot be part of another")
        return _read_envelope(reader, Kind(code))

    return decode_with(data, read)


def open_envelope(envelope: Envelope) -> Update | BallotMessage | Lead | Vote | HeadAnswer:
    """The message that an envelope holds; raises `InvalidMessage`."""

    def read(reader: Reader) -> Update | BallotMessage | Lead | Vote | HeadAnswer:
        if reader.blob(16) != _TAGS[envelope.kind]:
            raise InvalidMessage("the signed part is of a different kind than the message")
        chain = reader.digest()
        if envelope.kind is Kind.HEAD_ANSWER:
            return HeadAnswer(
                chain, reader.exactly(NONCE_BYTES), reader.u32(), reader.u64(), envelope
            )
        round_number = reader.u64()
        match envelope.kind:
            case Kind.UPDATE:
                worker = reader.u32()
                return Update(
                    chain,
                    round_number,
                    worker,
                    reader.digest(),
                    reader.digest(),
                    reader.u64(),
                    envelope,
                )
            case Kind.BALLOT:
                worker, model = reader.u32(), reader.digest()
                return BallotMessage(
                    chain, round_number, worker, model, _read_entries(reader), envelope
                )
            case Kind.LEAD:
                period, worker = reader.u32(), reader.u32()
                original, value = reader.u32(), reader.digest()
                if original > period or value == BOTTOM:
                    raise InvalidMessage(
                        "a lead must name a block, of its own or an earlier period"
                    )
                return Lead(chain, round_number, period, worker, original, value, envelope)
            case _:
                period, step = reader.u32(), reader.u8()
                worker, value = reader.u32(), reader.digest()
                _check_step(step, value)
                return Vote(chain, round_number, period, step, worker, value, envelope)

    return decode_with(envelope.signed, read)


_ENTRY = struct.Struct(f">II{DIGEST_BYTES}s")
"""A proposer, then an update's digest after its length."""


def _read_entries(reader: Reader) -> tuple[Entry, ...]:
    rows = reader.rows(_ENTRY, WORKERS_MAX)
    if any(size != DIGEST_BYTES for _, size, _ in rows):
        raise InvalidMessage("a ballot must name updates by their digests")
    entries = tuple(Entry(proposer, Digest(update_id)) for proposer, _, update_id in rows)
    proposers = [entry.proposer for entry in entries]
    if not entries or any(a >= b for a, b in pairwise(proposers)):
        raise InvalidMessage(
            "a ballot must name at least one update, ascending by proposer, each proposer once"
        )
    return entries


def _check_step(step: int, value: Digest) -> None:
    if step < Step.SOFT:
        raise InvalidMessage(f"there is no step {step}")
    if (value == BOTTOM) != (base_step(step) is Step.DOWN):
        raise InvalidMessage("a DOWN vote must name no block, and any other vote must name one")


def read_bundle(reader: Reader) -> Bundle:
    """Read a bundle, without the byte that tells its kind."""
    bundle = Bundle(
        reader.digest(),
        reader.u64(),
        reader.u32(),
        reader.u8(),
        reader.digest(),
        reader.items(
            lambda r: VoteSignature(r.u32(), r.exactly(SIGNATURE_BYTES), r.blob(PROOF_BYTES_MAX)),
            WORKERS_MAX,
        ),
    )
    workers = [mark.worker for mark in bundle.marks]
    if any(a >= b for a, b in pairwise(workers)):
        raise InvalidMessage("the votes of a bundle must be in ascending order, each worker once")
    _check_step(bundle.step, bundle.value)
    return bundle


def read_evidence(reader: Reader) -> Evidence:
    """Read evidence, without the byte that tells its kind."""
    size_max = ENVELOPE_BYTES_MAX + SIGNATURE_BYTES + PROOF_BYTES_MAX + 16
    first = decode_envelope(reader.blob(size_max))
    second = decode_envelope(reader.blob(size_max))
    if first.signed >= second.signed:
        raise InvalidMessage("evidence must hold two different messages, in ascending order")
    return Evidence(first, second)


_TAGS = {
    Kind.UPDATE: b"update",
    Kind.BALLOT: b"ballot",
    Kind.LEAD: b"lead",
    Kind.VOTE: b"vote",
    Kind.HEAD_ANSWER: b"head",
}
