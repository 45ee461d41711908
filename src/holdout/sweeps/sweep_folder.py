"""The folder of a sweep: what it was asked for, and what came out.

    sweep.toml      the sweep as it is run, `--quick` and `--set` included
    sweep.html      and heatmap.png, heatmap.pdf, table.csv, table.tex, worst.md
    failed.json     curves that failed, with what was raised; only if there are any

The curves are not here but in the store, which sweeps share.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import tomli_w

from holdout.config import read_file
from holdout.config.changes import differences
from holdout.errors import RunFolderError
from holdout.results import LOCK, explained, lock, to_json, write_atomic, writing
from holdout.sweeps.workforce import FailedCurve

SWEEP, FAILED = "sweep.toml", "failed.json"
STORE = "curves"
"""The store's name, beside the folders of sweeps."""
FREE = frozenset({"sweep.rows", "sweep.columns", "sweep.measure", "sweep.curves_max"})
"""Keys that decide how results are shown, not which there are."""


@contextmanager
def open_folder(path: Path, values: Mapping[str, Any], *, resume: bool) -> Iterator[None]:
    """Make the folder of a sweep, or open it to go on; kept from others meanwhile."""
    if not resume:
        with explained(path):
            path.mkdir(parents=True, exist_ok=True)
            refuse_unless_free(path)
    with explained(path), lock(path):
        if not resume:
            refuse_unless_free(path)
        write_atomic(path / SWEEP, tomli_w.dumps(values).encode())
        yield


def read_folder(path: Path) -> dict[str, Any]:
    """The sweep that a folder holds."""
    if not (path / SWEEP).is_file():
        raise RunFolderError(f"{path} is not the folder of a sweep: {SWEEP} is missing")
    return read_file(path / SWEEP)


def refuse_unless_free(path: Path) -> None:
    """Raise if something is in the folder already."""
    found = path.iterdir() if path.is_dir() else ()
    if any(entry.name not in (LOCK, f".{SWEEP}.partial") for entry in found):
        raise RunFolderError(
            f"{path} exists and is not empty; choose another --out, or continue with --resume"
        )


TOLD_MAX = 5
"""How many differences from another sweep are told."""


def refuse_another(path: Path, values: Mapping[str, Any]) -> None:
    """Raise unless a folder holds this sweep, but for how results are shown."""
    stored = read_folder(path)
    found = differences(stored, values)
    kept_measure = not _selects(stored) and not _selects(values)
    told = [
        f"{key} was {_shown(old)}, is {_shown(new)}"
        for key, (old, new) in found.items()
        if key not in FREE or (key == "sweep.measure" and not kept_measure)
    ]
    if told:
        more = f"; and {len(told) - TOLD_MAX} more" if len(told) > TOLD_MAX else ""
        raise RunFolderError(
            f"{path} holds another sweep: {'; '.join(told[:TOLD_MAX])}{more}. A sweep must be "
            "resumed as it was begun. With another --out, curves that both have are not run again"
        )


def _shown(value: Any) -> str:
    return "not set" if value is None else repr(value)


def _selects(values: Mapping[str, Any]) -> bool:
    settings = values.get("sweep")
    return isinstance(settings, Mapping) and settings.get("select") is not None


def write_file(path: Path, name: str, content: bytes | str) -> Path:
    """Write a file of the folder, whole or not at all."""
    with writing(path / name):
        write_atomic(path / name, content.encode() if isinstance(content, str) else content)
    return path / name


def write_failed(path: Path, failed: Sequence[FailedCurve]) -> None:
    """Keep what failed; no file if nothing did."""
    if failed:
        write_file(path, FAILED, to_json([asdict(curve) for curve in failed], indent=1) + "\n")
    else:
        (path / FAILED).unlink(missing_ok=True)
