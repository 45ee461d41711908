"""Opening a store when its node starts, or noticing that it was lost.

A missing or unreadable store means amnesia: the node may have forgotten votes. It gets an empty
store that says so, and only watches until others have told it how far the chain is. A store that
was copied here, say from a backup, keeps its chain and forgets its votes, with the same effect.
"""

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from holdout.agreement import aggregate, safety
from holdout.agreement.events import BlobKind
from holdout.agreement.params import Genesis
from holdout.errors import UserError
from holdout.ids import Digest
from holdout.node.storage.retention import Retention
from holdout.node.storage.store import BLOBS, DATABASE, Store, failing_clearly, make

COPIED = (
    "the store in {folder} is a copy: this node may have voted since it was made, so it only"
    " watches until enough others have told it how far the chain is"
)


@dataclass(frozen=True, slots=True)
class Opened:
    """A store that was opened, and what the operator should know about it."""

    store: Store
    safety: bytes | None
    """The player's last state; None: amnesia."""
    notes: tuple[str, ...]


def open_store(
    folder: Path, genesis: Genesis, model: bytes, retention: Retention, free_bytes_min: int
) -> Opened:
    """Open the store of a node that starts; if it is lost or damaged, make an empty one.

    Raises:
        UserError: The store belongs to another network, or cannot be written.
    """
    found = _read_store(folder, genesis, retention, free_bytes_min)
    if not isinstance(found, str):
        store, state = found
        with failing_clearly(folder):
            _tidy(folder)
            copied = store.is_copy()
            store.take_as_own(forget_votes=copied)
        if copied:
            return Opened(store, None, (COPIED.format(folder=folder),))
        return Opened(store, state, ())
    note = (
        f"the store in {folder} is lost or damaged ({found}); this node may have forgotten votes,"
        " so it only watches until enough others have told it how far the chain is"
    )
    with failing_clearly(folder):
        _set_aside(folder)
        make(folder, genesis, None)
        _tidy(folder)
        store = Store(folder, retention, free_bytes_min)
        store.add_blob(BlobKind.MODEL, genesis.params.model_first, model, 0, durable=True)
    return Opened(store, None, (note,))


def _read_store(
    folder: Path, genesis: Genesis, retention: Retention, free_bytes_min: int
) -> tuple[Store, bytes | None] | str:
    """The store and the player's last state, or what is wrong with it."""
    if not (folder / DATABASE).exists():
        return "there is no store"
    try:
        store = Store(folder, retention, free_bytes_min)
    except sqlite3.OperationalError as error:
        raise UserError(f"{folder / DATABASE} cannot be opened: {error}") from None
    except sqlite3.DatabaseError as error:
        return str(error)
    try:
        damage = store.damage()
        if damage is None:
            _check_chain(store, folder, genesis)
        state = None if damage else store.safety()
        if state is not None and safety.read_safety(state, genesis.chain) is None:
            damage = "the safety record is damaged"
    except BaseException:
        store.close()
        raise
    if damage is not None:
        store.close()
        return damage
    return store, state


def _check_chain(store: Store, folder: Path, genesis: Genesis) -> None:
    if store.chain() != genesis.chain:
        raise UserError(
            f"{folder} holds the store of another network, not of the one in the genesis file"
        )


def _tidy(folder: Path) -> None:
    """Remove what a crash left half-written; fails if the folder cannot be written."""
    probe = folder / BLOBS / ".probe.partial"
    probe.write_bytes(b"")
    for partial in (folder / BLOBS).glob(".*.partial"):
        partial.unlink()


def _set_aside(folder: Path) -> None:
    """Put a damaged store aside for whoever wants to look at it."""
    number = 1
    while (folder / f"damaged-{number}").exists():
        number += 1
    found = [path for path in (folder / DATABASE, folder / f"{DATABASE}-journal") if path.exists()]
    if found:
        (folder / f"damaged-{number}").mkdir()
        for path in found:
            path.replace(folder / f"damaged-{number}" / path.name)


def checked_blob(
    store: Store, genesis: Genesis, kind: BlobKind, digest: Digest, warn: Callable[[str], None]
) -> bytes | None:
    """A blob whose content matches its digest; a damaged one counts as lost."""
    data = store.blob(kind, digest)
    if data is None:
        return None
    if not aggregate.blob_matches(kind, digest, data, genesis.params):
        warn(
            f"{kind.name.lower()} {digest.hex()[:16]} is damaged on disk; it will be fetched again"
        )
        return None
    return data
