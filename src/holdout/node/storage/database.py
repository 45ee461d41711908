"""Opening a store's database, copying it while others write, and telling a copy from the original.

A copy of a store may be older than the last vote of its node. A node that voted by such a memory
might sign two different things. So a database knows the file in which it was made, by number and
time of birth: one that was copied back lies in another file, and its node has lost its memory.
"""

import ctypes
import os
import sqlite3
import struct
import time
from pathlib import Path

from holdout.errors import UserError

BUSY_SECONDS_MAX = 60.0
"""How long a write waits for readers, and a reader for writes. Both should take a moment only."""
_STATX_BYTES, _STATX_BTIME, _BTIME_OFFSET = 256, 0x800, 80
_AT_FDCWD = -100


def connect(path: Path) -> sqlite3.Connection:
    """Open a database for reading and writing."""
    # Any thread may use it; the driver makes sure that only one does at a time. No lock is held
    # between writes, so that others can read. Without that lock only PERSIST and TRUNCATE sync the
    # end of the journal: a deleted one may come back after a power cut and undo the last commit.
    database = sqlite3.connect(
        path, isolation_level=None, check_same_thread=False, timeout=BUSY_SECONDS_MAX
    )
    for setting in (
        "journal_mode = PERSIST",
        "synchronous = FULL",
        "trusted_schema = OFF",
        "cell_size_check = ON",
    ):
        database.execute(f"PRAGMA {setting}")
    return database


def private_copy(path: Path) -> sqlite3.Connection:
    """A private copy, in memory or, if it is large, in a temporary file without a name."""
    end = time.monotonic() + BUSY_SECONDS_MAX

    def in_time(_status: int, remaining: int, _total: int) -> None:
        if remaining and time.monotonic() > end:
            raise UserError(f"{path} is being written to all the time; try again")

    copy = sqlite3.connect("", isolation_level=None)
    try:
        source = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        try:
            source.backup(copy, progress=in_time)
        finally:
            source.close()
    except sqlite3.Error as error:
        copy.close()
        raise UserError(f"{path} cannot be read: {error}") from None
    except BaseException:
        copy.close()
        raise
    return copy


def file_mark(path: Path) -> bytes:
    """What tells this file from any copy of it: its number, and when it was born, where known."""
    born = _birth(path)
    return f"{path.stat().st_ino}:{'' if born is None else born}".encode("ascii")


def _birth(path: Path) -> int | None:
    """When a file was made, in nanoseconds; None: the system does not say."""
    found = ctypes.create_string_buffer(_STATX_BYTES)
    try:
        answer = ctypes.CDLL(None).statx(_AT_FDCWD, os.fsencode(path), 0, _STATX_BTIME, found)
    except (OSError, AttributeError):
        return None
    (mask,) = struct.unpack_from("=I", found)
    if answer or not mask & _STATX_BTIME:
        return None
    seconds, nanoseconds = struct.unpack_from("=qI", found, _BTIME_OFFSET)
    return int(seconds) * 10**9 + int(nanoseconds)
