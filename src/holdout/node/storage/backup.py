"""A copy of a node's folder, made while the node runs, from which it can be restored.

It holds keys, certificates, settings, the member's own files and the chain, and no votes: whoever
starts a restored node starts one that has lost its memory, and knows it.
"""

import shutil
import sqlite3
from pathlib import Path

from holdout.errors import UserError
from holdout.node.membership.genesis import GENESIS
from holdout.node.storage.database import private_copy
from holdout.node.storage.folder_lock import LOCK
from holdout.node.storage.store import BLOBS, DATABASE, FOLDER

SOCKET_ENDING = ".sock"


def back_up(folder: Path, out: Path) -> int:
    """Copy a node's folder; the newest decided round in the copy."""
    if out.exists():
        raise UserError(f"{out} exists; a backup is never overwritten")
    if not (folder / GENESIS).exists() or not (folder / FOLDER / DATABASE).exists():
        raise UserError(f"{folder} is not the folder of a node that has joined a network")
    partial = out.with_name(f".{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(folder, partial, ignore=_left_out)
    (partial / FOLDER / BLOBS).mkdir(parents=True)
    with sqlite3.connect(partial / FOLDER / DATABASE, isolation_level=None) as target:
        source = private_copy(folder / FOLDER / DATABASE)
        source.backup(target)
        source.close()
        target.execute("DELETE FROM safety")
        height = target.execute("SELECT max(round) FROM finished").fetchone()[0] or 0
    target.close()
    for blob in (folder / FOLDER / BLOBS).iterdir():
        # A blob may be dropped while we copy; whoever needs it fetches it from others.
        if not blob.name.startswith("."):
            try:
                shutil.copyfile(blob, partial / FOLDER / BLOBS / blob.name)
            except FileNotFoundError:
                continue
    partial.rename(out)
    return int(height)


def _left_out(where: str, names: list[str]) -> set[str]:
    """The store is copied by other means; sockets and locks belong to the running process."""
    del where
    return {
        name
        for name in names
        if name in {FOLDER, LOCK, "__pycache__"} or name.endswith(SOCKET_ENDING)
    }
