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
from holdout import device, results
from holdout.config import Config, read_file
from holdout.curve_rows import count_errors, summarise
from holdout.errors import PluginError, RunFailed, UserError
from holdout.experiments.checkpoints import (
    Place,
    check_fit,
    notes_on_environment,
    restore,
    to_checkpoint,
)
from holdout.experiments.code_record import (
    changes_of,
    notes_on_sources,
    refuse_changes,
    sources_of,
    store,
)
from holdout.experiments.curves import TableRow, final_table, group, has_success
from holdout.experiments.first_error import FirstError
from holdout.experiments.holders import SHARDS, shards_json
from holdout.experiments.plan import ExperimentPlan, make_plan
from holdout.experiments.plugins import Plugins
from holdout.experiments.report import error_text, table_html, write_report
from holdout.experiments.resolve_names import is_decentralized, notes_on_vote
from holdout.experiments.rule_trial import try_rules
from holdout.experiments.run_notes import notes_on_curves, notes_on_data
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
    """Reasons to doubt the result: what it does not prove, what went wrong with custom code, what
    the sizes of a network without a server do not guarantee, which keys of `[vote]` do nothing with
    the rules chosen, or that a resumed run may differ."""

    def table(self) -> list[TableRow]:
        """One row for each rule and attack, averaged over seeds."""
        return final_table(self.rounds)

    def accuracy(self, rule: str, attack: str | None = None) -> float:
        """Final test accuracy of a rule, averaged over seeds; under the config's attack if None."""
        row = self._row(rule, attack)
        if row.accuracy is None:
            raise KeyError(f"a regression has no accuracy; measured({rule!r}) is its R2")
        return row.accuracy

    def measured(self, rule: str, attack: str | None = None) -> float:
        """The same or, in a regression, the final R2 on the test rows."""
        row = self._row(rule, attack)
        assert row.measured is not None  # noqa: S101
        return row.measured

    def _row(self, rule: str, attack: str | None) -> TableRow:
        wanted = attack or self.config.attack.name
        for row in self.table():
            if (row.rule, row.attack) == (rule, wanted) and row.measured is not None:
                return row
        raise KeyError(f"no curve of rule {rule!r} under attack {wanted!r}")

    def __repr__(self) -> str:
        rows = self.table()
        ends = "; ".join(f"{row.label} {row.measured_text()}" for row in rows)
        measured = "".join({f", {row.metric.name}": None for row in rows if row.r2 is not None})
        return f"<Result{measured}: {ends}>"

    def _repr_html_(self) -> str:
        head = ["rule", "without attack", "under attack", "drop"]
        rows = self.table()
        if not has_success(rows):
            return table_html(head, [row.cells() for row in rows])
        body = [(*row.cells(), row.success_text()) for row in rows]
        return table_html([*head, "attack success"], body)


def run(
    config: Config | Mapping[str, Any] | str | Path,
    *,
    out: Path | str | None = None,
    resume: bool = False,
    plugins: Plugins | None = None,
    watch: Callable[[Progress], None] | None = None,
    say: Callable[[str], None] | None = None,
    changed_code: bool = False,
) -> Result:
    """Run an experiment: some rules, one attack, one or several seeds.

    Everything is checked before any work is done. Ctrl-C keeps what is done if there is a run
    folder. At the end a `RunFailed`, whose `result` holds what was run, is raised if in a curve all
    honest proposals are missing, since custom workers failed.

    Args:
        config: The path of a TOML file, its values as nested mappings, or a `Config`.
        out: The run folder to make; without it nothing is written.
        resume: Continue from the checkpoint in `out`. The result is the same as that of an
            uninterrupted run.
        plugins: Custom rules, attacks, models, data or workers, as objects.
        watch: Called with a `Progress` after each round.
        say: Called with each note that is known before the first round, and with the traceback of
            what custom workers raise first.
        changed_code: Resume although custom code has changed since the run began; a note says so.

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
    return run_plan(
        tried_plan(values, plugins),
        out=out,
        resume=resume,
        watch=watch,
        say=say,
        changed_code=changed_code,
    )


def tried_plan(
    config: Config | Mapping[str, Any], plugins: Plugins | None = None
) -> ExperimentPlan:
    """The plan of a config whose custom rules have been tried, before there is a folder."""
    plan = make_plan(config, plugins)
    with _threads(plan.config), device.using(plan.config.experiment.device):
        try_rules(plan)
    return plan


def run_plan(
    plan: ExperimentPlan,
    *,
    out: Path | str | None,
    resume: bool,
    watch: Watch | None,
    say: Callable[[str], None] | None,
    changed_code: bool,
) -> Result:
    """`run`, once the config is checked, the data loaded and custom rules tried."""
    sources = sources_of(plan)
    config = plan.config
    known = [*notes_on(config), *notes_on_vote(config), *notes_on_data(plan.dataset)]
    notes = _tell(say, [*known, *notes_on_sources(sources)])
    # Also while a checkpoint is checked: that founds a network anew, and its last bits depend on
    # the number of threads.
    with _threads(plan.config), device.using(plan.config.experiment.device):
        if out is None:
            return _to_result(plan, FirstError(None, say, watch), notes)
        path = Path(out)
        if not resume:
            with results.create(path, plan.config.as_toml()) as folder:
                store(folder, sources)
                return _to_result(plan, FirstError(folder, say, watch), notes)

        def check(checkpoint: Checkpoint, done: Sequence[Mapping[str, Any]]) -> None:
            check_fit(plan, restore(checkpoint), done)
            if not changed_code:
                refuse_changes(path, sources)

        with results.resume(path, plan.config.as_dict(), check=check) as (folder, checkpoint):
            done = list(results.read_run(path).rows)
            changes = changes_of(path, sources, done)
            store(folder, sources, changes)
            notes += _tell(say, changes)
            aside = _tell(say, notes_on_environment(checkpoint, environment(plan.config)))
            begun = Begun(checkpoint, done, aside)
            return _to_result(plan, FirstError(folder, say, watch, done), notes, begun)


@dataclass(frozen=True, slots=True, eq=False)
class Begun:
    """What a run that is resumed has done already."""

    checkpoint: Checkpoint | None = None
    rounds: list[Mapping[str, Any]] = field(default_factory=list)
    notes: Sequence[str] = ()
    """What to tell of resuming it here, and to keep nowhere: another time it is something else."""


def _to_result(
    plan: ExperimentPlan, errors: FirstError, notes: Sequence[str], begun: Begun | None = None
) -> Result:
    """Run the curves that are left; what custom code does to them is told in any case."""
    begun, folder = begun or Begun(), errors.folder
    rounds = begun.rounds
    try:
        _run_curves(plan, folder, begun.checkpoint, rounds, errors)
    except PluginError as error:
        if folder is not None:
            errors.stopped_by(error)
            stopped = f"the run was stopped: {error}"
            finish(plan, rounds, folder, [*notes, stopped], error=errors.found)
        raise
    result = finish(plan, rounds, folder, notes, aside=begun.notes, error=errors.found)
    if empty := [curve.label for curve in group(rounds) if curve.is_empty]:
        first = f"; the first: {told}" if (told := errors.text) else ""
        raise RunFailed(
            f"no honest proposal arrived in any round of {', '.join(empty)}: custom workers failed"
            f"{first}",
            result,
        )
    return result


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
            if folder and mark and record.is_evaluated and state.round < experiment.rounds:
                folder.save(to_checkpoint(place, now), mark)
            if watch:
                done = number * experiment.rounds + state.round
                watch(Progress(record, done, total))
    except (KeyboardInterrupt, PluginError):
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
    aside: Sequence[str] = (),
    threads: int | None = None,
    error: Mapping[str, Any] | None = None,
) -> Result:
    """The result of all curves; its summary and report go into the folder.

    Args:
        plan: What was run.
        rounds: All rounds.
        folder: Where it goes.
        notes: Reasons for doubt that are known so far.
        aside: Notes for the result alone, not for its summary.
        threads: Torch's threads, if not the config's.
        error: What custom code raised first.
    """
    config, sources = plan.config.as_dict(), sources_of(plan)
    notes = [*notes, *notes_on_curves(group(rounds), config)]
    if error is not None and (raised := count_errors(rounds)):
        notes.append(f"custom workers raised {raised} times; the first: {error_text(error)}")
    summary = summarise(
        rounds, config=config, environment=environment(plan.config, threads=threads), notes=notes
    )
    for curve in summary["curves"]:
        # Only custom code that raises ends a run, and writes its summary, inside a curve.
        if curve["outcome"] == "completed" and curve["rounds"] < plan.config.experiment.rounds:
            curve["outcome"] = "stopped"
    if error is not None:
        summary["custom_errors"] = {"count": count_errors(rounds), "first": error}
    if sources:
        summary["custom_code"] = sources
    if folder:
        folder.write(results.SUMMARY, results.to_json(summary, indent=1) + "\n")
        folder.write(SHARDS, shards_json(plan.config, plan.dataset))
        write_report(folder.path)
    path = folder.path if folder else None
    return Result(plan.config, rounds, summary, path, [*aside, *notes])
