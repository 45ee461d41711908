"""What outlives a crash: one SQLite file, and blobs as files named by their digest.

    store/node.sqlite    safety (one row), decided rounds, evidence, and which blobs are kept
    store/blobs/         KIND-DIGEST, written under another name, synced, then renamed

The rule behind it: nothing signed leaves the node before it is durable, and a store that has lost
something must show it. Hence SQLite's rollback journal and not its write-ahead log: a log whose end
is cut off or damaged passes for a shorter one, and the node would vote again without knowing that
it has voted (`docs/decisions/0011-rollback-journal.md`).

A store is made once, by `Store.create`, when a member joins a network. `store_recovery` opens it
when the node starts, and notices if it was lost. `Store.snapshot` reads it while the node runs.
"""

import os
import shutil
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from holdout.agreement import safety
from holdout.agreement.codec import decode
from holdout.agreement.events import BlobKind
from holdout.agreement.headers import read_header
from holdout.agreement.messages import Evidence, Finished
from holdout.agreement.params import Genesis
from holdout.agreement.wire import read_bundle, read_evidence
from holdout.errors import InvalidMessage, StoreError, UserError
from holdout.ids import Digest
from holdout.node.storage.database import connect, file_mark, private_copy
from holdout.node.storage.retention import (
    FIRST_TO_GO,
    KEEP_EVERYTHING,
    WORDS,
    Retention,
    Usage,
    age_of,
    size_of,
)

FOLDER, DATABASE, BLOBS = "store", "node.sqlite", "blobs"
SNAPSHOTS_MAX, SNAPSHOT_SECONDS = 5, 0.2
ROOM_FACTOR = 2
"""What is kept by the hour goes while less than so many times the least free space is left."""
YOUNG_MAX = 8
"""After so many blobs that are too young to go, older ones are not looked for."""
EVIDENCE_MAX = 10_000
"""How many pieces of evidence are kept: the newest."""

_SCHEMA = """
CREATE TABLE meta(key TEXT PRIMARY KEY, value BLOB NOT NULL) STRICT;
CREATE TABLE safety(id INTEGER PRIMARY KEY CHECK (id = 1), state BLOB NOT NULL) STRICT;
CREATE TABLE finished(round INTEGER PRIMARY KEY, header BLOB NOT NULL, certificate BLOB NOT NULL)
    STRICT;
CREATE TABLE blobs(digest BLOB PRIMARY KEY, kind INTEGER NOT NULL, round INTEGER NOT NULL) STRICT;
CREATE TABLE evidence(worker INTEGER, round INTEGER, kind INTEGER, proof BLOB NOT NULL,
    PRIMARY KEY (worker, round, kind)) STRICT;
"""
_INDEX = "CREATE INDEX IF NOT EXISTS blobs_by_round ON blobs(kind, round)"
"""So that what is old is found at once, however much is kept."""
_OLD = "SELECT digest FROM blobs WHERE kind = ? AND round <= ? ORDER BY round"
_OLDEST = "SELECT min(round) FROM blobs WHERE kind = ?"


class Store:
    """A node's durable memory, to be used by one thread at a time."""

    def __init__(
        self,
        folder: Path,
        retention: Retention,
        free_bytes_min: int,
        database: sqlite3.Connection | None = None,
    ) -> None:
        """Open the store of this folder; `database` is read in place of the one that is there."""
        self._blobs = folder / BLOBS
        self._folder = folder
        self._retention = retention
        self._free_bytes_min = free_bytes_min
        self._database = connect(folder / DATABASE) if database is None else database
        self._pinned: dict[Digest, bytes] = {}
        self._blob_bytes: int | None = None

    # -- making and opening -----------------------------------------------------------------------

    @classmethod
    def create(cls, folder: Path, genesis: Genesis, model: bytes) -> None:
        """Make a member's first store, with the first model in it."""
        if (folder / DATABASE).exists():
            raise UserError(f"{folder} has a store already")
        make(folder, genesis, safety.initial(genesis))
        store = cls(folder, Retention(), 0)
        with store:
            store.add_blob(BlobKind.MODEL, genesis.params.model_first, model, 0, durable=True)

    @classmethod
    def snapshot(cls, folder: Path) -> Self:
        """The store as it is at this moment, to be read while a node goes on writing.

        The node waits only while its database is copied. Blobs never change; those that the node
        drops meanwhile count as no longer kept, except the newest model, which is held in memory.
        """
        for _ in range(SNAPSHOTS_MAX - 1):
            store = cls(folder, KEEP_EVERYTHING, 0, private_copy(folder / DATABASE))
            if store.pin():
                return store
            store.close()
            time.sleep(SNAPSHOT_SECONDS)
        return cls(folder, KEEP_EVERYTHING, 0, private_copy(folder / DATABASE))

    def pin(self) -> bool:
        """Hold the newest model in memory, whatever happens to its file; False: it is gone."""
        newest = self._newest_models()
        found = {digest: self.blob(BlobKind.MODEL, digest) for digest in newest}
        self._pinned = {digest: data for digest, data in found.items() if data is not None}
        return len(self._pinned) == len(newest)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the database."""
        self._database.close()

    # -- writing ----------------------------------------------------------------------------------

    def check_room(self) -> None:
        """Raise StoreError if the disk is nearly full, before a write can fail half-way."""
        free = shutil.disk_usage(self._folder).free
        if free < self._free_bytes_min:
            raise StoreError(
                f"the disk of {self._folder} has {free >> 20} MB left, less than the"
                f" {self._free_bytes_min >> 20} MB that this node keeps free"
                " (storage.free_megabytes_min); nothing is lost: make room and start it again"
            )

    def persist(
        self,
        state: bytes,
        finished: Sequence[tuple[int, Finished]] = (),
        blobs: Sequence[tuple[BlobKind, Digest, bytes, int]] = (),
    ) -> None:
        """Make all of this durable, or raise and change nothing."""
        with failing_clearly(self._folder):
            self.check_room()
            new = [item for item in blobs if not self._is_kept(item[1])]
            for kind, digest, data, _ in new:
                self._write_blob(kind, digest, data, durable=True)
            if new:
                _sync_folder(self._blobs)
            with self._transaction() as database:
                # Old ones too: what was there already is now kept for this round as well.
                for kind, digest, _, round_number in blobs:
                    _note_blob(database, kind, digest, round_number)
                for round_number, item in finished:
                    database.execute(
                        "INSERT INTO finished VALUES (?, ?, ?)",
                        (round_number, item.header, item.certificate.encode_bare()),
                    )
                database.execute("INSERT OR REPLACE INTO safety VALUES (1, ?)", (state,))

    def add_blob(
        self, kind: BlobKind, digest: Digest, data: bytes, round_number: int, *, durable: bool
    ) -> None:
        """Keep a blob; one that is not durable may be lost in a crash, and nothing else with it."""
        with failing_clearly(self._folder):
            self._write_blob(kind, digest, data, durable=durable)
            if durable:
                _sync_folder(self._blobs)
            with self._transaction() as database:
                _note_blob(database, kind, digest, round_number)

    def add_evidence(self, worker: int, round_number: int, evidence: Evidence) -> None:
        """Keep the proof that a worker was caught lying."""
        with failing_clearly(self._folder), self._transaction() as database:
            database.execute(
                "INSERT OR IGNORE INTO evidence VALUES (?, ?, ?, ?)",
                (worker, round_number, int(evidence.first.kind), evidence.encode_bare()),
            )
            database.execute(
                "DELETE FROM evidence WHERE rowid <= (SELECT max(rowid) FROM evidence) - ?",
                (EVIDENCE_MAX,),
            )

    def finish_round(
        self, round_number: int, blobs: Sequence[tuple[BlobKind, Digest, bytes, int]]
    ) -> None:
        """Keep these blobs of a decided round, and drop what has been kept long enough."""
        with failing_clearly(self._folder):
            for kind, digest, data, _ in blobs:
                self._write_blob(kind, digest, data, durable=False)
            with self._transaction() as database:
                for kind, digest, _, of_round in blobs:
                    _note_blob(database, kind, digest, of_round)
                # Only now: a gradient may be the same as one of an earlier round.
                gone = self._outdated(round_number)
                database.executemany("DELETE FROM blobs WHERE digest = ?", [(d,) for _, d in gone])
            for kind, digest in gone:
                self._remove_blob(self._path(kind, digest))

    def _outdated(self, round_number: int) -> list[tuple[BlobKind, Digest]]:
        """What has been kept long enough, and what there is no room for."""
        gone: dict[Digest, BlobKind] = {}
        now = time.time()
        for kind in BlobKind:
            young = 0
            for digest in self._beyond(kind, round_number):
                if age_of(self._path(kind, digest), now) >= self._retention.seconds(kind):
                    gone[digest] = kind
                elif (young := young + 1) >= YOUNG_MAX:
                    break  # Later rounds are younger, but for single blobs that came late.
        excess = self._excess() - sum(size_of(self._path(k, d)) for d, k in gone.items())
        for kind in FIRST_TO_GO:
            for digest in self._beyond(kind, round_number):
                if excess <= 0:
                    break
                if digest not in gone:
                    gone[digest] = kind
                    excess -= size_of(self._path(kind, digest))
        return [(kind, digest) for digest, kind in gone.items()]

    def _beyond(self, kind: BlobKind, round_number: int) -> Iterator[Digest]:
        """Blobs that need not be kept for their round's sake, oldest first."""
        kept = self._retention.of(kind)
        if not kept:
            return
        newest = self._newest_models()
        rows = self._database.execute(_OLD, (int(kind), round_number - kept))
        yield from (Digest(row[0]) for row in rows if Digest(row[0]) not in newest)

    def _excess(self) -> int:
        """By how many bytes the store is too large, for its limit or for the disk."""
        usage = self.usage()
        most = self._retention.bytes_max or usage.bytes
        # The node stops below the least free space, so there must always be more.
        short = ROOM_FACTOR * self._free_bytes_min - usage.free
        return max(usage.bytes - most, short)

    def _newest_models(self) -> frozenset[Digest]:
        # A round without a step leaves the model as it is: the newest is kept, however old.
        row = self._database.execute("SELECT header FROM finished ORDER BY round DESC LIMIT 1")
        found = row.fetchone()
        return frozenset() if found is None else frozenset({read_header(found[0]).model})

    def _is_kept(self, digest: Digest) -> bool:
        found = self._database.execute("SELECT 1 FROM blobs WHERE digest = ?", (digest,))
        return found.fetchone() is not None

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield self._database
            self._database.execute("COMMIT")
        except BaseException:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            raise

    def _path(self, kind: BlobKind, digest: Digest) -> Path:
        return self._blobs / f"{kind.name.lower()}-{digest.hex()}"

    def _write_blob(self, kind: BlobKind, digest: Digest, data: bytes, *, durable: bool) -> None:
        path = self._path(kind, digest)
        if self._blob_bytes is not None:
            self._blob_bytes += len(data) - size_of(path)
        partial = path.with_name(f".{path.name}.partial")
        with partial.open("wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        partial.replace(path)

    def _remove_blob(self, path: Path) -> None:
        if self._blob_bytes is not None:
            self._blob_bytes -= size_of(path)
        path.unlink(missing_ok=True)

    # -- reading ----------------------------------------------------------------------------------

    def usage(self) -> Usage:
        """How much the store takes, and how far back it reaches."""
        if self._blob_bytes is None:
            self._blob_bytes = sum(size_of(path) for path in self._blobs.iterdir())
        oldest = {
            WORDS[kind]: self._database.execute(_OLDEST, (int(kind),)).fetchone()[0]
            for kind in BlobKind
        }
        return Usage(
            self._blob_bytes + size_of(self._folder / DATABASE),
            shutil.disk_usage(self._folder).free,
            {word: number for word, number in oldest.items() if number is not None},
        )

    def safety(self) -> bytes | None:
        """The player's last state; None: it was lost (amnesia)."""
        row = self._database.execute("SELECT state FROM safety").fetchone()
        return None if row is None else bytes(row[0])

    def chain(self) -> bytes:
        """The identity of the network that this store belongs to."""
        return self._meta("chain")

    def is_copy(self) -> bool:
        """Whether the database was copied here: its votes may not be the last ones."""
        made_in = self._meta("file")
        return made_in not in {b"", file_mark(self._folder / DATABASE)}

    def take_as_own(self, *, forget_votes: bool) -> None:
        """Note that the database lies in this file now, and forget votes that may be outdated."""
        with self._transaction() as database:
            database.execute(_INDEX)  # One made by an older version has none.
            if forget_votes:
                database.execute("DELETE FROM safety")
            mark = file_mark(self._folder / DATABASE)
            database.execute("INSERT OR REPLACE INTO meta VALUES ('file', ?)", (mark,))

    def _meta(self, key: str) -> bytes:
        row = self._database.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return b"" if row is None else bytes(row[0])

    def height(self) -> int:
        """The newest decided round; 0: none."""
        row = self._database.execute("SELECT max(round) FROM finished").fetchone()
        return row[0] or 0

    def finished(self, first: int, last: int) -> list[Finished]:
        """The decided rounds from `first` to `last`, in order."""
        rows = self._database.execute(
            "SELECT header, certificate FROM finished WHERE round BETWEEN ? AND ? ORDER BY round",
            (first, last),
        )
        return [Finished(bytes(h), decode(bytes(c), read_bundle)) for h, c in rows]

    def blob(self, kind: BlobKind, digest: Digest) -> bytes | None:
        """A blob that is kept, without checking its content; None: it is not."""
        if digest in self._pinned:
            return self._pinned[digest]
        try:
            return self._path(kind, digest).read_bytes()
        except OSError:
            return None

    def evidence(self) -> list[tuple[int, int, Evidence]]:
        """All evidence as (worker, round, evidence), oldest first."""
        rows = self._database.execute(
            "SELECT worker, round, proof FROM evidence ORDER BY round, worker, kind"
        )
        return [(w, r, decode(bytes(proof), read_evidence)) for w, r, proof in rows]

    def damage(self) -> str | None:
        """What is wrong with the database; None: nothing."""
        try:
            found = self._database.execute("PRAGMA integrity_check(1)").fetchone()
            if found[0] != "ok":
                return str(found[0])
            rounds = [row[0] for row in self._database.execute("SELECT round FROM finished")]
            if sorted(rounds) != list(range(1, len(rounds) + 1)):
                return "decided rounds are missing"
            for item in self.finished(1, len(rounds)):
                header = read_header(item.header)
                if item.certificate.value != header.digest:
                    return f"the certificate of round {header.round} does not fit its block"
            self.evidence()
        except (sqlite3.Error, InvalidMessage) as error:
            return str(error)
        return None


def make(folder: Path, genesis: Genesis, state: bytes | None) -> None:
    """Make a store; without a state, as one that has lost it."""
    (folder / BLOBS).mkdir(mode=0o700, parents=True, exist_ok=True)
    # Whole or not at all: a half-made store must not pass for one.
    partial = folder / f".{DATABASE}.partial"
    partial.unlink(missing_ok=True)
    database = connect(partial)
    try:
        database.executescript(f"BEGIN; {_SCHEMA} {_INDEX}; COMMIT;")
        database.execute("BEGIN IMMEDIATE")
        database.execute("INSERT INTO meta VALUES ('chain', ?)", (genesis.chain,))
        database.execute("INSERT INTO meta VALUES ('file', ?)", (file_mark(partial),))
        if state is not None:
            database.execute("INSERT INTO safety VALUES (1, ?)", (state,))
        database.execute("COMMIT")
    finally:
        database.close()
    partial.with_name(f"{partial.name}-journal").unlink(missing_ok=True)
    partial.replace(folder / DATABASE)
    _sync_folder(folder)


def _note_blob(
    database: sqlite3.Connection, kind: BlobKind, digest: Digest, round_number: int
) -> None:
    database.execute(
        "INSERT INTO blobs VALUES (?, ?, ?) ON CONFLICT (digest)"
        " DO UPDATE SET round = max(round, excluded.round)",
        (digest, int(kind), round_number),
    )


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def failing_clearly(folder: Path) -> Iterator[None]:
    """Turn a disk's errors into a StoreError that tells the operator what to do."""
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        raise StoreError(
            f"{folder} cannot be written ({error}); this node stops, since it must not say what it"
            " cannot remember. What was written before is whole: repair the disk and start it again"
        ) from error
