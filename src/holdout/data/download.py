"""Download a known data set into the cache: checked, bounded, never half a file under its name."""

import os
import sys
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any

from holdout.data.files import check_known, read_at_most
from holdout.data.sources import KnownFile, Source
from holdout.errors import DataError

_CHUNK_BYTES = 1 << 16
_TIMEOUTS_SECONDS = (5, 20)  # To connect, and between two pieces of the answer.


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

    pooch.get_logger().setLevel("WARNING")  # We say ourselves what is going on.

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
    """A file that refuses to grow past the size we know."""

    def __init__(self, file: IO[bytes], size: int, advance: Callable[[int], None]) -> None:
        self._file = file
        self._left = size
        self._advance = advance

    def write(self, chunk: bytes) -> None:
        self._left -= len(chunk)
        if self._left < 0:
            raise DataError("the answer is longer than the file can be")
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
    """What went wrong at the bottom: requests wraps "connection refused" three times."""
    while True:
        inner = (arg for arg in error.args if isinstance(arg, BaseException))
        cause = error.__cause__ or next(inner, None)
        if cause is None:
            return str(error) or type(error).__name__
        error = cause
