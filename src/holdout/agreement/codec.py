"""Canonical bytes: what is hashed, signed and sent has exactly one encoding.

Unsigned integers are big-endian and of fixed width; byte strings begin with a u32 length, and lists
with a u32 count. There are no optional fields, no maps, and no floats except parameters, written as
their eight IEEE bytes. Whatever the bytes, a reader raises nothing but `InvalidMessage`, and
`Reader.end` refuses what is left over, so that decoding is the inverse of encoding.
"""

import struct
from collections.abc import Callable, Iterable
from hashlib import sha256
from typing import Any, TypeVar

from holdout.errors import InvalidMessage
from holdout.ids import Digest

T = TypeVar("T")

DIGEST_BYTES = 32
BOTTOM = Digest(bytes(DIGEST_BYTES))
"""The value of a vote for no block at all."""


def u8(value: int) -> bytes:
    """An integer as one byte."""
    return value.to_bytes(1, "big")


def u32(value: int) -> bytes:
    """An integer as four bytes."""
    return value.to_bytes(4, "big")


def u64(value: int) -> bytes:
    """An integer as eight bytes."""
    return value.to_bytes(8, "big")


def f64(value: float) -> bytes:
    """A float parameter as its eight IEEE bytes."""
    return struct.pack(">d", value)


def blob(value: bytes) -> bytes:
    """A byte string with its length in front."""
    return len(value).to_bytes(4, "big") + value


def text(value: str) -> bytes:
    """ASCII text as a byte string."""
    return blob(value.encode("ascii"))


def items(encoded: Iterable[bytes]) -> bytes:
    """A list of encoded items with its count in front."""
    parts = list(encoded)
    return b"".join([u32(len(parts)), *parts])


def digest(tag: str, *fields: bytes) -> Digest:
    """H(tag, fields): SHA-256 over the tag and the encoded fields; each use has its own tag."""
    return Digest(sha256(text(tag) + b"".join(fields)).digest())


class Reader:
    """Reads canonical bytes field by field; raises `InvalidMessage`."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def u8(self) -> int:
        """Read an integer of one byte."""
        return self._integer(1)

    def u32(self) -> int:
        """Read an integer of four bytes."""
        return self._integer(4)

    def u64(self) -> int:
        """Read an integer of eight bytes."""
        return self._integer(8)

    def f64(self) -> float:
        """Read a float parameter from its eight IEEE bytes."""
        value: float = struct.unpack(">d", self._take(8))[0]
        return value

    def blob(self, size_max: int) -> bytes:
        """Read a byte string of at most `size_max` bytes."""
        size = self._integer(4)
        if size > size_max:
            raise InvalidMessage(f"a field holds at most {size_max} bytes; got {size}")
        return self._take(size)

    def exactly(self, size: int) -> bytes:
        """Read a byte string of exactly `size` bytes."""
        value = self.blob(size)
        if len(value) != size:
            raise InvalidMessage(f"a field must hold {size} bytes; got {len(value)}")
        return value

    def digest(self) -> Digest:
        """Read a digest."""
        return Digest(self.exactly(DIGEST_BYTES))

    def items(self, read: Callable[["Reader"], T], count_max: int) -> tuple[T, ...]:
        """Read a list of at most `count_max` items."""
        return tuple(read(self) for _ in range(self._count(count_max)))

    def rows(self, layout: struct.Struct, count_max: int) -> list[tuple[Any, ...]]:
        """Read a list of at most `count_max` items of one size all at once, as it may be long."""
        count = self._count(count_max)
        return list(layout.iter_unpack(self._take(count * layout.size)))

    def end(self) -> None:
        """Refuse bytes that are left over."""
        left = len(self._data) - self._at
        if left:
            raise InvalidMessage(f"the message goes on for {left} bytes after its end")

    def _count(self, count_max: int) -> int:
        count = self._integer(4)
        if count > count_max:
            raise InvalidMessage(f"a list holds at most {count_max} items; got {count}")
        return count

    def _integer(self, size: int) -> int:
        return int.from_bytes(self._take(size), "big")

    def _take(self, size: int) -> bytes:
        end = self._at + size
        if end > len(self._data):
            raise InvalidMessage("the message is cut off")
        taken = self._data[self._at : end]
        self._at = end
        return taken


def decode(data: bytes, read: Callable[[Reader], T]) -> T:
    """The one value that these bytes hold; raises `InvalidMessage`."""
    reader = Reader(data)
    value = read(reader)
    reader.end()
    return value
