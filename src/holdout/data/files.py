"""Data files: finding them, reading them with a bound, and the three formats.

A file may be plain, `.gz` or `.xz`. Nothing is read past the size that is expected of it plus one
byte, so neither a decompression bomb nor a wrong file can fill the memory; pipes and devices are
not read at all. Nothing is unpickled: a
CIFAR-10 batch is a pickle on the outside, but always of the same few opcodes, so it is matched as a
byte layout; npy headers with object types are refused.
"""

import gzip
import hashlib
import io
import lzma
import math
import re
import stat
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from holdout.errors import DataError

_SUFFIXES = ("", ".gz", ".xz")
_CHUNK_BYTES = 1 << 20

# Above this, a user's file is more likely a mistake or a bomb; a custom loader has no bound.
BYTES_MAX = 1 << 31

CIFAR_SHAPE = (3, 32, 32)
_CIFAR_IMAGE_BYTES = math.prod(CIFAR_SHAPE)
_CIFAR_HEAD = re.compile(
    rb"\x80\x02}q\x01\(U\x0bbatch_labelq\x02U.[ -~]{1,64}?q\x03"
    # A list of small integers, appended in blocks. Possessive, so that a bad file fails fast.
    rb"U\x06labelsq\x04]q\x05(?P<labels>(?:\((?:K[\x00-\x09])++e)++)"
    rb"U\x04dataq\x06cnumpy\.core\.multiarray\n_reconstruct\nq\x07cnumpy\nndarray\nq\x08"
    rb"K\x00\x85U\x01b\x87Rq\t\(K\x01M(?P<rows>..)M\x00\x0c\x86cnumpy\ndtype\nq\n"
    rb"U\x02u1K\x00K\x01\x87Rq\x0b\(K\x03U\x01\|NNNJ\xff{4}J\xff{4}K\x00tb\x89"
    rb"T(?P<size>.{4})",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class KnownFile:
    """A file that is known to the byte."""

    name: str
    size: int
    sha256: str


class Arrays(NamedTuple):
    """The four parts of a data set, as they come out of files."""

    x_train: NDArray[np.generic]
    y_train: NDArray[np.generic]
    x_test: NDArray[np.generic]
    y_test: NDArray[np.generic]


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
    """The content of `path`, whose size and hash must be those of the known file."""
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


def read_idx(stream: Readable, *, dimensions: int, path: Path) -> NDArray[np.uint8]:
    """An IDX array of unsigned bytes with that many dimensions (3: images, 1: labels)."""
    magic = bytes((0, 0, 8, dimensions))
    header = read_at_most(stream, 4 + 4 * dimensions)
    if header[:4] != magic:
        raise DataError(
            f"{path}: not an IDX file of bytes in {dimensions} dimensions: "
            f"expected to begin with {magic.hex()}, found {header[:4].hex() or 'nothing'}"
        )
    if len(header) < 4 + 4 * dimensions:
        raise DataError(f"{path}: expected {4 + 4 * dimensions} bytes of header, found less")
    shape = tuple(int(size) for size in np.frombuffer(header, dtype=">u4", offset=4))
    expected = math.prod(shape)
    if expected > BYTES_MAX:
        raise DataError(f"{path}: at most {BYTES_MAX} bytes are read; the header claims {expected}")
    body = read_at_most(stream, expected + 1)
    if len(body) != expected:
        found = "more" if len(body) > expected else len(body)
        raise DataError(f"{path}: expected {expected} bytes for shape {shape}, found {found}")
    return np.frombuffer(body, dtype=np.uint8).reshape(shape)


def read_cifar(content: bytes, *, path: Path) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Images (n, 3, 32, 32) and labels of one python batch file."""
    head = _CIFAR_HEAD.match(content)
    if head is None:
        raise DataError(f"{path}: not a CIFAR-10 python batch: unexpected layout")
    # The labels are bytes 0 to 9, so the opcodes around them can be dropped by value.
    labels = np.frombuffer(head["labels"].translate(None, b"(Ke"), dtype=np.uint8)
    rows = int.from_bytes(head["rows"], "little")
    size = int.from_bytes(head["size"], "little")
    found = len(content) - head.end()
    if not rows == len(labels) == size // _CIFAR_IMAGE_BYTES or size % _CIFAR_IMAGE_BYTES:
        raise DataError(
            f"{path}: expected as many labels and images as its {rows} rows; "
            f"found {len(labels)} labels and {size} bytes of images"
        )
    if found < size:
        raise DataError(f"{path}: expected {size} bytes of images, found {found}")
    images = np.frombuffer(content, dtype=np.uint8, count=size, offset=head.end())
    return images.reshape(rows, *CIFAR_SHAPE), labels


def read_npz(path: Path) -> Arrays:
    """The arrays x_train, y_train, x_test and y_test of an npz file."""
    try:
        with readable(path):
            refuse_special(path)
            with zipfile.ZipFile(path) as archive:
                return _read_members(archive, path)
    except DataError:
        raise
    except Exception as error:
        # Damage surfaces from zipfile and numpy as a dozen types, none of them promised.
        raise DataError(f"{path}: not a readable npz file: {error}") from error


def refuse_special(path: Path) -> None:
    """Refuse pipes, which may never speak, and devices, which may never end."""
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise DataError(f"{path}: must be an ordinary file; it is a pipe or a device")


def _open(path: Path) -> BinaryIO | gzip.GzipFile | lzma.LZMAFile:
    refuse_special(path)
    match path.suffix:
        case ".gz":
            return gzip.open(path, "rb")
        case ".xz":
            return lzma.open(path, "rb")
        case _:
            return path.open("rb")


def _read_members(archive: zipfile.ZipFile, path: Path) -> Arrays:
    members = {info.filename: info for info in archive.infolist()}
    missing = [name for name in Arrays._fields if f"{name}.npy" not in members]
    if missing:
        wanted = ", ".join(Arrays._fields)
        raise DataError(f"{path}: expected arrays {wanted}; lacks {', '.join(missing)}")
    infos = [members[f"{name}.npy"] for name in Arrays._fields]
    total = sum(info.file_size for info in infos)
    if total > BYTES_MAX:
        raise DataError(f"{path}: at most {BYTES_MAX} bytes are read; its index claims {total}")
    return Arrays(*(read_npy(archive, info, path) for info in infos))


def read_npy(archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path) -> NDArray[np.generic]:
    """One array of an npz file, of plain numbers alone."""
    with archive.open(info) as stream:
        content = read_at_most(
            stream, info.file_size + 1
        )  # Past the end, where the CRC is checked.
    buffer = io.BytesIO(content)
    version = np.lib.format.read_magic(buffer)
    if version == (1, 0):
        shape, fortran_order, dtype = np.lib.format.read_array_header_1_0(buffer)
    elif version == (2, 0):
        shape, fortran_order, dtype = np.lib.format.read_array_header_2_0(buffer)
    else:
        raise DataError(f"{path}: {info.filename}: npy version {version} is not read")
    if dtype.kind not in "biuf":
        raise DataError(f"{path}: {info.filename}: expected plain numbers, found type {dtype}")
    # Checked before numpy sees the shape, since it would allocate whatever the header claims.
    expected = math.prod(shape) * dtype.itemsize
    found = len(content) - buffer.tell()
    if found != expected:
        raise DataError(
            f"{path}: {info.filename}: expected {expected} bytes for shape {shape}, found {found}"
        )
    values = np.frombuffer(content, dtype=dtype, offset=buffer.tell())
    return values.reshape(shape, order="F" if fortran_order else "C")
