"""Several experiments at once: one curve on every core, with one thread each.

The matrices of one round are too small to keep two threads busy; two curves do. While a curve runs,
it has a run folder of its own below its experiment's `checkpoint/`, so every curve can be
interrupted and resumed. When an experiment's last curve has ended, their rounds are put together in
the order in which one curve after the other would have written them.
"""

import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from threading import Event, Lock
from typing import Any

from holdout import device, results
from holdout.errors import RunFolderError, UserError
from holdout.experiments.checkpoints import (
    Place,
    check_fit,
    notes_on_environment,
    restore,
    to_checkpoint,
)
from holdout.experiments.code_record import refuse_changes, sources_of, store
from holdout.experiments.plan import ExperimentPlan
from holdout.experiments.rule_trial import try_rules
from holdout.experiments.runner import (
    Progress,
    Result,
    Watch,
    environment,
    finish,
    run_curve,
    threads_of,
)
from holdout.parallel import pool
from holdout.results import Checkpoint, RunFolder
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


@dataclass(frozen=True, slots=True, eq=False)
class _Work:
    """An experiment whose folder is open."""

    job: Job
    folder: RunFolder
    place: Place
    """Where its own results end: before the curves that are run apart."""
    notes: Sequence[str]

    @property
    def curves_apart(self) -> range:
        """The numbers of the curves that have folders of their own."""
        begun = self.place.state is not None
        return range(self.place.curve + begun, len(self.job.plan.curves))

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
    config = job.plan.config
    if not job.resume:
        folder = stack.enter_context(results.create(job.out, config.as_toml()))
        store(folder, sources_of(job.plan))
        return _Work(job, folder, Place(0), [])
    refuse_changes(job.out, sources_of(job.plan))
    check = partial(_check, job.plan, curves=range(len(job.plan.curves)))
    opened = results.resume(job.out, config.as_dict(), check=check)
    folder, checkpoint = stack.enter_context(opened)
    notes = notes_on_environment(checkpoint, environment(config, threads=THREADS))
    return _Work(job, folder, restore(checkpoint), notes)


def _check(
    plan: ExperimentPlan,
    checkpoint: Checkpoint,
    done: Sequence[Mapping[str, Any]],
    *,
    curves: range,
) -> None:
    place = restore(checkpoint)
    check_fit(plan, place, done)
    if not curves.start <= place.curve <= curves.stop:
        raise RunFolderError(
            f"{results.CHECKPOINT} belongs to curve {place.curve}; expected one from "
            f"{curves.start} to {curves.stop}"
        )


def _run_curves(works: Sequence[_Work]) -> None:
    stop, count = Event(), _Count(works)
    tasks: list[tuple[bool, Callable[[], None]]] = []
    # The longest curves first, so that none is left running alone at the end: votes, and among them
    # those of the last panels, where the attacker searches longest.
    for work in reversed(works):
        for number in range(work.place.curve, len(work.job.plan.curves)):
            curve, _ = work.job.plan.curves[number]
            watch = count.watch(work, number, stop)
            tasks.append((curve.rule not in VOTES, partial(_run, work, number, watch)))
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


def _run(work: _Work, number: int, watch: Watch) -> None:
    with device.widths():
        _run_there(work, number, watch)


def _run_there(work: _Work, number: int, watch: Watch) -> None:
    plan, place = work.job.plan, work.place
    if number not in work.curves_apart:
        run_curve(plan, place, work.folder, [], watch)
        return
    path = work.folder_of(number)
    if not (path / results.CONFIG).exists():
        # What an interrupted start may have left.
        shutil.rmtree(path, ignore_errors=True)
        with results.create(path, plan.config.as_toml()) as folder:
            run_curve(plan, Place(number), folder, [], watch)
        return
    check = partial(_check, plan, curves=range(number, number + 1))
    with results.resume(path, plan.config.as_dict(), check=check) as (folder, checkpoint):
        place = restore(checkpoint) if checkpoint else Place(number)
        if place.curve == number:
            run_curve(plan, place, folder, [], watch)


def _put_together(work: _Work) -> Result:
    plan, folder = work.job.plan, work.folder
    now = environment(plan.config, threads=THREADS)
    for number in work.curves_apart:
        for line in results.read_run(work.folder_of(number)).rows:
            folder.append(line)
        folder.save(to_checkpoint(Place(number + 1), now), folder.mark())
    for number in range(len(plan.curves)):
        shutil.rmtree(work.folder_of(number), ignore_errors=True)
    rounds = results.read_run(work.job.out).rows
    return finish(plan, rounds, folder, aside=work.notes, threads=THREADS)


class _Count:
    """How many rounds of all curves are done."""

    def __init__(self, works: Sequence[_Work]) -> None:
        self._lock = Lock()
        sizes = [(work.job.plan.config.experiment.rounds, work) for work in works]
        self._total = sum(rounds * len(work.job.plan.curves) for rounds, work in sizes)
        self._done = {
            (id(work), number): rounds
            for rounds, work in sizes
            for number in range(work.place.curve)
        }

    def watch(self, work: _Work, number: int, stop: Event) -> Watch:
        """The watch of one curve: tells its job, and ends the curve once `stop` is set."""
        inner = work.job.watch()

        def watch(progress: Progress) -> None:
            with self._lock:
                self._done[id(work), number] = progress.record.round
                done = sum(self._done.values())
                if inner is not None:
                    inner(replace(progress, rounds_done=done, rounds_total=self._total))
            if stop.is_set():
                raise KeyboardInterrupt

        return watch
