"""How long a store keeps things, and what it takes."""

from dataclasses import dataclass
from pathlib import Path

from holdout.agreement.events import BlobKind

WORDS = {BlobKind.BLOCK: "bodies", BlobKind.PAYLOAD: "gradients", BlobKind.MODEL: "models"}
"""What operators call each kind of blob."""


@dataclass(frozen=True, slots=True)
class Retention:
    """How long things are kept: so many rounds at least, and so many hours if there is room."""

    bodies: int = 100
    """The last rounds, whatever they take; 0: for ever."""
    gradients: int = 2
    models: int = 3
    bodies_hours: float = 0.0
    gradients_hours: float = 0.0
    models_hours: float = 0.0
    bytes_max: int = 0
    """With more than this, what is kept by the hour goes, the oldest first; 0: no limit."""

    def of(self, kind: BlobKind) -> int:
        """For how many rounds blobs of this kind are kept, at least."""
        return int(getattr(self, WORDS[kind]))

    def seconds(self, kind: BlobKind) -> float:
        """For how long blobs of this kind are kept, if there is room."""
        return 3_600 * float(getattr(self, f"{WORDS[kind]}_hours"))


FIRST_TO_GO = (BlobKind.PAYLOAD, BlobKind.BLOCK, BlobKind.MODEL)
"""What is given up first where there is too little room."""
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


def age_of(path: Path, now: float) -> float:
    """How long ago a file was written, in seconds; one that is missing is as old as can be."""
    try:
        return now - path.stat().st_mtime
    except OSError:
        return now
