"""What a cell of a sweep is like, whatever rule is run there: who differs, who can judge, who lies.

How much honest workers differ (G^2 and B^2), which share of the voters can judge each class, what
an honest majority of judges would need, and how many liars the draws held.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, median
from typing import Any

from holdout.curve_rows import judges_in
from holdout.experiments.heterogeneity_report import coverage_needed
from holdout.heterogeneity import DissimilarityFit, LiarsDrawn, measured_of
from holdout.sweeps.cells import Attacked, Cells
from holdout.sweeps.curve_store import StoredCurve
from holdout.sweeps.grid import Point


@dataclass(frozen=True, eq=False)
class Conditions:
    """What a cell is like, over its seeds.

    Example:
        >>> at = Conditions(0.1, 2.5, (1.0, 0.25, 0.75), 0.5, None, None)
        >>> at.least, at.median, at.lacking, at.is_covered
        (0.25, 0.75, 1, False)
    """

    g2: float | None
    b2: float | None
    judges: tuple[float, ...]
    """For each class the share of honest voters that can judge it; empty: nobody counted."""
    needed: float | None
    """The share c with c (1 - f) = f: an honest majority of judges needs more."""
    proposers: LiarsDrawn | None
    voters: LiarsDrawn | None

    @property
    def least(self) -> float:
        """The share that can judge the class that fewest can judge."""
        return min(self.judges)

    @property
    def median(self) -> float:
        """The median of the shares over the classes."""
        return median(self.judges)

    @property
    def lacking(self) -> int:
        """For how many classes honest judges are no majority."""
        assert self.needed is not None  # noqa: S101
        return sum(share <= self.needed for share in self.judges)

    @cached_property
    def is_covered(self) -> bool | None:
        """Whether c (1 - f) > f for every class; None: it is not known."""
        return None if self.needed is None or not self.judges else not self.lacking

    @property
    def is_known(self) -> bool:
        """Whether there is anything to tell."""
        told = (self.g2, self.proposers, self.voters)
        return bool(self.judges) or any(part is not None for part in told)


def conditions_at(cells: Cells, place: Point) -> Conditions:
    """What a combination of values is like, for whatever rule.

    G^2 and B^2 are those of the mean without attack, as in a report, or else of all curves there.
    """
    attacks = [a for c in cells.contenders for a in cells.cell(c, place).attacks]
    upper = {curve.key: curve for attacked in attacks for curve in attacked.upper.values()}
    curves = {curve.key: curve for attacked in attacks for curve in attacked.curves.values()}
    return _conditions(curves.values(), differ=(upper or curves).values())


def conditions_of(attacked: Attacked) -> Conditions:
    """What one contender met under one attack."""
    curves = attacked.curves.values()
    return _conditions(curves, differ=curves)


def _conditions(curves: Iterable[StoredCurve], *, differ: Iterable[StoredCurve]) -> Conditions:
    found = list(curves)
    fits = [fit for curve in differ if (fit := dissimilarity_of(curve)) is not None]
    # Rules are compared on the same workers, so any curve of a seed tells of all.
    seeds = {seed: shares for curve in found for seed, shares in judges_in(curve.about).items()}
    needed = [n for curve in found if (n := coverage_needed(curve.about.get("config", {})))]
    by_class = zip(*seeds.values(), strict=True) if len({*map(len, seeds.values())}) == 1 else ()
    return Conditions(
        fmean(fit.g2 for fit in fits) if fits else None,
        fmean(fit.b2 for fit in fits) if fits else None,
        tuple(fmean(shares) for shares in by_class),
        max(needed, default=None),
        _drawn(found, "proposers"),
        _drawn(found, "voters"),
    )


def dissimilarity_of(curve: StoredCurve) -> DissimilarityFit | None:
    """G^2 and B^2 of a curve; its measured rounds hold what they come from."""
    return measured_of(curve.rows)[0]


def _drawn(curves: Sequence[StoredCurve], who: str) -> LiarsDrawn | None:
    """The liars drawn, over the seeds: of each the curve that went on longest."""
    seeds: dict[int, tuple[int, LiarsDrawn]] = {}
    for curve in curves:
        told = _read_drawn(curve.about.get("liars_drawn"), who)
        seed = curve.rows[0].get("seed")
        if told is not None and isinstance(seed, int):
            seeds[seed] = max(seeds.get(seed, (0, told)), (curve.rounds, told), key=lambda p: p[0])
    all_drawn = [told for _, told in seeds.values()]
    if not all_drawn:
        return None
    return LiarsDrawn(
        mean=fmean(one.mean for one in all_drawn),
        largest=max(one.largest for one in all_drawn),
        majority=fmean(one.majority for one in all_drawn),
    )


def _read_drawn(told: Any, who: str) -> LiarsDrawn | None:
    found = told.get(who) if isinstance(told, Mapping) else None
    if not isinstance(found, Mapping):
        return None
    match (found.get("mean"), found.get("largest"), found.get("majority")):
        case (int() | float() as mean, int() as largest, int() | float() as majority):
            return LiarsDrawn(float(mean), largest, float(majority))
    return None
