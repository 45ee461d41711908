"""How long a store keeps things, and what it takes."""

from dataclasses import dataclass
from pathlib import Path

from holdout.agreement.events import BlobKind

WORDS = {BlobKind.BLOCK: "bodies", BlobKind.PAYLOAD: "gradients", BlobKind.MODEL: "models"}
"""What operators call each kind of blob."""


@dataclass(frozen=True, slots=True)
class Retention:
    """For how many rounds things are kept; 0: for ever."""

    bodies: int = 100
    gradients: int = 2
    models: int = 3

    def of(self, kind: BlobKind) -> int:
        """For how many rounds blobs of this kind are kept."""
        match kind:
            case BlobKind.BLOCK:
                return self.bodies
            case BlobKind.PAYLOAD:
                return self.gradients
            case BlobKind.MODEL:
                return self.models


KEEP_EVERYTHING = Retention(0, 0, 0)


@dataclass(frozen=True, slots=True)
class Usage:
    """What a store takes, and how far back it reaches."""

    bytes: int
    free: int
    """Free space on its disk."""
    oldest: dict[str, int]
    """The oldest round of which bodies, gradients and models are kept."""

    def as_dict(self) -> dict[str, object]:
        """Plain values, for a report."""
        return {"bytes": self.bytes, "free": self.free, "oldest": self.oldest}


def size_of(path: Path) -> int:
    """The size of a file; 0: there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return 0
