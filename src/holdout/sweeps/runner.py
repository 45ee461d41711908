"""Run a sweep: plan, select, run, draw; stop and go on at any time."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdout.config import read_file
from holdout.errors import UserError
from holdout.folder_names import claim_path, last_path
from holdout.results import explained
from holdout.sweeps.cells import Cells, gather
from holdout.sweeps.choosing import choose, reported_points
from holdout.sweeps.curve_store import CurveStore
from holdout.sweeps.estimates import CurvePace, duration, spread_over
from holdout.sweeps.grid import SweepFile
from holdout.sweeps.outputs import write_outputs
from holdout.sweeps.planning import Curves, SweepPlan, WantedCurve, plan_sweep
from holdout.sweeps.sweep_file import read_sweep
from holdout.sweeps.sweep_folder import (
    STORE,
    open_folder,
    refuse_another,
    refuse_unless_free,
    write_failed,
)
from holdout.sweeps.tables import table_rows
from holdout.sweeps.workforce import FailedCurve, SweepProgress, run_curves

RUNS = Path("runs")


@dataclass(frozen=True, slots=True, eq=False)
class SweepSize:
    """How much a sweep is, before anything is begun."""

    curves: int
    """All curves that it needs."""
    stored: int
    """Those that are in the store."""
    misfits: Mapping[str, Sequence[str]]
    """Why combinations cannot be run: for each reason, which."""
    seconds: float
    """Roughly how long the others take."""
    size: int
    """Roughly how many bytes they take."""
    jobs: int
    is_measured: bool
    """Whether the estimate rests on curves that were run here."""
    selects: bool
    """Whether some of the curves are there to select by."""

    @property
    def left(self) -> int:
        """The curves that are to be run."""
        return self.curves - self.stored

    def as_text(self) -> str:
        """The same for people."""
        lines = [f"{_count(self.curves, 'curve')}, {self.stored} of them in the store"]
        if self.selects:
            lines[0] += ", those to select by included"
        rough = "" if self.is_measured else ", a rough guess until some have been run here"
        if self.left:
            time = f"about {duration(self.seconds)} with {_count(self.jobs, 'job')}{rough}"
            lines.append(f"{_count(self.left, 'curve')} to run: {time}")
            lines.append(f"disk: about {max(0.1, self.size / 1e6):.1f} MB")
        for reason, which in self.misfits.items():
            more = f" and {len(which) - 3} more" if len(which) > 3 else ""  # noqa: PLR2004
            lines.append(f"cannot be run: {'; '.join(which[:3])}{more}: {reason}")
        return "\n".join(lines)


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'s' * (number != 1)}"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class SweepResult:
    """What a sweep gave.

    `rows` are those of `table.csv`: one for each rule, cell and choice of the adversary.

    Example:
        >>> import holdout, pathlib
        >>> holdout.SweepResult(pathlib.Path("runs/shares"), [], [], 12, cells=None)
        <SweepResult 'runs/shares': 12 curves>
    """

    folder: Path
    """Where its page, pictures and tables are."""
    rows: Sequence[Mapping[str, Any]]
    """The lines of `table.csv`: what was measured, over the seeds."""
    failed: Sequence[FailedCurve]
    """The curves that failed; the rest was run."""
    curves: int
    """How many curves it needed."""
    cells: Cells
    """The same as objects, cell by cell."""

    def __repr__(self) -> str:
        failed = f", {len(self.failed)} failed" if self.failed else ""
        return f"<SweepResult {str(self.folder)!r}: {self.curves} curves{failed}>"


def sweep(
    config: Mapping[str, Any] | str | Path,
    *,
    out: Path | str | None = None,
    store: Path | str | None = None,
    jobs: int | None = None,
    resume: bool = False,
    quick: bool = False,
    settings: Sequence[str] = (),
    yes: bool = False,
    watch: Callable[[SweepProgress], None] | None = None,
    say: Callable[[str], None] | None = None,
) -> SweepResult:
    """Run every rule of a sweep against every attack, and draw what the worst ones do.

    Curves run in processes of their own. Whatever is done is kept: Ctrl-C loses nothing, and a
    curve that another sweep with the same store has run is not run again.

    Args:
        config: The path of a sweep file, or its values as nested mappings.
        out: The folder to make; without it runs/NAME, with a number if that is taken.
        store: Where curves are kept; without it, `curves` beside the folder.
        jobs: How many curves are run at a time; without it, one a core.
        resume: Go on with the sweep in `out`.
        quick: Lay the file's `[quick]` over it.
        settings: Each is "section.key=value", as for `--set`; "grid.KEY=[...]" sets an axis.
        yes: Begin however many curves there are.
        watch: Called with a `SweepProgress` as curves go on.
        say: Called with each note.

    Example:
        >>> import holdout, tempfile
        >>> setting = {
        ...     "experiment": {"rules": ["mean"], "rounds": 1, "baseline": False},
        ...     "data": {"name": "mnist-5k", "samples_per_worker": 40},
        ...     "federation": {"workers": 9, "proposers": 4, "voters": 4},
        ...     "grid": {"attack.name": ["sign-flip"]},
        ... }
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     holdout.sweep(setting, out=f"{folder}/shares").rows[0]["attack.name"]
        'sign-flip'
    """
    prepared = prepare(
        values_of(config),
        settings=settings,
        quick=quick,
        out=out,
        store=store,
        jobs=jobs,
        resume=resume,
    )
    return prepared.run(yes=yes, watch=watch or (lambda _: None), say=say or (lambda _: None))


def values_of(config: Mapping[str, Any] | str | Path) -> Mapping[str, Any]:
    """The values of a sweep file, or those that were given."""
    if isinstance(config, str | Path):
        return read_file(Path(config))
    given: object = config
    if not isinstance(given, Mapping):
        got = type(given).__name__
        raise UserError(f"sweep takes the path of a TOML file or a mapping; got {got}")
    return config


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """A sweep that is planned, and not begun."""

    plan: SweepPlan
    folder: Path
    """The folder, or (while `is_claimed` is false) the name that its own would be made from."""
    is_claimed: bool
    store: CurveStore
    jobs: int
    resume: bool
    pace: CurvePace

    @property
    def file(self) -> SweepFile:
        """The sweep file."""
        return self.plan.file

    def size(self) -> SweepSize:
        """How much there is to do."""
        needed = self._needed()
        left = [curve for curve in needed.values() if not self.store.has(curve.key)]
        seconds = [self.pace.seconds(c.rule, c.attack, c.guessed) for c in left]
        reasons: dict[str, list[str]] = {}
        for (label, point), reason in self.plan.misfits().items():
            places = [*self.file.cell_axes, *self.file.chosen, *self.file.worst]
            words = self.file.label(places, [point[place] for place in places])
            reasons.setdefault(reason, []).append(f"{label} at {words}" if words else label)
        return SweepSize(
            curves=len(needed),
            stored=len(needed) - len(left),
            misfits=reasons,
            seconds=spread_over(seconds, self.jobs),
            size=sum(curve.size for curve in left),
            jobs=self.jobs,
            is_measured=self.pace.is_measured,
            selects=bool(self.file.chosen),
        )

    def _needed(self) -> Curves:
        """All curves; where values are yet to be selected, the first ones stand for them."""
        file, plan = self.file, self.plan
        if not file.chosen:
            return plan.curves(plan.everything(), file.seeds)
        first = tuple(0 for _ in file.chosen)
        stand_in = {
            (contender.label, place): first
            for contender in plan.contenders
            for place in file.over(file.cell_axes)
        }
        reported = plan.curves(reported_points(plan, stand_in), file.seeds)
        return plan.curves(plan.everything(), file.settings.select_seeds) | reported

    def run(
        self,
        *,
        yes: bool,
        watch: Callable[[SweepProgress], None],
        say: Callable[[str], None],
        begun: Callable[[Path], None] = lambda _: None,
    ) -> SweepResult:
        """Run what is not in the store, and write what came out.

        Args:
            yes: Whether to begin more curves than the file's limit.
            watch: Told how far it has come.
            say: Told of what cannot be run.
            begun: Told the folder, once it is there.
        """
        size = self.size()
        limit = self.file.settings.curves_max
        if size.left > limit and not yes and not self.resume:
            raise UserError(
                f"the sweep has {size.left} curves to run (about {duration(size.seconds)} with "
                f"{_count(self.jobs, 'job')}); more than sweep.curves_max = {limit} are begun only "
                "with --yes"
            )
        for reason, which in size.misfits.items():
            say(f"{_count(len(which), 'combination')} cannot be run: {reason}")
        folder = self.folder if self.is_claimed else claim_path(RUNS, self.folder.name)
        with open_folder(folder, self.file.as_dict(), resume=self.resume):
            self.store.prepare()
            begun(folder)
            return self._run(folder, watch, say)

    def _run(
        self,
        folder: Path,
        watch: Callable[[SweepProgress], None],
        say: Callable[[str], None],
    ) -> SweepResult:
        plan, file = self.plan, self.file
        failed: list[FailedCurve] = []
        selecting: Curves = {}
        if file.chosen:
            selecting = plan.curves(plan.everything(), file.settings.select_seeds)
            failed += self._run_missing(selecting, watch, say, {})
        choices = choose(plan, self.store)
        reported = plan.curves(reported_points(plan, choices), file.seeds)
        failed += self._run_missing(reported, watch, say, selecting)
        write_failed(folder, failed)
        for curve in failed:
            say(f"{curve.curve} failed: {curve.message}")
        cells = gather(plan, self.store, choices)
        write_outputs(folder, cells, failed)
        return SweepResult(folder, table_rows(cells), failed, len(selecting | reported), cells)

    def _run_missing(
        self,
        curves: Curves,
        watch: Callable[[SweepProgress], None],
        say: Callable[[str], None],
        before: Curves,
    ) -> list[FailedCurve]:
        missing: list[WantedCurve] = []
        for curve in curves.values():
            if not self.store.has(curve.key):
                missing.append(curve)
            elif self.store.read(curve.key) is None:
                say(f"{self.store.file_of(curve.key)} is damaged; the curve is run again")
                self.store.file_of(curve.key).unlink(missing_ok=True)
                missing.append(curve)
        if not missing:
            return []
        others = len(before) + len(curves) - len(missing)
        return run_curves(
            missing, self.store, jobs=self.jobs, pace=self.pace, watch=watch, before=others
        )


def prepare(
    values: Mapping[str, Any],
    *,
    settings: Sequence[str] = (),
    quick: bool = False,
    out: Path | str | None = None,
    store: Path | str | None = None,
    jobs: int | None = None,
    resume: bool = False,
) -> Prepared:
    """Check a sweep and plan it; nothing is written."""
    if jobs is not None and jobs < 1:
        raise UserError(f"jobs must be at least 1; got {jobs}")
    file = read_sweep(values, quick=quick, settings=settings)
    name = f"{file.name}{'-quick' * quick}"
    folder = Path(out) if out is not None else RUNS / name
    if out is None and resume:
        folder = last_path(RUNS, name)
    if resume:
        refuse_another(folder, file.as_dict())
    elif out is not None:
        with explained(folder):
            refuse_unless_free(folder)  # Before a plan of thousands of curves is made for nothing.
    where = CurveStore(Path(store) if store is not None else folder.parent / STORE)
    plan = plan_sweep(file)
    return Prepared(
        plan=plan,
        folder=folder,
        is_claimed=out is not None or resume,
        store=where,
        jobs=jobs or cores(),
        resume=resume,
        pace=CurvePace(where.timings()),
    )
