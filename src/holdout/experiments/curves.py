"""Rounds grouped into curves, and the table of where each curve ends: numbers only, no drawing.

A curve is one rule under one attack, with one strand of rounds for each seed.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from holdout.curve_rows import BASELINE, INITIAL, MEASURED, MOVED, NO_ATTACK
from holdout.rules import find_rule
from holdout.voting import VOTES

Round = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Series:
    """A quantity over the rounds: mean, lowest and highest of the seeds that have it."""

    rounds: tuple[int, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class CurveResult:
    """One rule under one attack."""

    rule: str
    attack: str
    label: str
    seeds: Mapping[int, Sequence[Round]]

    @property
    def is_baseline(self) -> bool:
        """Whether this is the unattacked average, the upper bound."""
        return (self.rule, self.attack) == BASELINE

    @property
    def rounds(self) -> list[Round]:
        """The rounds of all seeds."""
        return [line for lines in self.seeds.values() for line in lines]

    @property
    def diverged(self) -> int:
        """How many seeds ended in numbers that are not finite."""
        return sum(lines[-1].get("outcome") == "diverged" for lines in self.seeds.values())

    def line(self, key: str, *, scale: float = 1.0) -> Series:
        """What the rounds hold under a key, over the seeds; rounds without it are left out.

        What was measured before the first step is round 0.
        """
        found: dict[int, list[float]] = {}
        for record in self.rounds:
            initial = record.get(INITIAL) if key in MEASURED else None
            if initial is not None and (value := _finite(initial.get(key))) is not None:
                found.setdefault(0, []).append(scale * value)
            if (value := _finite(record.get(key))) is not None:
                found.setdefault(record["round"], []).append(scale * value)
        rounds = sorted(found)
        return Series(
            tuple(rounds),
            tuple(fmean(found[r]) for r in rounds),
            tuple(min(found[r]) for r in rounds),
            tuple(max(found[r]) for r in rounds),
        )


@dataclass(frozen=True, slots=True)
class TableRow:
    """Where a curve ends. Accuracy and spread are shares of 1; the drop is in points of 100.

    Example:
        >>> import holdout
        >>> row = holdout.TableRow("Krum", "krum", "alie", 1, 0.25, None, 64.0, 3.5, 0.0, 0)
        >>> row.cells()
        ('Krum', '', '25.0 %', '64.0 points')
    """

    label: str
    """What people call the curve."""
    rule: str
    """The rule's name in the config."""
    attack: str
    """The attack's name in the config."""
    seeds: int
    """How many seeds it has."""
    accuracy: float | None
    """The mean over the seeds of the last accuracy measured."""
    spread: float | None
    """The standard deviation over the seeds; none for a single one."""
    drop: float | None
    """Points below the unattacked mean; none where there is no such curve."""
    byzantine_accepted_per_round: float | None
    """None for a rule that does not say whom it selects."""
    empty_rounds: float
    """Rounds without a step, per seed."""
    diverged: int
    """Seeds that ended in numbers that are not finite."""

    def cells(self) -> tuple[str, str, str, str]:
        """What a table for people says: rule, without attack, under attack, drop."""
        accuracy = self.accuracy_text()
        if self.attack == NO_ATTACK:
            return self.label, accuracy, "", ""
        drop = "" if self.drop is None else f"{self.drop:.1f} points"
        return self.label, "", accuracy, drop

    def accuracy_text(self) -> str:
        """Mean, spread and whether a seed diverged, such as "88.0 % ± 0.4"."""
        if self.accuracy is None:
            return "-"
        spread = "" if self.spread is None else f" ± {100 * self.spread:.1f}"
        return f"{100 * self.accuracy:.1f} %{spread}{' (diverged)' * bool(self.diverged)}"


def group(rounds: Iterable[Round]) -> list[CurveResult]:
    """The curves, the unattacked mean first, then in the order of the rounds."""
    found: dict[tuple[str, str], dict[int, list[Round]]] = {}
    for record in rounds:
        seeds = found.setdefault((record["rule"], record["attack"]), {})
        seeds.setdefault(record["seed"], []).append(record)
    several = len({attack for _, attack in found} - {NO_ATTACK}) > 1
    return [
        CurveResult(rule, attack, label(rule, attack, name_attack=several), found[rule, attack])
        for rule, attack in sorted(found, key=lambda key: key != BASELINE)
    ]


def name_of(rule: str) -> str:
    """A rule's name for people; a custom rule is called what the config calls it.

    >>> name_of("trimmed-mean"), name_of("nnm+krum"), name_of("holdout"), name_of("nnm+mine")
    ('trimmed mean', 'NNM + Krum', 'HoldOut', 'nnm+mine')
    """
    if rule in VOTES:
        return VOTES[rule].label
    known = find_rule(rule)
    return rule if known is None else known.label


def label(rule: str, attack: str, *, name_attack: bool = False) -> str:
    """A curve's name for people.

    >>> label("krum", "alie"), label("mean", "none"), label("krum", "alie", name_attack=True)
    ('Krum', 'mean, no attack', 'Krum, alie')
    """
    name = name_of(rule)
    if attack == NO_ATTACK:
        return f"{name}, no attack"
    return f"{name}, {attack}" if name_attack else name


def final_table(rounds: Iterable[Round]) -> list[TableRow]:
    """Where each curve ends, in the order of `group`."""
    curves = group(rounds)
    ends = [_final_accuracies(curve) for curve in curves]
    upper = next(
        (fmean(e) for curve, e in zip(curves, ends, strict=True) if curve.is_baseline and e), None
    )
    return [_row(curve, end, upper) for curve, end in zip(curves, ends, strict=True)]


def _row(curve: CurveResult, ends: Sequence[float], upper: float | None) -> TableRow:
    accuracy = fmean(ends) if ends else None
    lines = curve.rounds
    accepted = [
        value for line in lines if (value := _finite(line.get("byzantine_selected"))) is not None
    ]
    empty = sum(line.get("outcome", "step") not in MOVED for line in lines)
    return TableRow(
        label=curve.label,
        rule=curve.rule,
        attack=curve.attack,
        seeds=len(curve.seeds),
        accuracy=accuracy,
        spread=stdev(ends) if len(ends) > 1 else None,
        drop=None if accuracy is None or upper is None else 100 * (upper - accuracy),
        byzantine_accepted_per_round=fmean(accepted) if accepted else None,
        empty_rounds=empty / len(curve.seeds),
        diverged=curve.diverged,
    )


def _final_accuracies(curve: CurveResult) -> list[float]:
    """The last accuracy measured, of each seed that has one."""
    strands = (
        [value for line in lines if (value := _finite(line.get("accuracy"))) is not None]
        for lines in curve.seeds.values()
    )
    return [strand[-1] for strand in strands if strand]


def _finite(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
