"""States on disk, to go on from: plain arrays and a checksum, nothing that could be executed."""

import hashlib
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

SCHEMA = 1

Arrays = Mapping[str, npt.NDArray[Any]]


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
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        found = {name: arrays[name] for name in arrays.files}
    meta = json.loads(found.pop("meta").tobytes())
    if meta["schema"] != SCHEMA:
        raise ValueError("its schema is unknown")
    return Checkpoint(meta, found)
