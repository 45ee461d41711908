"""The next model, bit for bit (CONSENSUS 3.2, 3.4 and 3.9).

Workers vote on a digest of the model, so two honest ones must not differ in a single bit. IEEE
arithmetic on single elements is exactly specified; sums over many are not, since a library chooses
their order. Hence: element-wise numpy alone, one operation at a time, in float64, and where a sum
over coordinates is needed a tree of element-wise additions. Some libraries switch a whole process
to flush subnormal numbers to zero. What goes in holds none (`canonical`), what is computed on the
way cannot become one, and what comes out is flushed by us, so the switch makes no difference.

A mistake here costs progress, never agreement. `known_answer_fault` finds it before the first vote.
"""

import math
from collections.abc import Sequence
from hashlib import sha256

import numpy as np
import numpy.typing as npt

from holdout.agreement.blocks import read_block
from holdout.agreement.codec import blob, digest, f64, items, u32
from holdout.agreement.events import BlobKind
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
    """By which an update names its gradient."""
    return Digest(sha256(data).digest())


def payload_fault(data: bytes, params: Params) -> str | None:
    """Why these bytes are no valid gradient, or None; everybody gets the same answer."""
    if len(data) != params.payload_bytes:
        return f"a payload holds {params.payload_bytes} bytes; got {len(data)}"
    # By their bits: arithmetic on subnormal numbers depends on the state of the processor.
    bits = np.frombuffer(data, _BITS)
    exponents = bits & _EXPONENT
    if (exponents == _EXPONENT).any():
        return "a payload's values are finite"
    if ((exponents == 0) & (bits != 0)).any():
        return "a payload holds neither -0.0 nor subnormal numbers"
    largest = float(np.abs(np.frombuffer(data, _SINGLE)).max())
    if largest > params.coordinate_max:
        return f"a payload's values are at most {params.coordinate_max}; got {largest}"
    return None


def canonical(values: npt.NDArray[np.float32]) -> bytes:
    """The bytes of a gradient or a model: little-endian, -0.0 and subnormal numbers are +0.0."""
    return _flushed(np.ascontiguousarray(values, _SINGLE).tobytes()).tobytes()


def model_digest(shapes: Sequence[Sequence[int]], data: bytes) -> Digest:
    """By which blocks name a model: its tensors' shapes and its bytes."""
    table = items(items(u32(side) for side in shape) for shape in shapes)
    return digest("model", table, blob(data))


def blob_matches(kind: BlobKind, expected: Digest, data: bytes, params: Params) -> bool:
    """Whether these bytes are the blob of this digest; a block's body must match its roots."""
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
        # What lies beyond the upper half's end are the zeros of the padding.
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
        radius: The bound on norms; 0.0: none yet, the norms of this step set it.
        rate: The learning rate.

    Returns:
        The next model, or None where a weight would not fit into a float32, and the next radius.
    """
    if not payloads or any(len(payload) != len(model) for payload in payloads):
        raise MisuseError("a step takes at least one payload, all as long as the model")
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


def _next_radius(norms: Sequence[float], radius: float) -> float:
    """The lower median of the selected norms, as far as the radius may move at once.

    On single float64 numbers, so its bits are exactly specified too.
    """
    moved = bound_radius(norms, previous=radius)
    assert moved is not None  # noqa: S101  # There is at least one norm.
    if not radius:
        return moved
    # Where half of all updates are zero it would fall for ever, in the end below what float64
    # represents on every machine. A bound that only zero passes is small enough.
    return max(moved, SMALLEST)


def _flushed(data: bytes) -> npt.NDArray[np.float32]:
    bits = np.frombuffer(data, _BITS)
    return np.where(bits & _EXPONENT == 0, np.uint32(0), bits).astype(_BITS).view(_SINGLE)


# ----------------------------------------------------------------------------------- known answer

_KNOWN_ANSWER = "85a324e2d5ad19a8b2e2fcdc9249fc1b09e2d0b73d86dffdad0ad1303612605c"


def known_answer_fault() -> str | None:
    """Why this machine must not vote: it computes another model than the rest; None: it may."""
    model, *payloads = (_known_vector(number) for number in range(8))
    radius = sorted(norm(payload) for payload in payloads)[2]
    found, radius = combine(model, payloads, radius=radius, rate=0.1)
    # Another order of summation shows in few norms, so many are taken.
    norms = [norm(payload[cut:]) for payload in payloads for cut in range(0, 2_000, 100)]
    answer = sha256(b"".join([found or b"", *map(f64, [radius, *norms])]))
    if answer.hexdigest() != _KNOWN_ANSWER:
        return "this machine's arithmetic does not give the known answer for a step"
    return None


def _known_vector(number: int) -> bytes:
    """Numbers of all mantissas and of many magnitudes, made without arithmetic."""
    words = stream(0, "known answer", number)
    bits = [
        (words.below(2) << 31) | ((107 + words.below(25)) << 23) | words.below(1 << 23)
        for _ in range(1_000)
    ]
    return np.array(bits, _BITS).tobytes()
