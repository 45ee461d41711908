"""What a simulated worker keeps: memory that a crash empties, and a disk that keeps what is synced.

A `Persist` action is written first and synced then; a crash in between loses it. A disk can be
lost as a whole, which is not the same as a new one: only registration makes a first store.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from holdout.agreement.events import BlobKind, Persist
from holdout.agreement.messages import Finished
from holdout.ids import Digest

MODELS_KEPT = 3
"""Models that are kept beyond those of the rounds in progress, for workers that catch up."""


@dataclass(slots=True)
class Disk:
    """The synced image, and what was written but not synced yet."""

    safety: bytes | None
    """The safety store; None: lost."""
    finished: list[Finished] = field(default_factory=list)
    """The decided rounds, round 1 first."""
    blobs: dict[Digest, tuple[BlobKind, bytes]] = field(default_factory=dict)
    _written: list[tuple[Persist, list[tuple[BlobKind, Digest, bytes]]]] = field(
        default_factory=list
    )
    writes: int = 0
    """Persists that were synced."""

    def write(self, persist: Persist, memory: "BlobMemory") -> None:
        """Hand it to the disk; a crash before `sync` loses it."""
        named = [
            (kind, digest, data)
            for kind, digest in persist.blobs
            if (data := memory.get(digest)) is not None
        ]
        self._written.append((persist, named))

    def sync(self) -> None:
        """Make durable what was written."""
        for persist, named in self._written:
            self.safety = persist.safety
            self.finished.extend(persist.finished)
            for kind, digest, data in named:
                self.blobs[digest] = (kind, data)
        self.writes += len(self._written)
        self._written.clear()

    def crash(self) -> None:
        """What was not synced is gone."""
        self._written.clear()

    def lose(self) -> None:
        """Everything is gone, for good."""
        self.safety = None
        self.finished.clear()
        self.blobs.clear()
        self._written.clear()

    def drop(self, digests: Sequence[Digest]) -> None:
        """Make room: nobody needs these any more."""
        for digest in digests:
            self.blobs.pop(digest, None)


@dataclass(slots=True)
class BlobMemory:
    """Blobs in hand, with the round in which each came."""

    _blobs: dict[Digest, tuple[BlobKind, bytes, int]] = field(default_factory=dict)
    _models: list[Digest] = field(default_factory=list)
    """Committed models, the newest last."""

    def get(self, digest: Digest) -> bytes | None:
        """The blob's bytes, if they are here."""
        found = self._blobs.get(digest)
        return None if found is None else found[1]

    def put(self, kind: BlobKind, digest: Digest, data: bytes, round_number: int) -> None:
        """Keep a blob; one that was here already counts as new."""
        self._blobs[digest] = (kind, data, round_number)

    def committed(self, model: Digest) -> None:
        """A round ended with this model."""
        if not self._models or self._models[-1] != model:
            self._models.append(model)
            del self._models[:-MODELS_KEPT]

    def forget(self, before_round: int) -> list[Digest]:
        """Drop what came before that round, except the newest models; what was dropped."""
        gone = [
            digest
            for digest, (_, _, came) in self._blobs.items()
            if came < before_round and digest not in self._models
        ]
        for digest in gone:
            del self._blobs[digest]
        return gone

    def restore(self, disk: Disk, round_number: int) -> None:
        """After a crash: only what is on the disk is left."""
        self._blobs = {
            digest: (kind, data, round_number) for digest, (kind, data) in disk.blobs.items()
        }

    @property
    def size(self) -> int:
        """Bytes held."""
        return sum(len(data) for _, data, _ in self._blobs.values())

    def __len__(self) -> int:
        return len(self._blobs)
