"""The rounds of a run as a table that spreadsheets and every other tool read: `results.csv`."""

import csv
import io
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from holdout.curve_rows import with_round_zero
from holdout.errors import RunFolderError
from holdout.results import read_run, write_atomic
from holdout.runs import Run

NAME = "results.csv"


def _count(value: Any) -> Any:
    """How many items a list has; of a mapping from reasons to counts, their sum."""
    match value:
        case list():
            return len(value)
        case dict():
            return sum(value.values())
    return None


def _same(value: Any) -> Any:
    return value


COLUMNS: Mapping[str, tuple[str, Callable[[Any], Any]]] = MappingProxyType(
    {
        **{key: (key, _same) for key in ("rule", "attack", "seed", "round", "outcome")},
        **{key: (key, _same) for key in ("accuracy", "loss", "worst_class_recall")},
        **{key: (key, _same) for key in ("gamma", "radius")},
        "proposers": ("proposers", _count),
        "voters": ("voters", _count),
        **{f"byzantine_{who}": (f"byzantine_{who}", _same) for who in ("proposers", "voters")},
        "selected": ("selection", _count),
        "byzantine_selected": ("byzantine_selected", _same),
        "rejected_proposals": ("rejected_proposals", _count),
        "rejected_ballots": ("rejected_ballots", _count),
        "seconds": ("seconds", _same),
    }
)
"""The columns; each is made from a field of a round's line."""
RARE: Mapping[str, tuple[str, Callable[[Any], Any]]] = MappingProxyType(
    {
        **{key: (key, _same) for key in ("r2", "mae", "attack_success")},
        "custom_errors": ("custom_errors", _count),
        "honest_missing": ("honest_missing", _same),
    }
)
"""Columns that are there only if a row has the field."""


def to_csv(run: Run) -> str:
    """One row a round and curve, round 0 included, curve by curve; null is an empty cell."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    rows = with_round_zero(run.rows)
    fields = {field for row in rows for field in row}
    columns = {**COLUMNS, **{k: column for k, column in RARE.items() if column[0] in fields}}
    writer.writerow(columns)
    for row in rows:
        writer.writerow([read(row.get(field)) for field, read in columns.values()])
    return text.getvalue()


def write_csv(folder: Path) -> Path:
    """Write `results.csv` into a run folder; its path."""
    try:
        content = to_csv(read_run(folder))
    except (TypeError, AttributeError, KeyError) as error:
        raise RunFolderError(f"{folder} holds a line that no table can hold: {error}") from error
    # A lone surrogate, which JSON can hold in a name, has no bytes of its own.
    write_atomic(folder / NAME, content.encode("utf-8", "replace"))
    return folder / NAME
