"""Finding data files and reading them with a bound, whatever they turn out to contain.

A file may be plain, `.gz` or `.xz`. Nothing is read past the size that is expected of it plus one
byte, so that neither a bomb nor a wrong file can fill the memory.
"""

import gzip
import hashlib
import lzma
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Protocol

from holdout.data.sources import KnownFile
from holdout.errors import DataError

_SUFFIXES = ("", ".gz", ".xz")
_CHUNK_BYTES = 1 << 20


class Readable(Protocol):
    """What all streams of bytes have in common."""

    def read(self, size: int, /) -> bytes:
        """Up to `size` bytes; none at the end."""


def find(folder: Path, name: str, subfolder: str = "") -> Path | None:
    """The file `name`, plain or compressed, in `folder` or its usual sub-folder."""
    for place in (folder, folder / subfolder):
        for suffix in _SUFFIXES:
            path = place / f"{name}{suffix}"
            with readable(path):
                if path.is_file():
                    return path
    return None


def find_all(folder: Path, names: Sequence[str], subfolder: str = "") -> list[Path]:
    """The files of these names, in order; a `DataError` lists those that are not there."""
    with readable(folder):
        if not folder.is_dir():
            raise DataError(f"{folder}: expected a folder that holds {', '.join(names)}")
    found = {name: find(folder, name, subfolder) for name in names}
    missing = [name for name, path in found.items() if path is None]
    if missing:
        raise DataError(f"{folder}: lacks {', '.join(missing)} (plain, .gz or .xz)")
    return [path for path in found.values() if path is not None]


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn whatever opening or decompressing `path` raises into a `DataError` that names it."""
    try:
        yield
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: damaged compression: {error}") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error


@contextmanager
def opened(path: Path) -> Iterator[Readable]:
    """The decompressed content of `path` as a stream."""
    with readable(path), _open(path) as stream:
        yield stream


def read_at_most(stream: Readable, size: int) -> bytes:
    """Up to `size` bytes, never allocating for more than there are."""
    chunks = bytearray()
    while len(chunks) < size:
        chunk = stream.read(min(_CHUNK_BYTES, size - len(chunks)))
        if not chunk:
            break
        chunks += chunk
    return bytes(chunks)


def read_known(path: Path, known: KnownFile) -> bytes:
    """The content of `path`, once its size and hash are those of the known file."""
    with opened(path) as stream:
        content = read_at_most(stream, known.size + 1)
    check_known(content, known, path)
    return content


def check_known(content: bytes, known: KnownFile, path: Path) -> None:
    """Refuse content that is not the known file's, byte for byte."""
    if len(content) != known.size:
        found = "more" if len(content) > known.size else len(content)
        raise DataError(f"{path}: expected {known.size} bytes of data, found {found}")
    digest = hashlib.sha256(content).hexdigest()
    if digest != known.sha256:
        raise DataError(
            f"{path}: damaged, or another file of that name: "
            f"expected sha256 {known.sha256}, found {digest}"
        )


def _open(path: Path) -> BinaryIO | gzip.GzipFile | lzma.LZMAFile:
    match path.suffix:
        case ".gz":
            return gzip.open(path, "rb")
        case ".xz":
            return lzma.open(path, "rb")
        case _:
            return path.open("rb")
