"""Default names of run folders: NAME, NAME-2, NAME-3 and so on."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path

from holdout.errors import RunFolderError


def claim_path(parent: Path, name: str) -> Path:
    """Make the first folder of that name that does not exist; no other process gets the same."""
    try:
        parent.mkdir(parents=True, exist_ok=True)
        return next(path for path in _paths(parent, name) if _is_made(path))
    except OSError as error:
        raise RunFolderError(f"{parent}: no folder can be made in it ({error.strerror})") from error


def last_path(parent: Path, name: str) -> Path:
    """The last of parent/name, name-2, name-3, ... that exists; the first if none does."""
    paths = _paths(parent, name)
    last = next(paths)
    while (following := next(paths)).exists():
        last = following
    return last


def _paths(parent: Path, name: str) -> Iterator[Path]:
    yield parent / name
    for number in count(2):
        yield parent / f"{name}-{number}"


def _is_made(path: Path) -> bool:
    """Make a folder; false if anything of that name is there."""
    try:
        path.mkdir()
    except FileExistsError:
        return False
    return True
