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
from holdout.curve_rows import CurveKey, count_errors, in_order, summarise
from holdout.errors import CUSTOM_CODE_ERRORS, PluginError, RunFailed, UserError
from holdout.experiments.checkpoints import (
    notes_on_environment,
    remaining,
    state_to_go_on,
    to_checkpoint,
)
from holdout.experiments.code_record import notes_on_sources, sources_of
from holdout.experiments.curve_files import named_tensors, save_end, save_model
from holdout.experiments.curves import TableRow, final_table, group, has_success
from holdout.experiments.first_error import FirstError
from holdout.experiments.holders import SHARDS, shards_json
from holdout.experiments.judges import judges_fields
from holdout.experiments.opened_run import OpenedRun, open_run
from holdout.experiments.plan import ExperimentPlan, make_plan
from holdout.experiments.plugins import Plugins
from holdout.experiments.report import error_text, table_html, write_report
from holdout.experiments.resolve_names import is_decentralized, notes_on_vote
from holdout.experiments.rule_trial import try_rules
from holdout.experiments.run_notes import Notes, broken_curves, notes_on_curves, notes_on_data
from holdout.experiments.trackers import make_trackers
from holdout.experiments.watchers import CallersWatcher, RunWatcher, Watchers
from holdout.federation import central, decentralized
from holdout.federation.network_sizes import notes_on
from holdout.federation.round_setup import State, first_state
from holdout.results import ResultsMark, RunFolder
from holdout.rounds import RoundRecord
from holdout.saved_models import NamedTensors, Weights, weights_of


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
"""The simplest watcher: a function."""


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
    the rules chosen, that a resumed run may differ, or that a tracker failed."""
    weights: Weights = field(default_factory=lambda: weights_of("", {}))
    """The trained weights as named tensors: `weights["holdout", 0]` for the rule `holdout` and
    seed 0 under the config's attack, `weights["mean", 0, "none"]` for the mean without attack."""

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
    watch: RunWatcher | Callable[[Progress], None] | None = None,
    say: Callable[[str], None] | None = None,
    changed_code: bool = False,
) -> Result:
    """Run an experiment: some rules, one attack, one or several seeds.

    Everything is checked before any work is done. Ctrl-C keeps what is done if there is a run
    folder. At the end a `RunFailed`, whose `result` holds what was run, is raised if custom code
    failed in every round of a curve.

    Args:
        config: The path of a TOML file, its values as nested mappings, or a `Config`.
        out: The run folder to make; without it nothing is written.
        resume: Go on with the run in `out`, interrupted or finished. The config may ask for more
            rounds, rules or seeds than before. The result is the same as that of a run that was
            asked for all of it at once.
        plugins: Custom rules, attacks, models, data or workers, as objects.
        watch: Called with a `Progress` after each round; or an object with some of the methods
            `start(config)`, `round(progress)` and `finish(result)`, of which the last is called
            with None if the run stops early.
        say: Called with each note as soon as it is known, but for those that only the finished
            rounds tell, and with the traceback of what custom code raises first.
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
    if resume and out is None:
        raise UserError("resume=True needs out, the folder of the run to go on with")
    if changed_code and not resume:
        raise UserError("changed_code is for resume=True: a new run takes the code as it is")
    callers = CallersWatcher(watch)
    values = read_file(Path(config)) if isinstance(config, str | Path) else config
    return run_plan(
        tried_plan(values, plugins),
        out=out,
        resume=resume,
        watch=callers,
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
    watch: CallersWatcher,
    say: Callable[[str], None] | None,
    changed_code: bool,
) -> Result:
    """`run`, once the config is checked, the data loaded and custom rules tried."""
    path, notes, config = None if out is None else Path(out), Notes(say), plan.config
    # The caller last: what it raises ends a run whose round is done, and tracked.
    watchers = Watchers([*make_trackers(config, path, notes.add), watch])
    known = [*notes_on(config), *notes_on_vote(config), *notes_on_data(plan.dataset)]
    for note in [*known, *notes_on_sources(sources_of(plan))]:
        notes.keep(note)
    # The threads also while a checkpoint is checked: that founds a network anew, and its last bits
    # depend on their number.
    with (
        _threads(config),
        device.using(config.experiment.device),
        watchers.following(config) as ended,
        open_run(plan, path, resume=resume, changed_code=changed_code) as opened,
    ):
        for note in opened.changes:
            notes.keep(note)
        for note in notes_on_environment(opened.stored, environment(config)):
            notes.add(note)
        errors = FirstError(opened.folder, say, watchers.round, opened.rows)
        ended.append(_to_result(plan, opened, notes, errors))
    _refuse_empty(ended[0], errors)
    return ended[0]


def _to_result(plan: ExperimentPlan, opened: OpenedRun, notes: Notes, errors: FirstError) -> Result:
    """Run the curves that are left; what custom code does to them is told in any case."""
    rounds, folder = list(opened.rows), opened.folder
    try:
        trained = _run_curves(plan, opened, rounds, errors)
    except CUSTOM_CODE_ERRORS as error:
        if folder is not None:
            errors.stopped_by(error)
            notes.keep_unsaid(f"the run was stopped: {error}")
            finish(plan, rounds, folder, notes, error=errors.found)
        raise
    return finish(plan, rounds, folder, notes, error=errors.found, trained=trained)


def _refuse_empty(result: Result, errors: FirstError) -> None:
    """Raise if custom code failed in every round of a curve: it shows nothing."""
    broken = broken_curves(group(result.rounds), result.config.as_dict())
    if broken:
        says = [f"{what} of {which}" for what, which in broken.items()]
        first = f"; the first error: {told}" if (told := errors.text) else ""
        raise RunFailed("; ".join(says) + first, result)


def _refuse_other_types(config: object, plugins: object) -> None:
    if not isinstance(config, Config | Mapping | str | Path):
        got = type(config).__name__
        raise UserError(f"run takes the path of a TOML file, a mapping or a Config; got {got}")
    if not isinstance(plugins, Plugins | None):
        raise UserError(f"plugins must be holdout.Plugins(...); got {type(plugins).__name__}")


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
    plan: ExperimentPlan, opened: OpenedRun, rounds: list[Mapping[str, Any]], watch: Watch
) -> dict[CurveKey, NamedTensors]:
    """Run what is left, adding to the rounds; the trained weights of what was run."""
    place, folder = opened.place, opened.folder
    pieces = remaining(plan, rounds, place)
    each = plan.config.experiment.rounds
    done = each * len(plan.curves) - sum(each - piece.rounds_done for piece in pieces)
    trained: dict[CurveKey, NamedTensors] = {}
    for piece in pieces:
        state = state_to_go_on(plan, piece, place, folder)
        elsewhere = done - piece.rounds_done
        trained[plan.keys[piece.number]] = run_curve(
            plan,
            piece.number,
            state,
            folder=folder,
            rounds=rounds,
            watch=watch,
            elsewhere=elsewhere,
        )
        done = elsewhere + each
    return trained


def run_curve(
    plan: ExperimentPlan,
    number: int,
    state: State | None,
    *,
    folder: RunFolder | None,
    rounds: list[Mapping[str, Any]],
    watch: Watch,
    elsewhere: int = 0,
) -> NamedTensors:
    """Run one curve to its end; its trained weights.

    Args:
        plan: The experiment.
        number: The curve's place in the plan.
        state: The state after its last round; None if it has not begun.
        folder: Where its lines and models are kept, if anywhere.
        rounds: Its lines are appended to these.
        watch: Told of each round.
        elsewhere: How many rounds of other curves are done.
    """
    experiment = plan.config.experiment
    (curve, seed), key = plan.curves[number], plan.keys[number]
    federation = plan.federation(curve, seed)
    state = state or first_state(federation)
    now = environment(plan.config, threads=torch.get_num_threads())
    serverless = is_decentralized(plan.config, curve.rule)
    run_round = decentralized.run_round if serverless else central.run_round
    # Assigned at once, so that an interruption leaves the place before or after the round.
    place: tuple[State, ResultsMark] | None = None
    try:
        while state.round < experiment.rounds and not state.diverged:
            record, state = run_round(federation, curve, state)
            line = record.as_dict()
            mark = folder.append(line) if folder else None
            place = (state, mark) if mark else None
            rounds.append(results.jsonable(line))
            if folder and experiment.save_every and state.round % experiment.save_every == 0:
                tensors = named_tensors(federation.model, state.weights)
                save_model(folder, plan, key, tensors, state.round, is_final=False)
            if folder and mark and record.is_evaluated and state.round < experiment.rounds:
                folder.save(to_checkpoint(key, state, now), mark)
            watch(Progress(record, elsewhere + state.round, experiment.rounds * len(plan.curves)))
    except (KeyboardInterrupt, PluginError):
        if folder and place:
            folder.save(to_checkpoint(key, place[0], now), place[1])
        raise
    if folder:
        save_end(folder, plan, key, state, model=federation.model, environment=now)
    return named_tensors(federation.model, state.weights)


def finish(
    plan: ExperimentPlan,
    rounds: Sequence[Mapping[str, Any]],
    folder: RunFolder | None,
    notes: Notes,
    *,
    threads: int | None = None,
    error: Mapping[str, Any] | None = None,
    trained: Mapping[CurveKey, NamedTensors] | None = None,
) -> Result:
    """The result of all curves; its summary and report go into the folder.

    Args:
        plan: What was run.
        rounds: All rounds.
        folder: Where it goes.
        notes: Reasons for doubt that are known so far; those that the rounds tell are added.
        threads: Torch's threads, if not the config's.
        error: What custom code raised first.
        trained: The trained weights, where no folder keeps them.
    """
    config, sources = plan.config.as_dict(), sources_of(plan)
    ordered = in_order(rounds, config)
    raised = count_errors(ordered)
    for note in notes_on_curves(group(ordered), config):
        notes.keep_unsaid(note)
    if error is not None and raised:
        notes.keep_unsaid(f"custom code failed {raised} times; the first: {error_text(error)}")
    now = environment(plan.config, threads=threads)
    summary = summarise(ordered, config=config, environment=now, notes=notes.kept)
    for curve in summary["curves"]:
        # Only custom code that raises ends a run, and writes its summary, inside a curve.
        if curve["outcome"] == "completed" and curve["rounds"] < plan.config.experiment.rounds:
            curve["outcome"] = "stopped"
    if error is not None:
        summary["custom_errors"] = {"count": raised, "first": error}
    if sources:
        summary["custom_code"] = sources
    summary |= judges_fields(plan.config, plan.dataset)
    if folder is None:
        weights = weights_of(plan.config.attack.name, trained or {})
        return Result(plan.config, ordered, summary, None, notes, weights)
    folder.write(results.SUMMARY, results.to_json(summary, indent=1) + "\n")
    folder.write(SHARDS, shards_json(plan.config, plan.dataset))
    write_report(folder.path)
    for curve in summary["curves"]:
        # What a crash between two writes may have left; a curve that is not over may yet need it.
        if curve["outcome"] != "stopped":
            key = CurveKey(curve["rule"], curve["attack"], curve["seed"])
            folder.drop_earlier_ends(key, curve["rounds"])
    weights = results.folder_weights(folder.path, config)
    return Result(plan.config, ordered, summary, folder.path, notes, weights)
