"""A node's store for an audit or an export, whether the node runs or not."""

import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from holdout.errors import UserError
from holdout.ids import Digest
from holdout.node.membership.genesis import GENESIS, Network
from holdout.node.storage.audit import model_of_round
from holdout.node.storage.model_files import save_model
from holdout.node.storage.store import DATABASE, FOLDER, Retention, Store, locked_if_free


@contextmanager
def opened(folder: Path) -> Iterator[tuple[Store, Network]]:
    """The store and the network of a node; if it runs, as they are at this moment."""
    network = Network.read(folder / GENESIS)
    if not (folder / FOLDER / DATABASE).exists():
        raise UserError(f"{folder} has no store")
    with ExitStack() as stack:
        free = stack.enter_context(locked_if_free(folder))
        store = stack.enter_context(_open(folder / FOLDER, free=free))
        damage = store.damage()
        if damage is not None:
            raise UserError(f"the store in {folder / FOLDER} is damaged: {damage}")
        if store.chain() != network.genesis.chain:
            raise UserError(f"the store in {folder / FOLDER} is of another network")
        yield store, network


def _open(folder: Path, *, free: bool) -> Store:
    if not free:
        return Store.snapshot(folder)
    try:
        return Store(folder, Retention(0, 0, 0), 0)
    except sqlite3.Error as error:
        raise UserError(f"{folder / DATABASE} cannot be opened: {error}") from None


def export(folder: Path, number: int | None, out: Path) -> Digest:
    """Write the model of a round; the newest if none is named."""
    with opened(folder) as (store, network):
        wanted = store.height() if number is None else number
        digest, data = model_of_round(store, network.genesis, wanted)
        metadata = {
            "network": network.identity,
            "round": str(wanted),
            "model": digest.hex(),
        }
        save_model(out, network.file.model, data, metadata)
    return digest
