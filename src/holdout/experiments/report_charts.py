"""Which quantities a report draws over the rounds, as pictures and in the page."""

from collections.abc import Sequence
from typing import Any

from holdout.experiments import charts
from holdout.experiments.charts import Quantity, line_of
from holdout.experiments.curves import CurveResult, measures_success
from holdout.experiments.figures import has_many
from holdout.metrics import (
    ACCURACY,
    ATTACK_SUCCESS,
    INITIAL,
    LOSS,
    MAE,
    R2,
    WORST_CLASS_RECALL,
    Metric,
    metric_of,
)

MAIN = "accuracy"
"""The picture of what curves are compared by, also where that is R2."""

CHARTS = (
    Quantity.of(ACCURACY, "Test accuracy"),
    Quantity.of(R2, "Test R²"),
    Quantity.of(ATTACK_SUCCESS, "Success of the attack on triggered rows"),
    Quantity.of(WORST_CLASS_RECALL, "Recall of the worst class"),
    Quantity.of(MAE, "Mean absolute error"),
    Quantity.of(LOSS, "Test loss"),
    Quantity(
        "byzantine_selected",
        "Byzantine updates accepted into the step",
        "accepted a round",
        decimals=2,
        is_level=False,
    ),
    Quantity("gamma", "Strength of the attack (gamma)", "gamma", decimals=2, is_level=False),
)
"""What is drawn over the rounds, from top to bottom."""


def pictures_of(curves: Sequence[CurveResult]) -> dict[str, Metric]:
    """What is drawn for a paper, by the name of its picture; the main one first."""
    metric = metric_of(line for curve in curves for line in curve.rounds)
    others = [WORST_CLASS_RECALL if metric is ACCURACY else MAE, LOSS]
    if measures_success(curves):
        others.insert(0, ATTACK_SUCCESS)
    return {MAIN: metric, **{other.key: other for other in others}}


def charts_of(curves: Sequence[CurveResult], metric: Metric) -> list[Quantity]:
    """The charts of a page: its metric always, others that an evaluation measures if one did."""
    return [
        chart
        for chart in CHARTS
        if chart.metric in (None, metric) or any(curve.line(chart.key).rounds for curve in curves)
    ]


def chart_lines(curves: Sequence[CurveResult], shown: Sequence[Quantity]) -> list[dict[str, Any]]:
    """What the script reads out at a round: each curve's quantities."""
    return [
        {"label": curve.label, **{chart.name: _points(chart, curve) for chart in shown}}
        for curve in curves
    ]


def _points(chart: Quantity, curve: CurveResult) -> dict[str, Any]:
    line = line_of(chart, curve)
    return {"rounds": line.rounds, "mean": [chart.text(value) for value in line.mean]}


def about_charts(curves: Sequence[CurveResult], metric: Metric) -> str:
    """What lines and bands are, and what was left out."""
    seeds = max((len(curve.seeds) for curve in curves), default=0)
    if not seeds:
        return ""
    said = "One seed."
    if seeds > 1:
        said = "Lines: mean over the seeds that reached the round; bands: lowest to highest."
    if has_many(curves):
        said += " Below each chart, every rule by itself, beside the mean without attack."
    said += " Untick a name to hide its curve."
    if any(INITIAL in line for curve in curves for line in curve.rounds):
        said += " Round 0 is the model before the first step."
    longest = max(len(lines) for curve in curves for lines in curve.seeds.values())
    if longest > charts.POINTS_MAX:
        said += (
            f" The charts show at most {charts.POINTS_MAX} evenly spaced points of up to {longest} "
            "rounds."
        )
    if any(low < metric.shown_min for curve in curves for low in curve.line(metric.key).low):
        said += f" {metric.name} below {metric.shown_min:g} is drawn at the foot of the chart."
    said += "".join(
        f" A {endless.name} above {top:.3g} is drawn at the top of its chart."
        for endless in (LOSS, MAE)
        if (top := charts.top_of(curves, endless)) is not None
    )
    return said
