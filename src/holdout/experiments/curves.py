"""Rounds grouped into curves, and the table of where each curve ends: numbers only, no drawing.

A curve is one rule under one attack, with one strand of rounds for each seed.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from holdout.curve_rows import BASELINE, MOVED, NO_ATTACK
from holdout.metrics import ACCURACY, INITIAL, MAE, MEASURED, Metric, metric_of
from holdout.rules import find_rule
from holdout.voting import VOTES

Round = Mapping[str, Any]

MISSING_MAX = 0.1
"""The share of honest proposals of which more may not be missing without a word in the table."""


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

    @property
    def honest_missing(self) -> float:
        """The share of the honest proposals that are missing."""
        return _missing_share(self.rounds)

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

    A regression has an R2 in place of the accuracy; spread and drop are then differences of R2.

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
    """The mean over the seeds of the last accuracy measured; none in a regression."""
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
    honest_missing: float = 0.0
    """The share of the honest proposals that never arrived, since custom code failed."""
    metric: Metric = ACCURACY
    """What curves are compared by: accuracy or R2."""
    r2: float | None = None
    """The mean over the seeds of the last R2 measured; none in a classification."""
    mae: float | None = None
    """The same of the mean absolute error."""
    attack_success: float | None = None
    """Of triggered test rows, the share that is misread as the attack wants it: the mean over the
    seeds where it was last measured; none for attacks without a trigger."""

    @property
    def measured(self) -> float | None:
        """The accuracy, or the R2 of a regression."""
        return self.accuracy if self.metric is ACCURACY else self.r2

    def cells(self) -> tuple[str, str, str, str]:
        """What a table for people says: rule, without attack, under attack, drop."""
        measured = self.measured_text()
        if self.attack == NO_ATTACK:
            return self.label, measured, "", ""
        drop = "" if self.drop is None else self.metric.difference(self.drop)
        return self.label, "", measured, drop

    def measured_text(self) -> str:
        """Mean, spread and what went wrong, such as "88.0 % ± 0.4 (diverged)"."""
        wrong = " (diverged)" * bool(self.diverged) + self.missing_text()
        if self.measured is None:
            return f"-{wrong}"
        spread = "" if self.spread is None else f" ± {self.metric.number(self.spread)}"
        error = "" if self.mae is None else f" (MAE {self.mae:.3g})"
        return f"{self.metric.text(self.measured)}{spread}{error}{wrong}"

    def missing_text(self) -> str:
        """The share of honest proposals that are missing; nothing if it is a tenth or less."""
        if self.honest_missing <= MISSING_MAX:
            return ""
        # Rounded down: only where all are missing it says so.
        return f" ({math.floor(100 * self.honest_missing)} % missing)"

    def success_text(self) -> str:
        """How often the attack succeeds, such as "97.1 %"."""
        return "-" if self.attack_success is None else f"{100 * self.attack_success:.1f} %"


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


def measures_success(curves: Iterable[CurveResult]) -> bool:
    """Whether the success of an attack was measured in any round."""
    return any(curve.line("attack_success").rounds for curve in curves)


def has_success(rows: Iterable[TableRow]) -> bool:
    """Whether a table needs a column for how often the attack succeeds."""
    return any(row.attack_success is not None for row in rows)


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
    metric = metric_of(line for curve in curves for line in curve.rounds)
    ends = [_last_measured(curve, metric.key) for curve in curves]
    upper = next(
        (fmean(e) for curve, e in zip(curves, ends, strict=True) if curve.is_baseline and e), None
    )
    return [_row(curve, metric, end, upper) for curve, end in zip(curves, ends, strict=True)]


def _row(
    curve: CurveResult, metric: Metric, ends: Sequence[float], upper: float | None
) -> TableRow:
    measured = fmean(ends) if ends else None
    errors = _last_measured(curve, MAE.key)
    successes = _last_measured(curve, "attack_success")
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
        accuracy=measured if metric is ACCURACY else None,
        spread=stdev(ends) if len(ends) > 1 else None,
        drop=None if measured is None or upper is None else metric.scale * (upper - measured),
        byzantine_accepted_per_round=fmean(accepted) if accepted else None,
        empty_rounds=empty / len(curve.seeds),
        diverged=curve.diverged,
        metric=metric,
        r2=None if metric is ACCURACY else measured,
        mae=fmean(errors) if errors else None,
        honest_missing=curve.honest_missing,
        attack_success=fmean(successes) if successes else None,
    )


def _missing_share(lines: Sequence[Round]) -> float:
    missing = sum(line.get("honest_missing") or 0 for line in lines)
    if not missing:
        return 0.0
    drawn = sum(len(line["proposers"]) - (line["byzantine_proposers"] or 0) for line in lines)
    return float(missing / drawn)


def _last_measured(curve: CurveResult, key: str) -> list[float]:
    """The last number measured under a key, of each seed that has one."""
    strands = (
        [value for line in lines if (value := _finite(line.get(key))) is not None]
        for lines in curve.seeds.values()
    )
    return [strand[-1] for strand in strands if strand]


def _finite(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
