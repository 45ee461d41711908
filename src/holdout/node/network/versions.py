"""Which versions of the wire format a node speaks, and whether two nodes understand each other.

1  no node says which version it speaks
2  each node says it, to every member that it begins to hear

A node understands its own version and the one before, so that members can be upgraded one at a
time. With one that is further away nothing is exchanged, and both sides say why.
"""

from dataclasses import dataclass

from holdout import __version__
from holdout.agreement.codec import Reader, text, u32

NEWEST = 2
SOFTWARE_BYTES_MAX = 32


@dataclass(frozen=True, slots=True)
class Spoken:
    """The versions that a node speaks, and the software that it runs."""

    oldest: int = NEWEST - 1
    newest: int = NEWEST
    software: str = __version__

    def common(self, other: "Spoken") -> int | None:
        """The newest version that both speak; None: there is none.

        Example:
            >>> Spoken(1, 2).common(Spoken(2, 3)), Spoken(1, 2).common(Spoken(3, 4))
            (2, None)
        """
        newest = min(self.newest, other.newest)
        return newest if newest >= max(self.oldest, other.oldest) else None

    def encode(self) -> bytes:
        """The canonical bytes."""
        return u32(self.oldest) + u32(self.newest) + text(self.software[:SOFTWARE_BYTES_MAX])

    def refusal(self, other: "Spoken") -> str:
        """Why these two do not understand each other, in words."""
        older = "this node" if self.newest < other.newest else "the other"
        return (
            f"it speaks versions {other.oldest} to {other.newest} of the wire format (holdout"
            f" {other.software}), this node {self.oldest} to {self.newest} (holdout"
            f" {self.software}): upgrade {older}"
        )


FIRST = Spoken(1, 1, "unknown")
"""What a node speaks that says nothing about it."""


def read_spoken(reader: Reader) -> Spoken:
    """The versions of another node."""
    oldest, newest = reader.u32(), reader.u32()
    software = reader.blob(SOFTWARE_BYTES_MAX).decode("ascii", "replace")
    return Spoken(oldest, newest, "".join(c for c in software if c.isprintable()))
