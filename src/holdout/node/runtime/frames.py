"""The pipe between a node and its learner: a JSON header and raw bytes, both with a length."""

import json
import struct
from typing import Any, BinaryIO

_LENGTHS = struct.Struct("<IQ")
HEADER_BYTES_MAX = 1 << 24
BODY_BYTES_MAX = 1 << 36


def pack(header: dict[str, Any], body: bytes = b"") -> bytes:
    """One frame."""
    head = json.dumps(header).encode()
    return _LENGTHS.pack(len(head), len(body)) + head + body


def lengths(prefix: bytes) -> tuple[int, int]:
    """The sizes of what follows; raises ValueError where nobody of ours wrote them."""
    head, body = _LENGTHS.unpack(prefix)
    if head > HEADER_BYTES_MAX or body > BODY_BYTES_MAX:
        raise ValueError("this is no frame")
    return head, body


PREFIX_BYTES = _LENGTHS.size


def read(file: BinaryIO) -> tuple[dict[str, Any], bytes] | None:
    """The next frame; None at the end."""
    prefix = file.read(PREFIX_BYTES)
    if len(prefix) < PREFIX_BYTES:
        return None
    head, body = lengths(prefix)
    header: dict[str, Any] = json.loads(file.read(head))
    return header, file.read(body)
