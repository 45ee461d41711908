"""What the script of the report draws from: charts and votes, compact and bounded."""

import html
import json
from collections.abc import Mapping, Sequence
from typing import Any

from holdout.experiments.curves import CurveResult, Round, Series, measures_success
from holdout.experiments.figures import looks
from holdout.metrics import (
    ACCURACY,
    ATTACK_SUCCESS,
    LOSS,
    MAE,
    WORST_CLASS_RECALL,
    Metric,
    metric_of,
)
from holdout.results import ROUNDS

# Bounds on what goes into the page; more is thinned evenly, and the page says so.
POINTS_MAX = 1000
VOTE_CHARACTERS_MAX = 4_000_000

MAIN = "accuracy"
"""The chart and picture of what curves are compared by, also where that is R2."""
SUCCESS = "attack_success"
TITLES = {SUCCESS: "Success of the attack on triggered rows"}
HEIGHT, HEIGHT_OF_MAIN = 300, 430


def charts_of(curves: Sequence[CurveResult]) -> dict[str, Metric]:
    """What is drawn over the rounds, by the name of its picture; the main chart first."""
    metric = metric_of(line for curve in curves for line in curve.rounds)
    others = [WORST_CLASS_RECALL if metric is ACCURACY else MAE, LOSS]
    if measures_success(curves):
        others.insert(0, ATTACK_SUCCESS)
    return {MAIN: metric, **{other.key: other for other in others}}


def chart_html(charts: Mapping[str, Metric]) -> str:
    """The places of the charts, each with its heading."""
    found = []
    for name, metric in charts.items():
        title = TITLES.get(name, metric.title.capitalize() or f"Test {metric.name}")
        found.append(f'<h3>{html.escape(title)}</h3>\n  <div class="chart" id="{_id(name)}"></div>')
        if name == MAIN:
            found.append('<p class="aside">Round 0 is the model before the first step.</p>')
    return "\n  ".join(found)


def chart_script(charts: Mapping[str, Metric]) -> str:
    """The calls that draw the charts."""
    calls = []
    for name, metric in charts.items():
        height = HEIGHT_OF_MAIN if name == MAIN else HEIGHT
        powers = "true" if metric.highest is None else "false"
        words = [json.dumps(word) for word in (_id(name), metric.axis, metric.hover)]
        calls.append(f"chart({words[0]}, {words[1]}, {height}, true, {words[2]}, {powers});")
    return "\n".join(calls)


def _id(name: str) -> str:
    """What a chart is called in the page."""
    return "success" if name == SUCCESS else name


def chart_data(curves: Sequence[CurveResult], charts: Mapping[str, Metric]) -> list[dict[str, Any]]:
    """What the charts draw: each curve's look, and its quantities over the rounds."""
    return [
        {
            "label": curve.label,
            "seeds": len(curve.seeds),
            "last": max(line["round"] for line in curve.rounds),
            "colour": look.colour,
            "dash": look.dash,
            "marker": look.marker,
            "width": look.width,
            **{
                _id(name): _points(curve.line(metric.key, scale=metric.scale))
                for name, metric in charts.items()
            },
            "accepted": _points(curve.line("byzantine_selected")),
            "gamma": _points(curve.line("gamma")),
        }
        for curve, look in zip(curves, looks(curves), strict=True)
    ]


def thinned_charts(curves: Sequence[CurveResult]) -> str:
    """What to say if points had to be left out of the charts."""
    longest = max((len(lines) for curve in curves for lines in curve.seeds.values()), default=0)
    if longest <= POINTS_MAX:
        return ""
    return f"The charts show at most {POINTS_MAX} evenly spaced points of up to {longest} rounds."


def _points(line: Series) -> dict[str, list[float]]:
    kept = _spaced(len(line.rounds), POINTS_MAX)
    return {
        "rounds": [line.rounds[i] for i in kept],
        "mean": [_short(line.mean[i]) for i in kept],
        "low": [_short(line.low[i]) for i in kept],
        "high": [_short(line.high[i]) for i in kept],
    }


def _short(value: float) -> float:
    """As many digits as a chart can show, also of what is far below 1.

    >>> _short(12.345678), _short(0.0000123456)
    (12.3457, 1.235e-05)
    """
    return round(value, 4) if abs(value) >= 1 else float(f"{value:.4g}")


def votes(curves: Sequence[CurveResult]) -> tuple[list[dict[str, Any]], str]:
    """The ballots of every strand that has some, and what to say if rounds had to be left out."""
    strands = [
        (place, seed, voted)
        for place, curve in enumerate(curves)
        for seed, lines in curve.seeds.items()
        if (voted := [line for line in lines if line.get("ballots") is not None])
    ]
    size = max((_vote_size(line) for _, _, lines in strands for line in lines), default=1)
    rounds_max = max(1, VOTE_CHARACTERS_MAX // (size * max(1, len(strands))))
    longest = max((len(lines) for _, _, lines in strands), default=0)
    shown = [
        {
            "curve": place,
            "seed": seed,
            "rounds": [_vote(lines[i]) for i in _spaced(len(lines), rounds_max)],
        }
        for place, seed, lines in strands
    ]
    if longest <= rounds_max:
        return shown, ""
    return shown, (
        f"To keep this page small, {rounds_max} evenly spaced rounds of each curve can be chosen "
        f"here, of up to {longest}; {ROUNDS} holds them all."
    )


def _vote(record: Round) -> dict[str, Any]:
    proposers, voters = record.get("proposers") or [], record.get("voters") or []
    ballots = list(record["ballots"])[: len(voters)]
    ballots += [None] * (len(voters) - len(ballots))
    return {
        "round": record["round"],
        "proposers": proposers,
        "voters": voters,
        "byzantine": record.get("byzantine_workers") or [],
        "ballots": [None if b is None else _bits(b, len(proposers)) for b in ballots],
        "selection": record.get("selection") or [],
        "quorum": record.get("quorum"),
        "outcome": record["outcome"],
    }


def _vote_size(record: Round) -> int:
    """About how many characters a round's votes take on the page."""
    proposers, voters = len(record.get("proposers") or []), len(record.get("voters") or [])
    return 120 + voters * (proposers // 4 + 4) + 6 * (proposers + voters)


def _bits(approved: Sequence[int], proposals: int) -> str:
    """A ballot as hexadecimal digits, four proposals each, the first in the highest bit.

    >>> _bits([0, 5], 6)
    '84'
    """
    digits = [0] * -(-proposals // 4)
    for proposal in approved:
        if 0 <= proposal < proposals:
            digits[proposal // 4] |= 8 >> proposal % 4
    return "".join(f"{digit:x}" for digit in digits)


def _spaced(length: int, count: int) -> list[int]:
    """At most `count` places out of `length`, evenly spaced, the last always among them.

    >>> _spaced(3, 5), _spaced(9, 3), _spaced(9, 1)
    ([0, 1, 2], [0, 4, 8], [8])
    """
    if length <= count:
        return list(range(length))
    if count == 1:
        return [length - 1]
    return [place * (length - 1) // (count - 1) for place in range(count)]
