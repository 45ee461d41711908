"""One process at a time in a node's folder."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from holdout.errors import UserError

LOCK = ".lock"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes out of a node's folder."""
    try:
        file = (folder / LOCK).open("wb")
    except OSError as error:
        raise UserError(f"{folder} cannot be used: {error.strerror}") from None
    with file:
        if not _lock(file):
            raise UserError(f"another process runs the node in {folder}")
        yield


@contextmanager
def locked_if_free(folder: Path) -> Iterator[bool]:
    """Keep nodes out of a folder; False: one runs there, or the folder cannot be written."""
    try:
        file = (folder / LOCK).open("wb")
    except OSError:
        yield False
        return
    with file:
        yield _lock(file)


def _lock(file: BinaryIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
