"""Run an experiment: curve after curve, round after round, resumable after any round."""

import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import holdout
from holdout import results
from holdout.config import Config, read_file
from holdout.curve_rows import CurveKey, in_order, key_of, summarise
from holdout.errors import UserError
from holdout.experiments.checkpoints import (
    Place,
    check_fit,
    notes_on_environment,
    remaining,
    restore,
    state_to_go_on,
    to_checkpoint,
)
from holdout.experiments.curve_files import named_tensors, save_end, save_model
from holdout.experiments.curves import TableRow, final_table
from holdout.experiments.plan import ExperimentPlan, make_plan
from holdout.experiments.plugins import Plugins
from holdout.experiments.report import table_html, write_report
from holdout.experiments.resolve_names import is_decentralized
from holdout.experiments.trackers import make_trackers
from holdout.experiments.watchers import CallersWatcher, RunWatcher, Watchers
from holdout.federation import central, decentralized
from holdout.federation.network_sizes import notes_on
from holdout.federation.round_setup import State, first_state
from holdout.results import ResultsMark, RunFolder, Stored
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
    """What the sizes of a network without a server do not guarantee, that a resumed run may
    differ, or that a tracker failed."""
    weights: Weights = field(default_factory=lambda: weights_of("", {}))
    """The trained weights as named tensors: `weights["holdout", 0]` for the rule `holdout` and
    seed 0 under the config's attack, `weights["mean", 0, "none"]` for the mean without attack."""

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
    watch: RunWatcher | Callable[[Progress], None] | None = None,
    say: Callable[[str], None] | None = None,
) -> Result:
    """Run an experiment: some rules, one attack, one or several seeds.

    Everything is checked before any work is done. Ctrl-C keeps what is done if there is a run
    folder.

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
        say: Called with each of the result's notes as soon as it is known.

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
    callers = CallersWatcher(watch)
    values = read_file(Path(config)) if isinstance(config, str | Path) else config
    plan = make_plan(values, plugins)
    path, notes = None if out is None else Path(out), Notes(say)
    for note in notes_on(plan.config):
        notes.add(note)
    # The caller last: what it raises ends a run whose round is done, and tracked.
    watchers = Watchers([*make_trackers(plan.config, path, notes.add), callers])
    # The threads also while a checkpoint is checked: that founds a network anew, and its last bits
    # depend on their number.
    with (
        watchers.following(plan.config) as ended,
        _threads(plan.config),
        _open(plan, path, resume=resume) as opened,
    ):
        for note in notes_on_environment(opened.stored, environment(plan.config)):
            notes.add(note)
        ended.append(_run_curves(plan, opened, notes, watchers))
    return ended[0]


class Notes(list[str]):
    """What the user is told: a list of notes, each said as soon as it is known."""

    def __init__(self, say: Callable[[str], None] | None = None) -> None:
        super().__init__()
        self._say = say

    def add(self, note: str) -> None:
        """Keep a note and say it."""
        self.append(note)
        if self._say is not None:
            self._say(note)


@dataclass(frozen=True, slots=True, eq=False)
class OpenedRun:
    """A run folder that is ready to be written, if there is one, and what it held before."""

    folder: RunFolder | None
    stored: Stored | None = None

    @property
    def place(self) -> Place | None:
        """Where the run stopped; None if it has not begun."""
        return restore(self.stored.checkpoint, self.stored.config) if self.stored else None

    @property
    def rows(self) -> Sequence[Mapping[str, Any]]:
        """The rounds that are done."""
        return self.stored.rows if self.stored else ()


@contextmanager
def _open(plan: ExperimentPlan, path: Path | None, *, resume: bool) -> Iterator[OpenedRun]:
    if path is None:
        yield OpenedRun(None)
        return
    config = plan.config
    opening = (
        results.resume(path, config.as_dict(), check=partial(check_fit, plan), may_extend=True)
        if resume
        else results.create(path, config.as_toml())
    )
    with opening as opened:
        yield OpenedRun(*opened) if isinstance(opened, tuple) else OpenedRun(opened)


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
    plan: ExperimentPlan, opened: OpenedRun, notes: Notes, watchers: Watchers
) -> Result:
    rounds, place, folder = list(opened.rows), opened.place, opened.folder
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
            watch=watchers.round,
            elsewhere=elsewhere,
        )
        done = elsewhere + each
    return finish(plan, rounds, folder, notes, trained=trained)


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
            if folder and mark and record.accuracy is not None and state.round < experiment.rounds:
                folder.save(to_checkpoint(key, state, now), mark)
            watch(Progress(record, elsewhere + state.round, experiment.rounds * len(plan.curves)))
    except KeyboardInterrupt:
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
    notes: Sequence[str] = (),
    *,
    threads: int | None = None,
    trained: Mapping[CurveKey, NamedTensors] | None = None,
) -> Result:
    """The result of all curves; its summary and report go into the folder."""
    config = plan.config.as_dict()
    ordered = in_order(rounds, config)
    now = environment(plan.config, threads=threads)
    summary = summarise(ordered, config=config, environment=now)
    if folder is None:
        weights = weights_of(plan.config.attack.name, trained or {})
        return Result(plan.config, ordered, summary, None, notes, weights)
    folder.write(results.SUMMARY, results.to_json(summary, indent=1) + "\n")
    write_report(folder.path)
    # What a crash between two writes may have left.
    for key, row in {key_of(row): row for row in ordered}.items():
        folder.drop_earlier_ends(key, row["round"])
    weights = results.folder_weights(folder.path, config)
    return Result(plan.config, ordered, summary, folder.path, notes, weights)
