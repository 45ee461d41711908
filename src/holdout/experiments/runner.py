"""Run an experiment: curve after curve, round after round, resumable after any of them."""

import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

import holdout
from holdout import results
from holdout.config import Config
from holdout.experiments.checkpoints import (
    Place,
    check_fit,
    notes_on_environment,
    restore,
    to_checkpoint,
)
from holdout.experiments.curves import TableRow, final_table
from holdout.experiments.plan import ExperimentPlan, make_plan
from holdout.experiments.plugins import Plugins
from holdout.experiments.report import write_report
from holdout.experiments.resolve_names import is_decentralized
from holdout.federation import central, decentralized
from holdout.federation.network_sizes import notes_on
from holdout.federation.round_setup import first_state
from holdout.results import Checkpoint, RunFolder
from holdout.rounds import RoundRecord


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run is, told after each round."""

    record: RoundRecord
    rounds_done: int
    rounds_total: int


Watch = Callable[[Progress], None]


@dataclass(frozen=True, slots=True)
class Result:
    """What an experiment gave."""

    config: Config
    rounds: Sequence[Mapping[str, Any]]
    """One mapping a round: the lines of `results.jsonl`."""
    summary: Mapping[str, Any]
    folder: Path | None = None
    notes: Sequence[str] = field(default_factory=list)

    def table(self) -> list[TableRow]:
        """One row a rule and attack, averaged over seeds."""
        return final_table(self.rounds)

    def accuracy(self, rule: str, attack: str | None = None) -> float:
        """Final test accuracy of a rule, averaged over seeds; without `attack`, of the config's."""
        wanted = attack or self.config.attack.name
        for row in self.table():
            if (row.rule, row.attack) == (rule, wanted) and row.accuracy is not None:
                return row.accuracy
        raise KeyError(f"no curve of rule {rule!r} under attack {wanted!r}")


def run(
    config: Config | Mapping[str, Any],
    *,
    out: Path | str | None = None,
    resume: bool = False,
    own: Plugins | None = None,
    watch: Watch | None = None,
    say: Callable[[str], None] | None = None,
) -> Result:
    """Run an experiment; with `out`, into a run folder, else in memory alone.

    Everything is checked before any work is done. With `resume`, go on where the folder's
    checkpoint says; the result is the same as that of an uninterrupted run. `say` is told the
    result's notes before the first round: what the sizes of a network without a server do not
    guarantee, or that a resumed run may differ.
    """
    plan = make_plan(config, own)
    notes = _tell(say, notes_on(plan.config))
    # Also around the check of a checkpoint, which founds a network anew: last bits depend on it.
    with _threads(plan.config):
        if out is None:
            return finish(plan, _run_curves(plan, None, None, [], watch), None, notes)
        path = Path(out)
        if not resume:
            with results.create(path, plan.config.as_toml()) as folder:
                return finish(plan, _run_curves(plan, folder, None, [], watch), folder, notes)

        def check(checkpoint: Checkpoint, done: Sequence[Mapping[str, Any]]) -> None:
            check_fit(plan, restore(checkpoint), done)

        with results.resume(path, plan.config.as_dict(), check=check) as (folder, checkpoint):
            done = list(results.read_run(path).rounds)
            notes += _tell(say, notes_on_environment(checkpoint, environment(plan.config)))
            rounds = _run_curves(plan, folder, checkpoint, done, watch)
            return finish(plan, rounds, folder, notes)


def _tell(say: Callable[[str], None] | None, notes: list[str]) -> list[str]:
    if say is not None:
        for note in notes:
            say(note)
    return notes


def environment(config: Config, *, threads: int | None = None) -> dict[str, Any]:
    """What, besides config and seed, decides the bytes of a result; `threads`: of each curve."""
    return {
        "holdout": holdout.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "threads": threads or threads_of(config),
        "machine": platform.machine(),
    }


def threads_of(config: Config) -> int:
    """How many threads torch may use."""
    if config.experiment.threads:
        return config.experiment.threads
    # The cores that this process may use; not every system tells.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def _threads(config: Config) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(threads_of(config))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _run_curves(
    plan: ExperimentPlan,
    folder: RunFolder | None,
    checkpoint: Checkpoint | None,
    rounds: list[Mapping[str, Any]],
    watch: Watch | None,
) -> list[Mapping[str, Any]]:
    place = restore(checkpoint)
    while place.curve < len(plan.curves):
        place = run_curve(plan, place, folder, rounds, watch)
    return rounds


def run_curve(
    plan: ExperimentPlan,
    place: Place,
    folder: RunFolder | None,
    rounds: list[Mapping[str, Any]],
    watch: Watch | None,
) -> Place:
    """Run one curve to its end; the place before the next one."""
    experiment = plan.config.experiment
    total = experiment.rounds * len(plan.curves)
    number = place.curve
    curve, seed = plan.curves[number]
    federation = plan.federation(curve, seed)
    state = place.state or first_state(federation)
    now = environment(plan.config, threads=torch.get_num_threads())
    serverless = is_decentralized(plan.config, curve.rule)
    run_round = decentralized.run_round if serverless else central.run_round
    try:
        while state.round < experiment.rounds and not state.diverged:
            record, state = run_round(federation, curve, state)
            line = record.as_dict()
            mark = folder.append(line) if folder else None
            # One assignment: an interruption leaves the place before or after the round.
            place = Place(number, state, mark)
            rounds.append(results.jsonable(line))
            if folder and mark and record.accuracy is not None and state.round < experiment.rounds:
                folder.save(to_checkpoint(place, now), mark)
            if watch:
                done = number * experiment.rounds + state.round
                watch(Progress(record, done, total))
    except KeyboardInterrupt:
        if folder and place.mark:
            folder.save(to_checkpoint(place, now), place.mark)
        raise
    place = Place(number + 1, None, None)
    if folder:
        folder.save(to_checkpoint(place, now), folder.mark())
    return place


def finish(
    plan: ExperimentPlan,
    rounds: Sequence[Mapping[str, Any]],
    folder: RunFolder | None,
    notes: Sequence[str] = (),
    *,
    threads: int | None = None,
) -> Result:
    """The result of all curves; into the folder go its summary and report."""
    summary = results.summarise(
        rounds,
        config=plan.config.as_dict(),
        environment=environment(plan.config, threads=threads),
    )
    if folder:
        folder.write(results.SUMMARY, results.to_json(summary, indent=1) + "\n")
        write_report(folder.path)
    return Result(plan.config, rounds, summary, folder.path if folder else None, notes)
