"""What the script of the page draws from: the curves and the votes, compact and bounded."""

from collections.abc import Sequence
from typing import Any

from holdout.experiments.curves import CurveResult, Round, Series
from holdout.experiments.figures import looks
from holdout.results import ROUNDS

# Bounds on what goes into the page; more is thinned evenly, and the page says so.
POINTS_MAX = 1000
VOTE_CHARACTERS_MAX = 4_000_000


def chart_lines(curves: Sequence[CurveResult]) -> list[dict[str, Any]]:
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
            "accuracy": _points(curve.line("accuracy", scale=100.0)),
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
        "mean": [round(line.mean[i], 4) for i in kept],
        "low": [round(line.low[i], 4) for i in kept],
        "high": [round(line.high[i], 4) for i in kept],
    }


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
