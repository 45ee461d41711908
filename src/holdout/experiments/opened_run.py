"""A run that is ready to go on: its folder, if it has one, and what that held before."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdout import results
from holdout.experiments.checkpoints import Place, check_fit, restore
from holdout.experiments.code_record import (
    known_sources,
    notes_on_changes,
    refuse_changes,
    sources_of,
    store,
)
from holdout.experiments.plan import ExperimentPlan
from holdout.results import RunFolder, Stored


@dataclass(frozen=True, slots=True, eq=False)
class OpenedRun:
    """A run folder that is ready to be written, if there is one, and what it held before."""

    folder: RunFolder | None
    stored: Stored | None = None
    changes: Sequence[str] = ()
    """A note for each time that the run went on with changed custom code."""

    @property
    def place(self) -> Place | None:
        """Where the run stopped; None if it has not begun."""
        return restore(self.stored.checkpoint, self.stored.config) if self.stored else None

    @property
    def rows(self) -> Sequence[Mapping[str, Any]]:
        """The rounds that are done."""
        return self.stored.rows if self.stored else ()


@contextmanager
def open_run(
    plan: ExperimentPlan, path: Path | None, *, resume: bool, changed_code: bool
) -> Iterator[OpenedRun]:
    """Make the run folder, or open it to go on, perhaps for more than was asked for before.

    Args:
        plan: What is run.
        path: The run folder; None: nothing is written.
        resume: Whether to go on with the run that it holds.
        changed_code: Whether custom code may have changed since.
    """
    if path is None:
        yield OpenedRun(None)
        return
    if not resume:
        with results.create(path, plan.config.as_toml()) as folder:
            store(folder, sources_of(plan))
            yield OpenedRun(folder)
        return

    def check(stored: Stored) -> None:
        check_fit(plan, stored)
        if not changed_code:
            refuse_changes(path, known_sources(plan, stored))

    config = plan.config.as_dict()
    with results.resume(path, config, check=check, may_extend=True) as (folder, stored):
        changes = notes_on_changes(plan, path, stored)
        store(folder, sources_of(plan), changes)
        yield OpenedRun(folder, stored, changes)
