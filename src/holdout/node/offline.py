"""A node's store while the node does not run: opened for an audit or an export."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdout.errors import UserError
from holdout.ids import Digest
from holdout.node.audit import model_of_round
from holdout.node.genesis import GENESIS, Network
from holdout.node.store import DATABASE, FOLDER, Retention, Store, locked
from holdout.node.weights import save_model


@contextmanager
def opened(folder: Path) -> Iterator[tuple[Store, Network]]:
    """The store and the network of a node that does not run."""
    network = Network.read(folder / GENESIS)
    if not (folder / FOLDER / DATABASE).exists():
        raise UserError(f"{folder} has no store")
    with locked(folder), Store(folder / FOLDER, Retention(0, 0, 0), 0) as store:
        damage = store.damage()
        if damage is not None:
            raise UserError(f"the store in {folder / FOLDER} is damaged: {damage}")
        if store.chain() != network.genesis.chain:
            raise UserError(f"the store in {folder / FOLDER} is of another network")
        yield store, network


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
