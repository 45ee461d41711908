"""The next model, bit for bit.

Workers vote on a digest of the model, so two honest ones must not differ in a single bit. IEEE
arithmetic on single elements is exactly specified; sums over many are not, since a library chooses
their order. Hence only element-wise numpy is used, one operation at a time, in float64, and a sum
over coordinates is a tree of element-wise additions. Some libraries switch a whole process to flush
subnormal numbers to zero. The inputs hold none (`canonical`), none can arise on the way, and the
result is flushed here, so the switch makes no difference.

A mistake here costs progress, never agreement. `known_answer_fault` finds it before the first vote.
"""

import math
from collections.abc import Sequence
from hashlib import sha256

import numpy as np
import numpy.typing as npt

from holdout.agreement.blocks import read_block
from holdout.agreement.codec import blob, digest, f64, items, u32
from holdout.agreement.events import BlobKind, Combine, Combined
from holdout.agreement.params import Params
from holdout.errors import InvalidMessage, MisuseError
from holdout.ids import Digest
from holdout.seeds import stream
from holdout.voting import bound_radius

SMALLEST = 2.0**-126
"""The smallest normal float32: no valid payload but zero has a smaller coordinate or norm."""

LARGEST = float(np.finfo(np.float32).max)

Doubles = npt.NDArray[np.float64]

_SINGLE = np.dtype("<f4")
_BITS = np.dtype("<u4")
_EXPONENT = np.uint32(0x7F80_0000)


# --------------------------------------------------------------------------------------- payloads


def payload_digest(data: bytes) -> Digest:
    """The digest by which an update names its gradient."""
    return Digest(sha256(data).digest())


def payload_fault(data: bytes, params: Params) -> str | None:
    """Why these bytes are not a valid gradient, or None; everybody gets the same answer."""
    if len(data) != params.payload_bytes:
        return f"a payload must hold {params.payload_bytes} bytes; got {len(data)}"
    # Judged by their bits: arithmetic on subnormal numbers depends on the processor's state.
    bits = np.frombuffer(data, _BITS)
    exponents = bits & _EXPONENT
    if (exponents == _EXPONENT).any():
        return "a payload's values must be finite"
    if ((exponents == 0) & (bits != 0)).any():
        return "a payload must not hold -0.0 or subnormal numbers"
    largest = float(np.abs(np.frombuffer(data, _SINGLE)).max())
    if largest > params.coordinate_max:
        return f"a payload's values must be at most {params.coordinate_max}; got {largest}"
    return None


def canonical(values: npt.NDArray[np.float32]) -> bytes:
    """The bytes of a gradient or a model: little-endian, with +0.0 for -0.0 and subnormals."""
    return _flushed(np.ascontiguousarray(values, _SINGLE).tobytes()).tobytes()


def model_digest(shapes: Sequence[Sequence[int]], data: bytes) -> Digest:
    """The digest by which blocks name a model, of its tensors' shapes and its bytes."""
    table = items(items(u32(side) for side in shape) for shape in shapes)
    return digest("model", table, blob(data))


def blob_matches(kind: BlobKind, expected: Digest, data: bytes, params: Params) -> bool:
    """Whether these bytes are the blob of this digest; a block must also match its roots."""
    match kind:
        case BlobKind.PAYLOAD:
            return payload_digest(data) == expected
        case BlobKind.MODEL:
            return (
                len(data) == params.payload_bytes and model_digest(params.shapes, data) == expected
            )
        case BlobKind.BLOCK:
            try:
                return read_block(data).header.digest == expected
            except InvalidMessage:
                return False


# ------------------------------------------------------------------------------------- arithmetic


def norm(data: bytes) -> float:
    """The norm of a payload, with the same bits everywhere.

    The squares, padded with zeros to a power of two, are folded in halves until one is left.
    """
    return _norm(_doubles(data))


def _doubles(data: bytes) -> Doubles:
    return np.frombuffer(data, _SINGLE).astype(np.float64)


def _norm(values: Doubles) -> float:
    squares = values * values
    half = 1 << max(len(squares) - 1, 0).bit_length() >> 1
    while len(squares) > 1:
        # Beyond the end of the upper half there are only zeros, the padding.
        upper = squares[half:]
        squares[: len(upper)] += upper
        squares = squares[:half]
        half >>= 1
    return math.sqrt(float(squares[0])) if len(squares) else 0.0


def combine(
    model: bytes, payloads: Sequence[bytes], *, radius: float, rate: float
) -> tuple[bytes | None, float]:
    """One step along the mean of the selected updates, each shortened to the radius.

    Args:
        model: The current model.
        payloads: The union-consensus, valid, ascending by proposer; at least one.
        radius: The norm bound; 0.0 if there is none yet, and the norms of this step set it.
        rate: The learning rate.

    Returns:
        The next model, or None if a weight would not fit into a float32; and the next radius.
    """
    if not payloads or any(len(payload) != len(model) for payload in payloads):
        raise MisuseError("a step needs at least one payload, all of them as long as the model")
    norms = []
    total: Doubles = np.zeros(len(model) // _SINGLE.itemsize, np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        for payload in payloads:
            values = _doubles(payload)
            length = _norm(values)
            if radius and length > radius:
                # Multiplied first, then added: two roundings, as everywhere else.
                values *= radius / length
            total += values
            norms.append(length)
        mean = total / np.float64(len(payloads))
        step = np.float64(rate) * mean
        weights = _flushed(model).astype(np.float64) - step
        sizes = np.abs(weights)
        # Written so that NaN does not pass.
        if not (sizes <= LARGEST).all():
            return None, _next_radius(norms, radius)
    weights[sizes < SMALLEST] = 0.0
    return weights.astype(_SINGLE).tobytes(), _next_radius(norms, radius)


def combined(
    job: Combine, model: bytes, payloads: Sequence[bytes], params: Params
) -> tuple[bytes | None, Combined]:
    """The next model that a job asks for, None if it would not be finite; and the job's result."""
    data, radius = combine(model, payloads, radius=job.radius, rate=job.rate)
    named = None if data is None else model_digest(params.shapes, data)
    return data, Combined(job, named, radius)


def _next_radius(norms: Sequence[float], radius: float) -> float:
    """The lower median of the selected norms, as far as the radius may move at once.

    It is computed on single float64 numbers, so its bits are exactly specified too.
    """
    moved = bound_radius(norms, previous=radius)
    assert moved is not None  # noqa: S101  # There is at least one norm.
    if not radius:
        return moved
    # If half of all updates were zero, round after round, it would fall below what float64
    # represents on every machine. A bound that only zero passes is small enough.
    return max(moved, SMALLEST)


def _flushed(data: bytes) -> npt.NDArray[np.float32]:
    bits = np.frombuffer(data, _BITS)
    return np.where(bits & _EXPONENT == 0, np.uint32(0), bits).astype(_BITS).view(_SINGLE)


# ----------------------------------------------------------------------------------- known answer

_KNOWN_ANSWER = "85a324e2d5ad19a8b2e2fcdc9249fc1b09e2d0b73d86dffdad0ad1303612605c"


def known_answer_fault() -> str | None:
    """Why this machine must not vote, as it would compute another model than the rest; or None."""
    model, *payloads = (_known_vector(number) for number in range(8))
    radius = sorted(norm(payload) for payload in payloads)[2]
    found, radius = combine(model, payloads, radius=radius, rate=0.1)
    # A different order of summation shows in few norms, so many are taken.
    norms = [norm(payload[cut:]) for payload in payloads for cut in range(0, 2_000, 100)]
    answer = sha256(b"".join([found or b"", *map(f64, [radius, *norms])]))
    if answer.hexdigest() != _KNOWN_ANSWER:
        return "this machine's arithmetic does not give the known answer for a step"
    return None


def _known_vector(number: int) -> bytes:
    """Numbers with any mantissa and many magnitudes, made without floating-point arithmetic."""
    words = stream(0, "known answer", number)
    bits = [
        (words.below(2) << 31) | ((107 + words.below(25)) << 23) | words.below(1 << 23)
        for _ in range(1_000)
    ]
    return np.array(bits, _BITS).tobytes()
