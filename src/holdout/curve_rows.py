"""Rows of results and the curves they belong to: names for files, the config's order, round 0.

A curve is a rule under an attack with a seed. The lines of `results.jsonl` are in the order in
which they were written; a run that was extended has the later rounds of a curve, or a rule that
came later, further down. Whoever reads a run sees its rows in the order of the config.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

from holdout.heterogeneity import as_fields
from holdout.metrics import ATTACK_SUCCESS, INITIAL, MEASURED, metric_of

NO_ATTACK = "none"
BASELINE = ("mean", NO_ATTACK)
FILE_NAME_CHARACTERS_MAX = 180

# The outcomes of rounds that moved the model or ended the curve; every other round is empty.
MOVED = frozenset({"step", "diverged"})
SCHEMA = 1
"""The version of `summary.json`."""


class CurveKey(NamedTuple):
    """What identifies a curve within its run."""

    rule: str
    attack: str
    seed: int

    def file_name(self, round_number: int | None = None) -> str:
        """The name of this curve's files, before the dot.

        >>> CurveKey("nnm+krum", "alie", 3).file_name()
        'nnm+krum-alie-seed-3'
        >>> CurveKey("my.rules:trim", "none", 0).file_name(50)
        'my.rules%3Atrim-none-seed-0-round-000050'
        """
        names = "-".join(
            quote(name, safe="+", errors="surrogatepass") for name in (self.rule, self.attack)
        )
        if len(names) > FILE_NAME_CHARACTERS_MAX:
            digest = hashlib.sha256(names.encode()).hexdigest()[:16]
            names = f"{names[: FILE_NAME_CHARACTERS_MAX - 20]}-{digest}"
        number = "" if round_number is None else f"-round-{round_number:06}"
        return f"{names}-seed-{self.seed}{number}"

    def __str__(self) -> str:
        return f"{self.rule} ({self.attack}, seed {self.seed})"


def key_of(row: Mapping[str, Any]) -> CurveKey:
    """The curve that a row belongs to."""
    return CurveKey(row["rule"], row["attack"], row["seed"])


def planned_rules(config: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What a config compares: rules, each with its attack, in the order in which they are run.

    >>> planned_rules({"experiment": {"rules": ["krum"], "baseline": True},
    ...                "attack": {"name": "alie"}})
    [('mean', 'none'), ('krum', 'alie')]
    """
    experiment = _section(config, "experiment")
    attack = _section(config, "attack").get("name", NO_ATTACK)
    planned = [(rule, attack) for rule in _list(experiment, "rules")]
    is_added = experiment.get("baseline") and BASELINE not in planned
    return [BASELINE, *planned] if is_added else planned


def planned_curves(config: Mapping[str, Any]) -> list[CurveKey]:
    """The curves of a config, seed by seed, in the order in which they are run."""
    seeds, planned = _list(_section(config, "experiment"), "seeds"), planned_rules(config)
    return [CurveKey(*names, seed) for seed in seeds for names in planned]


def in_order(
    rows: Iterable[Mapping[str, Any]], config: Mapping[str, Any]
) -> list[Mapping[str, Any]]:
    """The rows curve by curve, in the config's order; others follow as they come."""
    places = {json.dumps(key): place for place, key in enumerate(planned_curves(config))}

    def place(row: Mapping[str, Any]) -> int:
        named = [row.get("rule"), row.get("attack"), row.get("seed")]
        return places.setdefault(json.dumps(named), len(places))

    return sorted(rows, key=place)


def with_round_zero(rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The rows with one more before each curve's first: round 0, in which nobody acts."""
    found: list[Mapping[str, Any]] = []
    for row in rows:
        measured = row.get(INITIAL)
        if isinstance(measured, Mapping):
            found.append(_round_zero(row, measured))
        found.append({key: value for key, value in row.items() if key != INITIAL})
    return found


def _round_zero(row: Mapping[str, Any], measured: Mapping[str, Any]) -> dict[str, Any]:
    """A row like the first one, of nothing but what was measured."""
    kept = {key: row[key] for key in ("rule", "attack", "seed")}
    empty = {key: _nothing_like(key, value) for key, value in row.items() if key != INITIAL}
    return {
        **empty,
        **kept,
        "round": 0,
        **{key: measured.get(key) for key in MEASURED if key in measured or key in row},
        "outcome": INITIAL,
    }


def _nothing_like(key: str, value: Any) -> Any:
    """What a field holds if nobody acts; counts stay counts, so that a column keeps its type."""
    if isinstance(value, list | dict):
        return type(value)()
    return 0 if isinstance(value, int) and key.startswith("byzantine_") else None


def summarise(
    rounds: Sequence[Mapping[str, Any]],
    *,
    config: Mapping[str, Any],
    environment: Mapping[str, Any],
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """What `summary.json` holds: one entry per curve, in the order of the rounds."""
    curves: dict[CurveKey, list[Mapping[str, Any]]] = {}
    for record in rounds:
        curves.setdefault(key_of(record), []).append(record)
    return {
        "schema": SCHEMA,
        "config": config,
        "environment": environment,
        "curves": [_summarise_curve(key, lines) for key, lines in curves.items()],
        "notes": list(notes),
    }


def count_errors(rounds: Sequence[Mapping[str, Any]]) -> int:
    """How often custom code raised."""
    return sum(sum(record.get("custom_errors", {}).values()) for record in rounds)


def _summarise_curve(key: CurveKey, lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    metric = metric_of(lines)
    values = [line[metric.key] for line in lines if line.get(metric.key) is not None]
    success = ATTACK_SUCCESS.key
    successes = [line[success] for line in lines if line.get(success) is not None]
    return {
        **key._asdict(),
        "rounds": len(lines),
        f"final_{metric.key}": values[-1] if values else None,
        f"best_{metric.key}": max(values, default=None),
        **({f"final_{success}": successes[-1]} if successes else {}),
        "outcome": "diverged" if lines[-1]["outcome"] == "diverged" else "completed",
        "empty_rounds": sum(line["outcome"] not in MOVED for line in lines),
        **as_fields(lines),
        "seconds": round(sum(line["seconds"] for line in lines), 3),
    }


def judges_in(summary: Mapping[str, Any]) -> dict[int, tuple[float, ...]]:
    """Who can judge which class, by seed, from a summary; damaged entries are left out.

    >>> judges_in({"judges": {"rows_needed": 10, "shares": {"0": [1.0, 0.25], "1": "no"}}})
    {0: (1.0, 0.25)}
    """
    shares = _section(_section(summary, "judges"), "shares")
    return {
        int(seed): tuple(float(share) for share in found)
        for seed, found in shares.items()
        if seed.isdecimal() and isinstance(found, list | tuple) and all(map(_is_share, found))
    }


def _is_share(value: object) -> bool:
    return isinstance(value, int | float) and 0 <= value <= 1


def _section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = config.get(name)
    return section if isinstance(section, Mapping) else {}


def _list(section: Mapping[str, Any], key: str) -> Sequence[Any]:
    value = section.get(key)
    return value if isinstance(value, list) else []
