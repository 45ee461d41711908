"""Several experiments at once: one curve on every core, with one thread each.

The matrices of one round are too small to keep two threads busy; two curves do. While a curve runs,
it has a run folder of its own below its experiment's `checkpoint/`, so every curve can be
interrupted and resumed. When an experiment's last curve has ended, their rounds are put together in
the order in which one curve after the other would have written them.
"""

import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from threading import Event, Lock

from holdout import device, results
from holdout.curve_rows import key_of
from holdout.errors import RunFolderError, UserError
from holdout.experiments.checkpoints import (
    Piece,
    check_fit,
    end_of,
    notes_on_environment,
    remaining,
    state_to_go_on,
)
from holdout.experiments.code_record import refuse_changes, sources_of, store
from holdout.experiments.curve_files import take_over
from holdout.experiments.opened_run import OpenedRun
from holdout.experiments.plan import ExperimentPlan
from holdout.experiments.rule_trial import try_rules
from holdout.experiments.run_notes import Notes
from holdout.experiments.runner import (
    Progress,
    Result,
    Watch,
    environment,
    finish,
    run_curve,
    threads_of,
)
from holdout.experiments.trackers import make_trackers
from holdout.experiments.watchers import Watchers
from holdout.parallel import piece_of_work, pool
from holdout.results import RunFolder, Stored
from holdout.voting import VOTES

THREADS = 1
"""Torch's threads for one curve."""


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """An experiment, and the run folder that it writes."""

    plan: ExperimentPlan
    out: Path
    resume: bool = False
    watch: Callable[[], Watch | None] = lambda: None
    """Makes the watch of a curve, which is told how far all experiments have come."""
    say: Callable[[str], None] | None = None
    """Called with each note."""


@dataclass(frozen=True, slots=True, eq=False)
class _Work:
    """An experiment whose folder is open."""

    job: Job
    folder: RunFolder
    opened: OpenedRun
    pieces: Sequence[Piece]
    """The curves that are not over."""
    notes: Notes
    watchers: Watchers
    ended: list[Result]
    """Takes the result."""

    @property
    def numbers_apart(self) -> list[int]:
        """The numbers of the curves that have folders of their own, in the plan's order."""
        return [piece.number for piece in self.pieces if not piece.is_begun]

    def folder_of(self, curve: int) -> Path:
        """Where a curve is run."""
        return (self.job.out / results.CHECKPOINT).with_name(f"curve-{curve}")


def run_together(jobs: Sequence[Job]) -> list[Result]:
    """Run all experiments; each result equals that of its experiment alone with `threads = 1`."""
    for job in jobs:
        try_rules(job.plan)
    with ExitStack() as stack:
        stack.enter_context(device.using(_device_of(jobs)))
        works = [_open(stack, job) for job in jobs]
        _run_curves(works)
        return [_put_together(work) for work in works]


def _device_of(jobs: Sequence[Job]) -> str:
    names = sorted({job.plan.config.experiment.device for job in jobs})
    if len(names) != 1:
        raise UserError(f"experiments that run together need one device; got {', '.join(names)}")
    return names[0]


def _open(stack: ExitStack, job: Job) -> _Work:
    plan, config, notes = job.plan, job.plan.config, Notes(job.say)
    watchers = Watchers(make_trackers(config, job.out, notes.add))
    ended = stack.enter_context(watchers.following(config))
    if job.resume:
        refuse_changes(job.out, sources_of(plan))
        opening = results.resume(job.out, config.as_dict(), check=partial(check_fit, plan))
        folder, stored = stack.enter_context(opening)
    else:
        folder = stack.enter_context(results.create(job.out, config.as_toml()))
        store(folder, sources_of(plan))
        stored = None
    opened = OpenedRun(folder, stored)
    for note in notes_on_environment(stored, environment(config, threads=THREADS)):
        notes.add(note)
    pieces = remaining(plan, opened.rows, opened.place)
    return _Work(job, folder, opened, pieces, notes, watchers, ended)


def _run_curves(works: Sequence[_Work]) -> None:
    stop, count = Event(), _Count(works)
    tasks: list[tuple[bool, Callable[[], None]]] = []
    # The longest curves first, so that none is left running alone at the end: votes, and among them
    # those of the last panels, where the attacker searches longest.
    for work in reversed(works):
        for piece in work.pieces:
            curve, _ = work.job.plan.curves[piece.number]
            watch = count.watch(work, piece.number, stop)
            tasks.append((curve.rule not in VOTES, partial(_run, work, piece, watch)))
    tasks.sort(key=lambda task: task[0])
    executor = pool(max(threads_of(work.job.plan.config) for work in works))
    futures: list[Future[None]] = []
    try:
        for _, task in tasks:
            futures.append(executor.submit(task))
        wait(futures, return_when=FIRST_EXCEPTION)
    finally:
        # On an interruption, too, every curve ends its round and saves where it is.
        stop.set()
        for future in futures:
            future.cancel()
        wait(futures)
    _raise_first(futures)


def _raise_first(futures: Sequence[Future[None]]) -> None:
    errors = [error for f in futures if not f.cancelled() and (error := f.exception())]
    # When one curve fails the others are interrupted, which is not what went wrong.
    errors.sort(key=lambda error: isinstance(error, KeyboardInterrupt))
    if errors:
        raise errors[0]


def _run(work: _Work, piece: Piece, watch: Watch) -> None:
    with piece_of_work():
        _run_there(work, piece, watch)


def _run_there(work: _Work, piece: Piece, watch: Watch) -> None:
    plan, number = work.job.plan, piece.number
    if piece.is_begun:
        state = state_to_go_on(plan, piece, work.opened.place, work.folder)
        run_curve(plan, number, state, folder=work.folder, rounds=[], watch=watch)
        return
    run_apart(plan, number, work.folder_of(number), watch)


def run_apart(plan: ExperimentPlan, number: int, path: Path, watch: Watch) -> None:
    """Run one curve in a run folder of its own, or go on with it there.

    Args:
        plan: The experiment.
        number: The curve's place in the plan.
        path: The folder, which holds this curve alone.
        watch: Told of each round.
    """
    if not (path / results.CONFIG).exists():
        # What an interrupted start may have left.
        shutil.rmtree(path, ignore_errors=True)
        with results.create(path, plan.config.as_toml()) as folder:
            run_curve(plan, number, None, folder=folder, rounds=[], watch=watch)
        return
    check = partial(_check_apart, plan, number=number)
    with results.resume(path, plan.config.as_dict(), check=check) as (folder, stored):
        place = OpenedRun(folder, stored).place
        if place is None or place.state is not None:
            state = place.state if place else None
            run_curve(plan, number, state, folder=folder, rounds=[], watch=watch)


def _check_apart(plan: ExperimentPlan, stored: Stored, *, number: int) -> None:
    """Refuse the folder of a curve that holds another one."""
    check_fit(plan, stored)
    found = {key_of(row) for row in stored.rows}
    if found != {plan.keys[number]}:
        told = ", ".join(sorted(map(str, found)))
        raise RunFolderError(f"{stored.path} holds {told}; expected {plan.keys[number]}")


def _put_together(work: _Work) -> Result:
    plan, folder = work.job.plan, work.folder
    now = environment(plan.config, threads=THREADS)
    for number in work.numbers_apart:
        apart = work.folder_of(number)
        rows = results.read_run(apart).rows
        for line in rows:
            folder.append(line)
        take_over(folder, apart)
        folder.save(end_of(plan.keys[number], rows[-1]["round"], now), folder.mark())
    for number in range(len(plan.curves)):
        shutil.rmtree(work.folder_of(number), ignore_errors=True)
    rounds = results.read_run(work.job.out).rows
    result = finish(plan, rounds, folder, work.notes, threads=THREADS)
    work.ended.append(result)
    return result


class _Count:
    """How many rounds of all curves are done."""

    def __init__(self, works: Sequence[_Work]) -> None:
        self._lock = Lock()
        sizes = [(work.job.plan.config.experiment.rounds, work) for work in works]
        self._total = sum(rounds * len(work.job.plan.curves) for rounds, work in sizes)
        self._done = {
            (id(work), number): rounds for rounds, work in sizes for number in _numbers_over(work)
        }

    def watch(self, work: _Work, number: int, stop: Event) -> Watch:
        """The watch of one curve: tells its job, and ends the curve once `stop` is set."""
        inner = work.job.watch()

        def watch(progress: Progress) -> None:
            with self._lock:
                self._done[id(work), number] = progress.record.round
                done = sum(self._done.values())
                work.watchers.round(progress)
                if inner is not None:
                    inner(replace(progress, rounds_done=done, rounds_total=self._total))
            if stop.is_set():
                raise KeyboardInterrupt

        return watch


def _numbers_over(work: _Work) -> set[int]:
    return {*range(len(work.job.plan.curves))} - {piece.number for piece in work.pieces}
