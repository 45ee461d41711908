"""The store on a thread of its own, so that the driver waits only for what must be durable."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from holdout.agreement.blocks import read_block
from holdout.agreement.events import BlobKind, Commit, Persist, ReportEvidence
from holdout.agreement.headers import read_header
from holdout.agreement.messages import Finished
from holdout.errors import InvalidMessage
from holdout.ids import Digest
from holdout.node.network.blobs import Blobs
from holdout.node.runtime.measure import Spent, stopwatch
from holdout.node.storage.store import Store

T = TypeVar("T")


class Archive:
    """A store for the driver's loop: all its work is done on one thread.

    Attributes:
        last: The newest decided round, with its certificate; None: there is none yet.
        usage: What the store takes, after the newest decided round.
    """

    def __init__(self, store: Store, blobs: Blobs, spent: Spent) -> None:
        self._store = store
        self._blobs = blobs
        self._spent = spent
        self._thread = ThreadPoolExecutor(1, "store")
        height = store.height()
        found = store.finished(height, height)
        self.last: Finished | None = found[0] if found else None
        self.usage = store.usage()

    @property
    def steps(self) -> int:
        """How many steps the decided rounds have made."""
        return 0 if self.last is None else read_header(self.last.header).steps

    def close(self) -> None:
        """Wait for what is being written."""
        self._thread.shutdown(wait=True)

    async def _do(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def persist(self, persists: Sequence[Persist], round_number: int) -> None:
        """Make all of these durable in one write; raises StoreError."""
        blobs = []
        for kind, digest in dict.fromkeys(item for persist in persists for item in persist.blobs):
            data = self._blobs.get(kind, digest)
            if data is not None:
                blobs.append((kind, digest, data, round_number))
        finished = [
            (read_header(item.header).round, item)
            for persist in persists
            for item in persist.finished
        ]
        # Each state replaces the one before.
        state = persists[-1].safety
        with stopwatch(self._spent, "disk"):
            await self._do(lambda: self._store.persist(state, finished, blobs))
        if finished:
            self.last = finished[-1][1]

    async def finish(self, commit: Commit) -> None:
        """Keep the blobs of a decided round for others and for audits."""
        kept = self._retained(commit)
        await self._do(lambda: self._store.finish_round(commit.round, kept))
        self.usage = await self._do(self._store.usage)

    def _retained(self, commit: Commit) -> list[tuple[BlobKind, Digest, bytes, int]]:
        """The body and the selected gradients of a decided round, as far as they are here."""
        body = self._blobs.get(BlobKind.BLOCK, commit.value)
        if body is None:
            return []
        found = [(BlobKind.BLOCK, commit.value, body, commit.round)]
        try:
            updates = read_block(body).updates
        except InvalidMessage:  # A decided round has a valid body.
            return []
        for update in updates:
            data = self._blobs.get(BlobKind.PAYLOAD, update.payload)
            if data is not None and update.worker in (commit.selected or ()):
                found.append((BlobKind.PAYLOAD, update.payload, data, commit.round))
        return found

    async def add_evidence(self, report: ReportEvidence) -> None:
        """Keep the proof that a worker was caught lying."""
        await self._do(
            lambda: self._store.add_evidence(report.worker, report.round, report.evidence)
        )

    async def finished(self, first: int, last: int) -> list[Finished]:
        """The decided rounds from `first` to `last`."""
        return await self._do(lambda: self._store.finished(first, last))
