"""Run an experiment: curve after curve, round after round, resumable after any round."""

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
from holdout.config import Config, read_file
from holdout.errors import UserError
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
from holdout.experiments.report import table_html, write_report
from holdout.experiments.resolve_names import is_decentralized, notes_on_vote
from holdout.federation import central, decentralized
from holdout.federation.network_sizes import notes_on
from holdout.federation.round_setup import first_state
from holdout.results import Checkpoint, RunFolder
from holdout.rounds import RoundRecord


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run is; `run` tells its `watch` after each round.

    >>> from holdout import Plugins, run
    >>> x, y = [[-3.0], [3.0]] * 20, [0, 1] * 20
    >>> setting = {
    ...     "experiment": {"rules": ["mean"], "rounds": 2, "threads": 1},
    ...     "data": {"samples_per_worker": 10},
    ...     "federation": {"workers": 9, "byzantine": 0, "proposers": 4, "voters": 4},
    ...     "training": {"batch_size": 5}, "vote": {"samples": 10}, "attack": {"name": "none"},
    ... }
    >>> def watch(progress):
    ...     print(f"{progress.rounds_done} of {progress.rounds_total}: {progress.record.rule}")
    >>> _ = run(setting, plugins=Plugins(data=(x, y, x, y)), watch=watch)
    1 of 2: mean
    2 of 2: mean
    """

    record: RoundRecord
    """All that the round did: the fields of a line of `results.jsonl`."""
    rounds_done: int
    """Rounds done so far, over all curves."""
    rounds_total: int
    """Rounds planned, over all curves; fewer are run if one diverges."""


Watch = Callable[[Progress], None]


@dataclass(frozen=True, slots=True, repr=False)
class Result:
    """What an experiment gave; in a notebook it shows itself as a table.

    >>> import holdout
    >>> x, y = [[-3.0], [3.0]] * 20, [0, 1] * 20
    >>> setting = {
    ...     "experiment": {"rules": ["holdout"], "rounds": 3, "threads": 1},
    ...     "data": {"samples_per_worker": 10},
    ...     "federation": {"workers": 9, "proposers": 4, "voters": 4},
    ...     "training": {"batch_size": 5}, "vote": {"samples": 10},
    ... }
    >>> result = holdout.run(setting, plugins=holdout.Plugins(data=(x, y, x, y)))
    >>> result
    <Result: mean, no attack 100.0 %; HoldOut 100.0 %>
    >>> result.accuracy("holdout"), len(result.rounds)
    (1.0, 6)
    """

    config: Config
    """The complete config."""
    rounds: Sequence[Mapping[str, Any]]
    """One mapping a round: the lines of `results.jsonl`."""
    summary: Mapping[str, Any]
    """What `summary.json` holds: one entry a curve, and the versions that made it."""
    folder: Path | None = None
    """The run folder; None if the run was in memory alone."""
    notes: Sequence[str] = field(default_factory=list)
    """What the sizes of a network without a server do not guarantee, which keys of `[vote]` do
    nothing with the rules chosen, or that a resumed run may differ."""

    def table(self) -> list[TableRow]:
        """One row for each rule and attack, averaged over seeds."""
        return final_table(self.rounds)

    def accuracy(self, rule: str, attack: str | None = None) -> float:
        """Final test accuracy of a rule, averaged over seeds; under the config's attack if None."""
        wanted = attack or self.config.attack.name
        for row in self.table():
            if (row.rule, row.attack) == (rule, wanted) and row.accuracy is not None:
                return row.accuracy
        raise KeyError(f"no curve of rule {rule!r} under attack {wanted!r}")

    def __repr__(self) -> str:
        ends = "; ".join(f"{row.label} {row.accuracy_text()}" for row in self.table())
        return f"<Result: {ends}>"

    def _repr_html_(self) -> str:
        head = ["rule", "without attack", "under attack", "drop"]
        return table_html(head, [row.cells() for row in self.table()])


def run(
    config: Config | Mapping[str, Any] | str | Path,
    *,
    out: Path | str | None = None,
    resume: bool = False,
    plugins: Plugins | None = None,
    watch: Callable[[Progress], None] | None = None,
    say: Callable[[str], None] | None = None,
) -> Result:
    """Run an experiment: some rules, one attack, one or several seeds.

    Everything is checked before any work is done. Ctrl-C keeps what is done if there is a run
    folder.

    Args:
        config: The path of a TOML file, its values as nested mappings, or a `Config`.
        out: The run folder to make; without it nothing is written.
        resume: Continue from the checkpoint in `out`. The result is the same as that of an
            uninterrupted run.
        plugins: Custom rules, attacks, models, data or workers, as objects.
        watch: Called with a `Progress` after each round.
        say: Called with each of the result's notes before the first round.

    >>> from holdout import Plugins, run
    >>> x, y = [[-3.0], [3.0]] * 20, [0, 1] * 20
    >>> setting = {
    ...     "experiment": {"rules": ["mean", "holdout"], "rounds": 3, "threads": 1},
    ...     "data": {"samples_per_worker": 10},
    ...     "federation": {"workers": 9, "proposers": 4, "voters": 4},
    ...     "training": {"batch_size": 5}, "vote": {"samples": 10},
    ... }
    >>> run(setting, plugins=Plugins(data=(x, y, x, y))).accuracy("holdout")
    1.0
    """
    _refuse_other_types(config, plugins)
    values = read_file(Path(config)) if isinstance(config, str | Path) else config
    return run_plan(make_plan(values, plugins), out=out, resume=resume, watch=watch, say=say)


def run_plan(
    plan: ExperimentPlan,
    *,
    out: Path | str | None,
    resume: bool,
    watch: Watch | None,
    say: Callable[[str], None] | None,
) -> Result:
    """`run`, once the config is checked and the data loaded."""
    notes = _tell(say, [*notes_on(plan.config), *notes_on_vote(plan.config)])
    # Also while a checkpoint is checked: that founds a network anew, and its last bits depend on
    # the number of threads.
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
            done = list(results.read_run(path).rows)
            notes += _tell(say, notes_on_environment(checkpoint, environment(plan.config)))
            rounds = _run_curves(plan, folder, checkpoint, done, watch)
            return finish(plan, rounds, folder, notes)


def _refuse_other_types(config: object, plugins: object) -> None:
    if not isinstance(config, Config | Mapping | str | Path):
        got = type(config).__name__
        raise UserError(f"run takes the path of a TOML file, a mapping or a Config; got {got}")
    if not isinstance(plugins, Plugins | None):
        raise UserError(f"plugins must be holdout.Plugins(...); got {type(plugins).__name__}")


def _tell(say: Callable[[str], None] | None, notes: list[str]) -> list[str]:
    if say is not None:
        for note in notes:
            say(note)
    return notes


def environment(config: Config, *, threads: int | None = None) -> dict[str, Any]:
    """What decides the bytes of a result besides config and seed; `threads` if not the config's."""
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
    # The cores that this process may use, on systems that say which.
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
            # One assignment, so that an interruption leaves the place before or after the round.
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
    """The result of all curves; its summary and report go into the folder."""
    summary = results.summarise(
        rounds, config=plan.config.as_dict(), environment=environment(plan.config, threads=threads)
    )
    if folder:
        folder.write(results.SUMMARY, results.to_json(summary, indent=1) + "\n")
        write_report(folder.path)
    return Result(plan.config, rounds, summary, folder.path if folder else None, notes)
