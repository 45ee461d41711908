"""Hyper-parameters by max-min: those whose worst attack does least harm, on seeds of their own.

They are selected for each rule and cell, and for the mean without attack. A rule's reported seeds
have no part in it, so that nothing looks better than it is.
"""

from collections.abc import Callable
from statistics import fmean

from holdout.sweeps.cells import full_point
from holdout.sweeps.curve_store import CurveStore
from holdout.sweeps.grid import Contender, Point
from holdout.sweeps.planning import SweepPlan, WantedCurve


def choose(plan: SweepPlan, store: CurveStore) -> dict[tuple[str, Point], Point]:
    """What is selected for each contender and cell; nothing where a curve is missing."""
    file = plan.file
    if not file.chosen:
        return {}
    found: dict[tuple[str, Point], Point] = {}
    for contender in plan.contenders:
        for place in file.over(file.cell_axes):
            score = _scorer(plan, store, contender, place)
            option = best_option(file.over(file.chosen), file.over(file.worst), score)
            if option is not None:
                found[contender.label, place] = option
    return found


def best_option(
    options: list[Point], lies: list[Point], score: Callable[[Point, Point], float | None]
) -> Point | None:
    """The option whose lowest score is highest; the first of several, none if none has scores.

    Example:
        >>> table = {((0,), (0,)): 0.9, ((0,), (1,)): 0.1, ((1,), (0,)): 0.6, ((1,), (1,)): 0.5}
        >>> best_option([(0,), (1,)], [(0,), (1,)], lambda option, lie: table[option, lie])
        (1,)
    """
    worst: dict[Point, float] = {}
    for option in options:
        scores = [score(option, lie) for lie in lies]
        known = [value for value in scores if value is not None]
        if len(known) == len(scores):
            worst[option] = min(known)
    return max(worst, key=lambda option: worst[option], default=None)


def _scorer(
    plan: SweepPlan, store: CurveStore, contender: Contender, place: Point
) -> Callable[[Point, Point], float | None]:
    """Means over the seeds for selecting; None if a curve cannot be or is missing."""
    file = plan.file

    def score(option: Point, lie: Point) -> float | None:
        point = full_point(file, place, lie, option)
        values = []
        for seed in file.settings.select_seeds:
            wanted = plan.find(contender, point, seed)
            curve = store.read(wanted.key) if isinstance(wanted, WantedCurve) else None
            if curve is None:
                return None
            values.append(curve.value(file.settings.measure))
        return fmean(values)

    return score


def reported_points(
    plan: SweepPlan, choices: dict[tuple[str, Point], Point]
) -> list[tuple[Contender, Point]]:
    """The contenders and points that are reported: all, or those that were selected."""
    file = plan.file
    if not file.chosen:
        return plan.everything()
    return [
        (contender, full_point(file, place, lie, choices[contender.label, place]))
        for contender in plan.contenders
        for place in file.over(file.cell_axes)
        if (contender.label, place) in choices
        for lie in file.over(file.worst)
    ]
