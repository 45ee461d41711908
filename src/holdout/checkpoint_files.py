"""Saved states to resume from: plain arrays and a checksum, nothing that could be executed."""

import hashlib
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt

from holdout.curve_rows import CurveKey
from holdout.errors import RunFolderError

SCHEMA = 1
ENDS = Path("checkpoint") / "ends"
"""Where a run folder keeps the states in which curves ended."""

Arrays = Mapping[str, npt.NDArray[Any]]

_READING = Lock()
"""Held while numpy reads headers: it parses them with `ast`, which on Python 3.11 occasionally
fails with a SystemError when two threads do it at once."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state to continue from: how many rounds are recorded, and what the next one needs."""

    meta: Mapping[str, Any]
    arrays: Arrays


def encode(checkpoint: Checkpoint) -> bytes:
    """The bytes of a file: an .npz archive, then its SHA-256."""
    meta = json.dumps({**checkpoint.meta, "schema": SCHEMA}, allow_nan=False, ensure_ascii=False)
    buffer = io.BytesIO()
    header = np.frombuffer(meta.encode(), np.uint8)
    np.savez(buffer, allow_pickle=False, **{"meta": header, **checkpoint.arrays})
    content = buffer.getvalue()
    # A zip's own checksums leave its headers out.
    return content + hashlib.sha256(content).digest()


def decode(data: bytes) -> Checkpoint:
    """The checkpoint in the bytes of a file.

    Raises:
        ValueError: The bytes are damaged, or of another schema. Damage to what is inside may also
            raise KeyError, TypeError, EOFError or OSError.
    """
    size = hashlib.sha256().digest_size
    content, digest = data[:-size], data[-size:]
    if hashlib.sha256(content).digest() != digest:
        raise ValueError("its checksum is wrong")
    with _READING, np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        found = {name: arrays[name] for name in arrays.files}
    meta = json.loads(found.pop("meta").tobytes())
    if meta["schema"] != SCHEMA:
        raise ValueError("its schema is unknown")
    return Checkpoint(meta, found)


def end_path(key: CurveKey, round_number: int) -> Path:
    """Where a run folder keeps the state in which a curve ended."""
    return ENDS / f"{key.file_name(round_number)}.npz"


def read_end(path: Path, key: CurveKey, round_number: int) -> Checkpoint:
    """The state in which a curve ended, from a run folder."""
    file = path / end_path(key, round_number)
    if not file.exists():
        raise RunFolderError(
            f"{file} is missing, and with it the state of {key} after round {round_number}; "
            "the run cannot have more rounds"
        )
    try:
        return decode(file.read_bytes())
    except (OSError, ValueError, KeyError, TypeError, EOFError) as error:
        raise RunFolderError(f"{file} is damaged ({error}); the run cannot go on") from error
