"""What a run shows, in plain words: the result in a sentence, and what is missing from it."""

from collections.abc import Mapping, Sequence
from typing import Any

from holdout.experiments.curves import (
    BASELINE,
    NO_ATTACK,
    CurveResult,
    Round,
    TableRow,
    label,
    name_of,
)
from holdout.metrics import ACCURACY, metric_of
from holdout.shares import byzantine_count, read_share
from holdout.voting import VOTES

OTHERS = 2  # The prominence of rules that are not votes.


def headline(rows: Sequence[TableRow], config: Mapping[str, Any], *, complete: bool) -> str:
    """One sentence for each attack: where HoldOut stands, how far below the unattacked mean."""
    found = [row for row in rows if row.measured is not None]
    if not found:
        return "No round was evaluated yet: there is no result to state."
    attacks = list(dict.fromkeys(row.attack for row in found if row.attack != NO_ATTACK))
    sentences = [
        _sentence(
            [row for row in found if row.attack == attack],
            f"Under {attack}{_liars(config)}",
            complete=complete,
        )
        for attack in attacks
    ]
    return " ".join(sentences) or _sentence(found, "Without attack", complete=complete)


def unfinished(curves: Sequence[CurveResult], config: Mapping[str, Any]) -> list[str]:
    """What the config asks for and the rounds do not hold, a sentence for each curve."""
    if not curves:
        return ["The run holds no rounds yet."]
    found = {(c.rule, c.attack, seed): lines for c in curves for seed, lines in c.seeds.items()}
    experiment = _section(config, "experiment")
    rounds, seeds = experiment.get("rounds"), _list(experiment, "seeds")
    several = len({curve.attack for curve in curves} - {NO_ATTACK}) > 1
    sentences = []
    for rule, attack in _planned(config):
        absent = [seed for seed in seeds if (rule, attack, seed) not in found]
        said = [] if absent != seeds else ["has not begun"]
        for seed in seeds if not said else []:
            lines = found.get((rule, attack, seed))
            if lines is None:
                said.append(f"seed {seed} has not begun")
            elif isinstance(rounds, int) and not _is_over(lines, rounds):
                said.append(f"seed {seed} has {lines[-1]['round']} of {rounds} rounds")
        if said:
            sentences.append(f"{label(rule, attack, name_attack=several)}: {', '.join(said)}.")
    return sentences


def cautions(curves: Sequence[CurveResult]) -> list[str]:
    """What a reader of the numbers must know: no upper bound, diverged curves."""
    found = []
    if curves and not any(curve.is_baseline for curve in curves):
        found.append("There is no curve of the mean without attack: no drop can be stated.")
    for curve in curves:
        found.extend(
            f"{curve.label}, seed {seed}: diverged in round {lines[-1]['round']}; "
            f"the {metric_of(curve.rounds).name} stated is the last one measured."
            for seed, lines in curve.seeds.items()
            if lines[-1].get("outcome") == "diverged"
        )
    return found


def _sentence(rows: Sequence[TableRow], opening: str, *, complete: bool) -> str:
    lead = min(rows, key=_eminence)
    verb = "ends" if complete else "stands so far"
    said = f"{opening}, {_name(lead)} {verb} at {_measured(lead)}{_distance(lead)}"
    others = [f"{_name(row)} at {_measured(row)}" for row in rows if row is not lead]
    return "; ".join(filter(None, [said, ", ".join(others)])) + "."


def _eminence(row: TableRow) -> tuple[int, float]:
    """The sort key that puts first what the reader came for: HoldOut, then the best."""
    prominence = VOTES[row.rule].prominence if row.rule in VOTES else OTHERS
    return prominence, -(row.measured or 0.0)


def _name(row: TableRow) -> str:
    return "the mean" if row.rule == "mean" else name_of(row.rule)


def _measured(row: TableRow) -> str:
    """What was measured, as people read it, never broken between number and sign."""
    assert row.measured is not None  # noqa: S101
    diverged = f" (diverged in {row.diverged} of {row.seeds})" if row.diverged else ""
    name = "" if row.metric is ACCURACY else f"{row.metric.name}\N{NO-BREAK SPACE}"
    return name + row.metric.text(row.measured, space="\N{NO-BREAK SPACE}") + diverged


def _distance(row: TableRow) -> str:
    if row.drop is None or (row.rule, row.attack) == BASELINE:
        return ""
    # A difference smaller than what the page prints does not count.
    if abs(row.drop) < 0.5 * 10**-row.metric.digits:
        return ", level with the mean without attack"
    side = "below" if row.drop > 0 else "above"
    return f", {row.metric.difference(abs(row.drop))} {side} the mean without attack"


def _liars(config: Mapping[str, Any]) -> str:
    federation = _section(config, "federation")
    workers, share = federation.get("workers"), federation.get("byzantine")
    if not isinstance(workers, int) or share is None:
        return ""
    try:
        count = byzantine_count(read_share(share), workers)
    except ValueError:
        return ""
    return f" with {count} of {workers} workers Byzantine"


def _is_over(lines: Sequence[Round], rounds: int) -> bool:
    return lines[-1]["round"] >= rounds or lines[-1].get("outcome") == "diverged"


def _planned(config: Mapping[str, Any]) -> list[tuple[str, str]]:
    experiment = _section(config, "experiment")
    attack = _section(config, "attack").get("name", NO_ATTACK)
    planned = [(rule, attack) for rule in _list(experiment, "rules")]
    return list(dict.fromkeys([BASELINE, *planned] if experiment.get("baseline") else planned))


def _section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = config.get(name)
    return section if isinstance(section, Mapping) else {}


def _list(section: Mapping[str, Any], key: str) -> list[Any]:
    value = section.get(key)
    return value if isinstance(value, list) else []
