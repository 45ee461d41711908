"""Sketches: a few thousand integers that keep the inner products of long updates.

A sketch of x is S x, where S has k rows of random signs; ⟨S x, S y⟩ / k is near ⟨x, y⟩. Whoever
holds the sketches of proposals and of voters' gradients has every inner product that a joint
judgement needs, whatever the number of weights.

**How near.** For fixed x, | |S x|² / k - |x|² | > ε |x|² with probability at most
2 exp(-k (ε²/4 - ε³/6)) (Achlioptas, 2003, for each of the two tails; 0 < ε < 1). For unit x and y,
4⟨x, y⟩ = |x + y|² - |x - y|², and |x + y|² + |x - y|² = 4: where both squares are kept within the
share ε, so is the product within ε. N vectors have N (N - 1) sums and differences and N squares,
hence N² things that may fail, and k >= ln(2 N² / δ) / (ε²/4 - ε³/6) is enough (`size_for`).

**Only if S is drawn after the vectors are fixed.** Since d > k, a liar that knows S can add to its
update anything that S maps to zero, and no sketch will show it.

**Why dense signs.** A sparse S (Kane and Nelson, 2014) with such a bound needs about ln(1/δ) / ε
entries in each column, here a hundred of 2,000; a scattered addition takes the time of fifty
multiplications in a matrix product, so nothing would be gained. Counting sketches with a few
entries a column have no bound of this kind for vectors that a liar chooses. Signs take 16 bytes of
hash for each weight and 128 rows; a core draws those of 2,000 rows for 80,000 weights in an eighth
of a second, for 11,000,000 in some 16 seconds, and then each vector takes a hundredth of a second
or one second.

**The same on all machines.** Sums of floats depend on their order, so updates become integers
first, number by number (`quantise`). Everything after that is exact: products and sums of integers
below 2^53, which float64 holds, in whatever order.
"""

import hashlib
import math

import numpy as np
import numpy.typing as npt

from holdout.errors import MisuseError
from holdout.seeds import stream

Integers = npt.NDArray[np.int64]

BITS = 20
"""An update as long as the radius is 2^BITS long as integers. Rounding adds at most √d / 2 to that:
0.2 % for eleven million weights."""

ENTRY_MAX = 1 << 25
"""No entry of a sketch is larger. One entry is a sum of random signs times an update that is 2^20
long: it comes this far, 32 deviations, with a probability below 2 exp(-500). For an update longer
than the radius, or a sketch that somebody made up, larger entries are cut here."""

SIZE_MAX = 4096
"""With at most this many entries, inner products stay below 2^62 and int64 holds them."""

_WIDTH = 128
"""Columns of the matrix that are drawn at a time. Another number means other matrices."""

_SIGNS = 1.0 - 2.0 * ((np.arange(256)[:, None] >> np.arange(8)) & 1)
"""The eight signs that a byte stands for."""

_EXACT = 1 << 53


def size_for(error: float, vectors: int, failure: float) -> int:
    """How many entries keep all inner products of this many vectors: a multiple of eight.

    Args:
        error: ε: a product of x and y is kept within ε |x| |y|.
        vectors: N: the products are those of all pairs, and the squares.
        failure: δ: with at most this probability some product is not kept.

    Example:
        >>> size_for(0.2, vectors=60, failure=0.001)
        1824
    """
    if not (0 < error < 1 and vectors >= 1 and 0 < failure < 1):
        raise MisuseError(
            "a sketch needs 0 < error < 1, vectors >= 1 and 0 < failure < 1; "
            f"got {error}, {vectors} and {failure}"
        )
    rate = error**2 / 4 - error**3 / 6
    return 8 * math.ceil(math.log(2 * vectors**2 / failure) / rate / 8)


def quantise(updates: npt.NDArray[np.floating], *, radius: float) -> Integers:
    """The updates in units of radius / 2^BITS, each number rounded by itself, to even at a half.

    Args:
        updates: Finite updates, of any shape, bounded to the radius; a number beyond it is cut.
        radius: What the longest update may measure.

    Example:
        >>> quantise(np.array([0.5, -0.25, 1e-9]), radius=0.5).tolist()
        [1048576, -524288, 0]
    """
    if not (math.isfinite(radius) and radius > 0 and np.isfinite(updates).all()):
        raise MisuseError(f"what is quantised must be finite, its radius positive; got {radius}")
    # Far beyond the radius the quotient may overflow, which is cut like the rest.
    with np.errstate(over="ignore"):
        shares = np.clip(updates.astype(np.float64) / radius, -1.0, 1.0)
    whole: Integers = np.rint(shares * (1 << BITS)).astype(np.int64)
    return whole


def sketch(vectors: Integers, *, size: int, seed: int, round_number: int) -> Integers:
    """The sketches (n, size) of integer vectors (n, d): a linear map, exact where nothing is cut.

    The matrix is decided by seed and round alone, and never there as a whole: blocks of columns
    are drawn one after the other.

    Args:
        vectors: What `quantise` makes of updates.
        size: The number of entries, a multiple of eight: see `size_for`.
        seed: A seed that nobody knew when the vectors were fixed.
        round_number: The round.

    Example:
        >>> x = quantise(np.linspace(-0.02, 0.03, 2_000)[None], radius=1.0)
        >>> y = sketch(x, size=1824, seed=0, round_number=1)
        >>> y.shape, bool(np.isclose(inner_products(y)[0, 0] / 1824, (x**2).sum(), rtol=0.2))
        ((1, 1824), True)
    """
    if size % 8 or not 8 <= size <= SIZE_MAX:  # noqa: PLR2004 - signs come in bytes.
        raise MisuseError(f"a sketch has a multiple of 8 entries, at most {SIZE_MAX}; got {size}")
    n, d = vectors.shape
    if np.abs(vectors).max(initial=0) * max(d, 1) >= _EXACT:
        raise MisuseError("the vectors are too large for sums of their numbers to be exact")
    source = stream(seed, "sketch", round_number)
    key = b"".join(source.below(1 << 64).to_bytes(8, "little") for _ in range(4))
    total, signs = np.zeros((n, size)), np.empty((_WIDTH, size // 8, 8))
    for start in range(0, d, _WIDTH):
        block = vectors[:, start : start + _WIDTH].astype(np.float64)
        _draw_signs(key, start, out=signs)
        total += block @ signs.reshape(_WIDTH, size)[: block.shape[1]]
    return np.clip(total, -ENTRY_MAX, ENTRY_MAX).astype(np.int64)


def _draw_signs(key: bytes, start: int, *, out: npt.NDArray[np.float64]) -> None:
    """The columns of the matrix from `start` on, each as a row of bytes of eight signs."""
    # SHAKE-256 hands out any number of bits at once, which takes a tenth of the time of a stream.
    bits = hashlib.shake_256(key + start.to_bytes(8, "little")).digest(out.size // 8)
    # No byte is out of range; "clip" spares numpy a copy that it makes to raise otherwise.
    np.take(_SIGNS, np.frombuffer(bits, np.uint8).reshape(out.shape[:2]), 0, out, mode="clip")


def inner_products(sketches: Integers, others: Integers | None = None) -> Integers:
    """The exact inner products of sketches, (n, n), or with others, (n, m).

    They are `size` times those of the vectors, but for the sketch's error.

    Args:
        sketches: Sketches, (n, size).
        others: Other sketches, (m, size).

    Example:
        >>> inner_products(np.array([[3, -4], [1, 0]])).tolist()
        [[25, 3], [3, 1]]
    """
    others = sketches if others is None else others
    for one in (sketches, others):
        if one.shape[-1] > SIZE_MAX or np.abs(one).max(initial=0) > ENTRY_MAX:
            raise MisuseError(f"sketches have {SIZE_MAX} entries up to {ENTRY_MAX} at the most")
    return sketches @ others.T
