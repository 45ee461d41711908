"""Named random streams: `stream(seed, "committee", round)` gives the same integers everywhere.

A stream is SHA-256 in counter mode over its name, so a new draw in one place moves no other, and
every machine, Python and library version draws the same. It hands out integers; for tensors of
noise, seed a generator with `Stream.generator_seed`.
"""

import hashlib
from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


class Stream:
    """An endless sequence of uniform integers, decided by a name alone; `stream` makes one.

    Args:
        name: What decides the integers.

    Example:
        >>> import holdout
        >>> source = holdout.stream(0, "example")
        >>> source.below(10) < 10, len(source.sample(range(100), 3))
        (True, 3)
    """

    def __init__(self, name: bytes) -> None:
        self._words = _words(name)

    def below(self, bound: int) -> int:
        """A uniform integer in [0, bound)."""
        if bound < 1:
            raise ValueError(f"a draw needs at least one outcome; got bound={bound}")
        # Words past the last whole multiple of the bound would favour small outcomes.
        limit = (1 << 64) - (1 << 64) % bound
        while True:
            word = next(self._words)
            if word < limit:
                return word % bound

    def sample(self, items: Sequence[T], count: int) -> list[T]:
        """`count` different items in random order (a partial Fisher-Yates shuffle)."""
        if not 0 <= count <= len(items):
            raise ValueError(f"cannot draw {count} of {len(items)} items without repetition")
        pool = list(items)
        for i in range(count):
            j = i + self.below(len(pool) - i)
            pool[i], pool[j] = pool[j], pool[i]
        return pool[:count]

    def generator_seed(self) -> int:
        """A seed for a generator of torch or numpy: 63 bits, since torch wants a signed one."""
        return next(self._words) >> 1


def stream(seed: int, *purpose: str | int) -> Stream:
    """The stream of this seed for this purpose.

    Args:
        seed: The seed of the run.
        purpose: What tells this draw from others, such as a word and the round.

    Example:
        >>> stream(0, "committee", 1).sample(range(10), 3)
        [6, 4, 9]
    """
    # repr keeps the parts apart: ("a", 1) and ("a1",) are different names.
    return Stream(repr((seed, *purpose)).encode())


def _words(name: bytes) -> Iterator[int]:
    key = hashlib.sha256(name).digest()
    counter = 0
    while True:
        block = hashlib.sha256(key + counter.to_bytes(8, "little")).digest()
        for start in range(0, 32, 8):
            yield int.from_bytes(block[start : start + 8], "little")
        counter += 1
