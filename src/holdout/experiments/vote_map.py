"""The votes of a run as its report shows them: in numbers, and compact for the map of all."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from holdout.experiments.charts import spaced
from holdout.experiments.curves import CurveResult, Round
from holdout.results import ROUNDS

VOTE_CHARACTERS_MAX = 500_000
"""A bound on the votes in the page; more are thinned evenly, and the page says so."""


def vote_table(curves: Sequence[CurveResult]) -> tuple[list[str], list[list[str]]] | None:
    """What came of the votes over all rounds of each seed: head and body; None without votes."""
    body = []
    for curve in curves:
        for seed, lines in curve.seeds.items():
            voted = [line for line in lines if line.get("ballots") is not None]
            if not voted:
                continue
            selected = [len(line.get("selection") or []) for line in voted]
            lies = [line.get("byzantine_selected") or 0 for line in voted]
            void = sum(ballot is None for line in voted for ballot in line["ballots"])
            body.append(
                [
                    curve.label,
                    str(seed),
                    str(len(voted)),
                    f"{fmean(selected):.1f}",
                    f"{fmean(lies):.1f}",
                    str(void),
                ]
            )
    head = ["rule", "seed", "votes", "selected a round", "of them Byzantine", "void ballots"]
    return (head, body) if body else None


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
            "rounds": [_vote(lines[i]) for i in spaced(len(lines), rounds_max)],
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
