"""Curves that are done, shared by all sweeps: one small file each, named by the curve's hash.

    ab/ab12....json   a curve that is done: what was measured, and what decided it
    work/ab12.../     the run folder of one that is under way or was interrupted
    timings.jsonl     how long curves took, for estimates

A file appears whole or not at all. Two sweeps at once may use one store: a lock keeps a curve from
being run twice.
"""

import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from holdout.curve_rows import MOVED
from holdout.errors import RunFolderError
from holdout.metrics import INITIAL, Metric, metric_of
from holdout.results import to_json, write_atomic, writing
from holdout.sweeps.grid import Measure

SCHEMA = 1
BYTES_MAX = 64 << 20
TIMINGS, WORK = "timings.jsonl", "work"
TIMINGS_MAX = 4 << 20
WAIT_SECONDS = 0.2
ABOUT = ("config", "dissimilarity", "liars_drawn", "judges")
"""What a curve's file says of it besides its rounds, as `summary.json` does; older say less."""


@dataclass(frozen=True, eq=False)
class StoredCurve:
    """What the store keeps of a curve."""

    key: str
    rows: Sequence[Mapping[str, Any]]
    """Its first round, those after which it was measured, and its last; numbers and words alone."""
    rounds: int
    empty_rounds: int
    seconds: float
    about: Mapping[str, Any] = field(default_factory=dict)
    """What else its file holds: its config, the liars drawn, who can judge which class."""

    @cached_property
    def metric(self) -> Metric:
        """What it is compared by."""
        return metric_of(self.rows)

    @property
    def diverged(self) -> bool:
        """Whether it ended in numbers that are not finite."""
        return bool(self.rows[-1]["outcome"] == "diverged")

    @cached_property
    def measured(self) -> list[tuple[int, float]]:
        """Each round after which it was measured, and what came out; round 0 is not among them."""
        key = self.metric.key
        return [(row["round"], row[key]) for row in self.rows if row.get(key) is not None]

    @property
    def final(self) -> float:
        """The last number; of a curve that diverged, the least there is."""
        return self._least if self.diverged or not self.measured else self.measured[-1][1]

    @property
    def lowest(self) -> float:
        """The lowest number of the second half of the rounds; if it diverged, the least there is.

        In the first half every curve is low: it starts from nothing.
        """
        if self.diverged:
            return self._least
        late = [value for number, value in self.measured if 2 * number >= self.rounds]
        return min(late, default=self._least)

    @property
    def best(self) -> float:
        """The highest number of any round: what a reader of best checkpoints would be told."""
        return max((value for _, value in self.measured), default=self._least)

    def value(self, measure: Measure) -> float:
        """One of these three."""
        return {"final": self.final, "lowest": self.lowest, "best": self.best}[measure]

    @property
    def _least(self) -> float:
        return self.metric.shown_min


class CurveStore:
    """A folder of curves."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def file_of(self, key: str) -> Path:
        """Where a curve is kept."""
        return self.path / key[:2] / f"{key}.json"

    def has(self, key: str) -> bool:
        """Whether a curve is done."""
        return self.file_of(key).exists()

    def read(self, key: str) -> StoredCurve | None:
        """A curve; None if it is not there, or its file is damaged and must be made anew."""
        file = self.file_of(key)
        try:
            if file.stat().st_size > BYTES_MAX:
                return None
            found = json.loads(file.read_bytes())
            if found["schema"] != SCHEMA or found["key"] != key:
                return None
            rows = found["rows"]
            if not rows or not all(_is_row(row) for row in rows):
                return None
            return StoredCurve(
                key,
                rows,
                int(found["rounds"]),
                int(found["empty_rounds"]),
                float(found["seconds"]),
                {name: found[name] for name in ABOUT if isinstance(found.get(name), dict)},
            )
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None

    def write(
        self, key: str, rows: Sequence[Mapping[str, Any]], about: Mapping[str, Any]
    ) -> StoredCurve:
        """Keep a curve.

        Args:
            key: Its hash.
            rows: All its rounds.
            about: What decided it, for people who look into the file.
        """
        metric = metric_of(rows).key
        last = len(rows) - 1
        kept = [
            _lean(row)
            for place, row in enumerate(rows)
            if place in (0, last) or row.get(metric) is not None
        ]
        curve = StoredCurve(
            key,
            kept,
            len(rows),
            sum(row["outcome"] not in MOVED for row in rows),
            round(sum(row["seconds"] for row in rows), 3),
            {name: about[name] for name in ABOUT if name in about},
        )
        content = {
            "schema": SCHEMA,
            "key": key,
            **about,
            "rounds": curve.rounds,
            "empty_rounds": curve.empty_rounds,
            "seconds": curve.seconds,
            "rows": kept,
        }
        file = self.file_of(key)
        with writing(file):
            file.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(file, (to_json(content) + "\n").encode())
        return curve

    def work_of(self, key: str) -> Path:
        """The run folder of a curve that is under way."""
        return self.path / WORK / key

    def drop_work(self, key: str) -> None:
        """Remove what was left of a curve's way."""
        shutil.rmtree(self.work_of(key), ignore_errors=True)
        with suppress(OSError):
            self._lock_file(key).unlink()

    def _lock_file(self, key: str) -> Path:
        return self.path / WORK / f"{key}.lock"

    @contextmanager
    def lock(self, key: str, check: Callable[[], None]) -> Iterator[None]:
        """Keep others from running a curve; waits for whoever does, calling `check` meanwhile."""
        file = self._lock_file(key)
        with writing(file):
            file.parent.mkdir(parents=True, exist_ok=True)
            opened = file.open("a")
        with opened:
            while True:
                check()
                try:
                    fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    time.sleep(WAIT_SECONDS)
            yield

    def timings(self) -> list[Mapping[str, Any]]:
        """How long curves took that were run here."""
        try:
            with (self.path / TIMINGS).open("rb") as file:
                lines = file.read(TIMINGS_MAX).splitlines()
        except OSError:
            return []
        found: list[Mapping[str, Any]] = []
        for line in lines:
            with suppress(ValueError, RecursionError):
                timing = json.loads(line)
                if isinstance(timing, dict):
                    found.append(timing)
        return found

    def add_timing(self, timing: Mapping[str, Any]) -> None:
        """Note how long a curve took."""
        with writing(self.path / TIMINGS):
            # One write of one line: two sweeps that do so at once do not mix.
            file = os.open(self.path / TIMINGS, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            try:
                os.write(file, (to_json(timing) + "\n").encode())
            finally:
                os.close(file)

    def prepare(self) -> None:
        """Make the folder, or say why it cannot be used."""
        try:
            (self.path / WORK).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunFolderError(
                f"{self.path}: curves cannot be kept there ({error.strerror})"
            ) from error


def _is_row(row: Any) -> bool:
    return (
        isinstance(row, dict)
        and isinstance(row.get("round"), int)
        and isinstance(row.get("outcome"), str)
    )


def _lean(row: Mapping[str, Any]) -> dict[str, Any]:
    """What tables and charts of a sweep need: no lists of workers, no ballots."""
    return {
        key: value
        for key, value in row.items()
        if key == INITIAL or not isinstance(value, list | dict | tuple)
    }
