"""Who holds which rows, from a file: the user's own partition, checked before anybody uses it.

A JSON file holds a list of row numbers for each worker, [[0, 7, 3], [5, 1], ...]; an npz file holds
an array of them for each, named 0, 1, ...
"""

import json
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from holdout.data import files
from holdout.errors import DataError

Integers = NDArray[np.int64]


def read_partition(path: Path, *, workers: int, rows: int) -> list[Integers]:
    """The row numbers of each worker; a DataError if they cannot be used.

    Args:
        path: A JSON file, or an npz file if its name ends so.
        workers: How many workers there are.
        rows: How many training rows there are.
    """
    with files.readable(path):
        files.refuse_special(path)
        size = path.stat().st_size
    if size > files.BYTES_MAX:
        raise DataError(f"{path}: at most {files.BYTES_MAX} bytes are read; it has {size}")
    read = _read_npz if path.suffix == ".npz" else _read_json
    return checked_shards(read(path), workers=workers, rows=rows, name=str(path))


def checked_shards(shards: object, *, workers: int, rows: int, name: str) -> list[Integers]:
    """Shards from outside as arrays: one for each worker, of different rows that exist."""
    if not isinstance(shards, Sequence) or isinstance(shards, str | bytes):
        raise DataError(
            f"{name}: must give a list of row numbers for each worker; got {type(shards).__name__}"
        )
    if len(shards) != workers:
        raise DataError(
            f"{name}: must hold a shard for each of {workers} workers; has {len(shards)}"
        )
    return [_checked_shard(shard, rows, f"{name}: worker {i}") for i, shard in enumerate(shards)]


def _checked_shard(shard: object, rows: int, name: str) -> Integers:
    try:
        held = np.asarray(shard)
    except (TypeError, ValueError, OverflowError) as error:
        raise DataError(f"{name} needs a list of row numbers; {error}") from error
    if held.ndim != 1 or not len(held):
        raise DataError(f"{name} needs at least one row, in a plain list; got shape {held.shape}")
    if held.dtype.kind not in "iu":
        raise DataError(f"{name} needs whole numbers; got type {held.dtype}")
    low, high = int(held.min()), int(held.max())
    if low < 0 or high >= rows:
        raise DataError(
            f"{name} may hold rows from 0 to {rows - 1}; got {low if low < 0 else high}"
        )
    if len(np.unique(held)) < len(held):
        raise DataError(f"{name} holds a row twice")
    return held.astype(np.int64)


def _read_json(path: Path) -> object:
    try:
        with files.readable(path):
            shards = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not a readable JSON file: {error}") from error
    if not isinstance(shards, list) or not all(isinstance(shard, list) for shard in shards):
        raise DataError(f"{path}: must be a list with a list of row numbers for each worker")
    for number, shard in enumerate(shards):
        # numpy would take true for 1.
        wrong = next((row for row in shard if type(row) is not int), None)
        if wrong is not None:
            raise DataError(f"{path}: worker {number} needs whole numbers; got {wrong!r}")
    return shards


def _read_npz(path: Path) -> object:
    try:
        with files.readable(path), zipfile.ZipFile(path) as archive:
            return _read_members(archive, path)
    except DataError:
        raise
    except Exception as error:
        # Damage surfaces from zipfile and numpy as a dozen types, none of them promised.
        raise DataError(f"{path}: not a readable npz file: {error}") from error


def _read_members(archive: zipfile.ZipFile, path: Path) -> object:
    members = {info.filename: info for info in archive.infolist()}
    wanted = [f"{number}.npy" for number in range(len(members))]
    if sorted(members) != sorted(wanted):
        found = sorted(name.removesuffix(".npy") for name in members)
        raise DataError(
            f"{path}: must hold arrays named 0, 1, ..., one for each worker; "
            f"has {', '.join(found[:5])}"
        )
    total = sum(info.file_size for info in members.values())
    if total > files.BYTES_MAX:
        raise DataError(
            f"{path}: at most {files.BYTES_MAX} bytes are read; its index claims {total}"
        )
    return [files.read_npy(archive, members[name], path) for name in wanted]
