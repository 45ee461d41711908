"""From bytes to messages that are not verified yet.

`decode` makes an `Unverified` message of bytes, or raises `InvalidMessage`. Its `claim` may be
read, for cheap filters, but not relied on: whatever counts, ranks or stores takes the message
itself, which only a check of signature and credential (`draws`) gets out of `Unverified`.
"""

import struct
from dataclasses import dataclass
from itertools import pairwise
from typing import Generic, TypeVar

from holdout.agreement import messages as msg
from holdout.agreement.codec import BOTTOM, DIGEST_BYTES, Reader
from holdout.agreement.codec import decode as decode_with
from holdout.agreement.keys import SIGNATURE_BYTES
from holdout.errors import InvalidMessage
from holdout.ids import Digest

M = TypeVar("M")


@dataclass(frozen=True, slots=True)
class Unverified(Generic[M]):
    """A message that was not checked yet: its claims may be read, not counted."""

    claim: M


def decode(data: bytes) -> Unverified[msg.Message]:
    """The message that these bytes hold; raises `InvalidMessage`, and nothing else."""
    return Unverified(decode_with(data, _read))


def encode(message: msg.Message) -> bytes:
    """The bytes on the wire: the inverse of `decode`."""
    match message:
        case msg.Update() | msg.BallotMessage() | msg.Lead() | msg.Vote() | msg.HeadAnswer():
            return message.envelope.encode()
        case _:
            return message.encode()


def _read(reader: Reader) -> msg.Message:
    code = reader.u8()
    match code:
        case (
            msg.Kind.UPDATE | msg.Kind.BALLOT | msg.Kind.LEAD | msg.Kind.VOTE | msg.Kind.HEAD_ANSWER
        ):
            return open_envelope(_read_envelope(reader, msg.Kind(code)))
        case msg.Kind.BUNDLE:
            return read_bundle(reader)
        case msg.Kind.EVIDENCE:
            return read_evidence(reader)
        case msg.Kind.FINISHED:
            header = reader.blob(msg.HEADER_BYTES_MAX)
            return msg.Finished(header, decode_with(reader.blob(msg.BUNDLE_BYTES_MAX), read_bundle))
        case msg.Kind.GET_BLOCKS:
            return msg.GetBlocks(reader.digest(), reader.u64(), reader.u64())
        case msg.Kind.GET_UPDATES:
            return msg.GetUpdates(
                reader.digest(), reader.u64(), reader.items(Reader.digest, msg.WORKERS_MAX)
            )
        case msg.Kind.BEHIND:
            return msg.Behind(reader.digest(), reader.u64(), reader.u32())
        case msg.Kind.HEAD_QUERY:
            return msg.HeadQuery(reader.digest(), reader.exactly(msg.NONCE_BYTES))
        case _:
            raise InvalidMessage(f"there is no message of kind {code}")


def _read_envelope(reader: Reader, kind: msg.Kind) -> msg.Envelope:
    return msg.Envelope(
        kind,
        reader.blob(msg.ENVELOPE_BYTES_MAX),
        reader.exactly(SIGNATURE_BYTES),
        reader.blob(msg.PROOF_BYTES_MAX),
    )


def decode_envelope(data: bytes) -> msg.Envelope:
    """The envelope of a signed message inside another message."""

    def read(reader: Reader) -> msg.Envelope:
        code = reader.u8()
        if code not in (msg.Kind.UPDATE, msg.Kind.BALLOT, msg.Kind.LEAD, msg.Kind.VOTE):
            raise InvalidMessage(f"a message of kind {code} cannot be part of another")
        return _read_envelope(reader, msg.Kind(code))

    return decode_with(data, read)


def open_envelope(envelope: msg.Envelope) -> msg.SignedMessage | msg.HeadAnswer:
    """The message that an envelope holds; raises `InvalidMessage`."""

    def read(reader: Reader) -> msg.SignedMessage | msg.HeadAnswer:
        if reader.blob(16) != _TAGS[envelope.kind]:
            raise InvalidMessage("the signed part is of a different kind than the message")
        chain = reader.digest()
        if envelope.kind is msg.Kind.HEAD_ANSWER:
            return msg.HeadAnswer(
                chain, reader.exactly(msg.NONCE_BYTES), reader.u32(), reader.u64(), envelope
            )
        round_number = reader.u64()
        match envelope.kind:
            case msg.Kind.UPDATE:
                worker = reader.u32()
                return msg.Update(
                    chain,
                    round_number,
                    worker,
                    reader.digest(),
                    reader.digest(),
                    reader.u64(),
                    envelope,
                )
            case msg.Kind.BALLOT:
                worker, model = reader.u32(), reader.digest()
                return msg.BallotMessage(
                    chain, round_number, worker, model, _read_entries(reader), envelope
                )
            case msg.Kind.LEAD:
                period, worker = reader.u32(), reader.u32()
                original, value = reader.u32(), reader.digest()
                if original > period or value == BOTTOM:
                    raise InvalidMessage(
                        "a lead must name a block, of its own or an earlier period"
                    )
                return msg.Lead(chain, round_number, period, worker, original, value, envelope)
            case _:
                period, step = reader.u32(), reader.u8()
                worker, value = reader.u32(), reader.digest()
                _check_step(step, value)
                return msg.Vote(chain, round_number, period, step, worker, value, envelope)

    return decode_with(envelope.signed, read)


_ENTRY = struct.Struct(f">II{DIGEST_BYTES}s")
"""A proposer, then an update's digest after its length."""


def _read_entries(reader: Reader) -> tuple[msg.Entry, ...]:
    rows = reader.rows(_ENTRY, msg.WORKERS_MAX)
    if any(size != DIGEST_BYTES for _, size, _ in rows):
        raise InvalidMessage("a ballot must name updates by their digests")
    entries = tuple(msg.Entry(proposer, Digest(update_id)) for proposer, _, update_id in rows)
    proposers = [entry.proposer for entry in entries]
    if not entries or any(a >= b for a, b in pairwise(proposers)):
        raise InvalidMessage(
            "a ballot must name at least one update, ascending by proposer, each proposer once"
        )
    return entries


def _check_step(step: int, value: Digest) -> None:
    if step < msg.VoteStep.SOFT:
        raise InvalidMessage(f"there is no step {step}")
    if (value == BOTTOM) != (msg.base_step(step) is msg.VoteStep.DOWN):
        raise InvalidMessage("a DOWN vote must name no block, and any other vote must name one")


def read_bundle(reader: Reader) -> msg.Bundle:
    """Read a bundle, without the byte that tells its kind."""
    bundle = msg.Bundle(
        reader.digest(),
        reader.u64(),
        reader.u32(),
        reader.u8(),
        reader.digest(),
        reader.items(
            lambda r: msg.VoteSignature(
                r.u32(), r.exactly(SIGNATURE_BYTES), r.blob(msg.PROOF_BYTES_MAX)
            ),
            msg.WORKERS_MAX,
        ),
    )
    workers = [mark.worker for mark in bundle.marks]
    if any(a >= b for a, b in pairwise(workers)):
        raise InvalidMessage("the votes of a bundle must be in ascending order, each worker once")
    _check_step(bundle.step, bundle.value)
    return bundle


def read_evidence(reader: Reader) -> msg.Evidence:
    """Read evidence, without the byte that tells its kind."""
    size_max = msg.ENVELOPE_BYTES_MAX + SIGNATURE_BYTES + msg.PROOF_BYTES_MAX + 16
    first = decode_envelope(reader.blob(size_max))
    second = decode_envelope(reader.blob(size_max))
    if first.signed >= second.signed:
        raise InvalidMessage("evidence must hold two different messages, in ascending order")
    return msg.Evidence(first, second)


_TAGS = {
    msg.Kind.UPDATE: b"update",
    msg.Kind.BALLOT: b"ballot",
    msg.Kind.LEAD: b"lead",
    msg.Kind.VOTE: b"vote",
    msg.Kind.HEAD_ANSWER: b"head",
}
