"""What came out of a sweep: for each rule and cell the attack that does most harm.

A cell is a rule at one combination of values, whatever the adversary chooses from. What is shown of
it is its worst attack: the one with the lowest mean over the seeds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, stdev

from holdout.experiments.curves import name_of
from holdout.metrics import ACCURACY, Metric
from holdout.sweeps.curve_store import CurveStore, StoredCurve
from holdout.sweeps.grid import Contender, Measure, Point, SweepFile
from holdout.sweeps.planning import BASELINE, SweepPlan, WantedCurve

MEASURES: tuple[Measure, ...] = ("final", "lowest", "best")
Choices = Mapping[tuple[str, Point], Point]
"""For a contender and the values of a cell, those of the axes that were selected."""


@dataclass(frozen=True, slots=True)
class Spread:
    """A number of several seeds.

    Example:
        >>> Spread.of([0.25, 0.75]).mean, Spread.of([0.5]).deviation
        (0.5, None)
    """

    mean: float
    low: float
    high: float
    deviation: float | None
    """None for a single seed."""
    seeds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """The spread of at least one number."""
        deviation = stdev(values) if len(values) > 1 else None
        return cls(fmean(values), min(values), max(values), deviation, len(values))


@dataclass(frozen=True, eq=False)
class Attacked:
    """A contender in a cell, under one choice of the adversary."""

    label: str
    """What the adversary chose."""
    point: Point
    curves: Mapping[int, StoredCurve]
    """By seed; a curve that failed is missing."""
    problem: str | None
    """Why this cannot be, if it cannot."""
    upper: Mapping[int, StoredCurve]
    """The mean without attack, by seed."""

    def spread(self, measure: Measure) -> Spread | None:
        """What was measured, over the seeds."""
        return self._spreads.get(measure)

    @cached_property
    def _spreads(self) -> Mapping[str, Spread]:
        curves = self.curves.values()
        found = {measure: [curve.value(measure) for curve in curves] for measure in MEASURES}
        return {measure: Spread.of(values) for measure, values in found.items() if values}

    def below(self) -> float | None:
        """How far the final number is below that of the mean without attack, over common seeds."""
        seeds = [seed for seed in self.curves if seed in self.upper]
        if not seeds:
            return None
        return fmean(self.upper[seed].final - self.curves[seed].final for seed in seeds)

    @property
    def diverged(self) -> int:
        """How many seeds ended in numbers that are not finite."""
        return sum(curve.diverged for curve in self.curves.values())


@dataclass(frozen=True, eq=False)
class Cell:
    """A contender at the values of a cell, under everything that the adversary may choose."""

    contender: Contender
    place: Point
    """Its values on the axes that tell cells apart."""
    attacks: tuple[Attacked, ...]
    chosen: str
    """What was selected for it, in words; empty if nothing was."""
    seeds: int
    """How many seeds there should be."""

    def worst(self, measure: Measure) -> Attacked | None:
        """The choice of the adversary that does most harm; None if nothing was measured."""
        found = [
            (spread.mean, i) for i, a in enumerate(self.attacks) if (spread := a.spread(measure))
        ]
        return self.attacks[min(found)[1]] if found else None

    def value(self, measure: Measure) -> Spread | None:
        """What the worst attack leaves."""
        worst = self.worst(measure)
        return None if worst is None else worst.spread(measure)

    def below(self) -> float | None:
        """How far it ends below the mean without attack, under the worst attack."""
        worst = self.worst("final")
        return None if worst is None else worst.below()

    @cached_property
    def problem(self) -> str | None:
        """Why nothing of it can be run, if so."""
        problems = [attacked.problem for attacked in self.attacks]
        return problems[0] if all(problems) else None

    @property
    def missing(self) -> int:
        """How many curves of it are not there, though they could be."""
        return sum(self.seeds - len(a.curves) for a in self.attacks if a.problem is None)


@dataclass(frozen=True, eq=False)
class Cells:
    """All cells of a sweep."""

    file: SweepFile
    by_place: Mapping[tuple[str, Point], Cell]
    metric: Metric

    @property
    def contenders(self) -> tuple[Contender, ...]:
        """What is compared."""
        return self.file.contenders

    @property
    def places(self) -> list[Point]:
        """Every combination of the values that tell cells apart."""
        return self.file.over(self.file.cell_axes)

    def cell(self, contender: Contender, place: Point) -> Cell:
        """A contender's cell."""
        return self.by_place[contender.label, place]

    def best(self, place: Point, measure: Measure) -> Cell | None:
        """The contender whose worst attack leaves most; the first of several."""
        return self._best[place, measure]

    @cached_property
    def _best(self) -> Mapping[tuple[Point, str], Cell | None]:
        return {
            (place, measure): self._find_best(place, measure)
            for place in self.places
            for measure in MEASURES
        }

    def _find_best(self, place: Point, measure: Measure) -> Cell | None:
        found = [
            cell
            for contender in self.contenders
            if (cell := self.cell(contender, place)).value(measure) is not None
        ]
        return max(found, key=lambda cell: _mean(cell, measure), default=None)

    def place_label(self, place: Point) -> str:
        """What people call the values of a cell."""
        axes = [self.file.axes[i] for i in self.file.cell_axes]
        pairs = zip(axes, place, strict=True)
        return ", ".join(axis.named(j) for axis, j in pairs if len(axis.values) > 1)

    def name(self, contender: Contender) -> str:
        """What people call a contender."""
        return contender_name(contender)


def _mean(cell: Cell, measure: Measure) -> float:
    spread = cell.value(measure)
    assert spread is not None  # noqa: S101
    return spread.mean


def contender_name(contender: Contender) -> str:
    """A rule by its name for people, a variant by its own."""
    return name_of(contender.label) if contender.label == contender.rule else contender.label


def gather(plan: SweepPlan, store: CurveStore, choices: Choices) -> Cells:
    """Put the curves of the store into cells; what is not there is missing."""
    file, cache = plan.file, _Cache(store)
    cells: dict[tuple[str, Point], Cell] = {}
    for contender in file.contenders:
        for place in file.over(file.cell_axes):
            chosen = choices.get((contender.label, place))
            upper = choices.get((BASELINE.label, place))
            attacks = [
                _attacked(plan, cache, contender, full_point(file, place, lie, chosen), lie)
                if chosen is not None or not file.chosen
                else _not_chosen(plan, contender, place, lie)
                for lie in file.over(file.worst)
            ]
            if file.has_baseline:
                attacks = [
                    _with_upper(plan, cache, attacked, full_point(file, place, lie, upper))
                    if upper is not None or not file.chosen
                    else attacked
                    for attacked, lie in zip(attacks, file.over(file.worst), strict=True)
                ]
            words = file.label(file.chosen, chosen) if chosen and file.chosen else ""
            cells[contender.label, place] = Cell(
                contender, place, tuple(attacks), words, len(file.seeds)
            )
    return Cells(file, cells, cache.metric)


def full_point(file: SweepFile, place: Point, lie: Point, chosen: Point | None) -> Point:
    """The point of a cell, of the adversary's choice and of what was selected."""
    found = [0] * len(file.axes)
    for places, values in ((file.cell_axes, place), (file.worst, lie), (file.chosen, chosen or ())):
        for i, j in zip(places, values, strict=False):
            found[i] = j
    return tuple(found)


class _Cache:
    """Curves of the store, each read once."""

    def __init__(self, store: CurveStore) -> None:
        self._store = store
        self._found: dict[str, StoredCurve | None] = {}
        self.metric = ACCURACY

    def read(self, key: str) -> StoredCurve | None:
        if key not in self._found:
            curve = self._found[key] = self._store.read(key)
            if curve is not None:
                self.metric = curve.metric
        return self._found[key]


def _attacked(
    plan: SweepPlan, cache: _Cache, contender: Contender, point: Point, lie: Point
) -> Attacked:
    file = plan.file
    curves, problem = _find(plan, cache, contender, point)
    return Attacked(file.label(file.worst, lie), point, curves, problem, {})


def _not_chosen(plan: SweepPlan, contender: Contender, place: Point, lie: Point) -> Attacked:
    """What is there of a cell for which nothing was selected: the reason, if nothing can be."""
    file = plan.file
    options = [full_point(file, place, lie, option) for option in file.over(file.chosen)]
    found = [plan.find(contender, point, file.seeds[0]) for point in options]
    problem = found[0] if all(isinstance(one, str) for one in found) else None
    told = problem if isinstance(problem, str) else None
    return Attacked(file.label(file.worst, lie), options[0], {}, told, {})


def _with_upper(plan: SweepPlan, cache: _Cache, attacked: Attacked, point: Point) -> Attacked:
    curves, _ = _find(plan, cache, BASELINE, point)
    return Attacked(attacked.label, attacked.point, attacked.curves, attacked.problem, curves)


def _find(
    plan: SweepPlan, cache: _Cache, contender: Contender, point: Point
) -> tuple[dict[int, StoredCurve], str | None]:
    curves: dict[int, StoredCurve] = {}
    problem: str | None = None
    for seed in plan.file.seeds:
        wanted = plan.find(contender, point, seed)
        if not isinstance(wanted, WantedCurve):
            problem = wanted
        elif (curve := cache.read(wanted.key)) is not None:
            curves[seed] = curve
    return curves, problem
