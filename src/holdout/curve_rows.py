"""Rows of results and the curves they belong to: what `summary.json` holds of them.

A curve is a rule under an attack with a seed.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from holdout.metrics import metric_of

# The outcomes of rounds that moved the model or ended the curve; every other round is empty.
MOVED = frozenset({"step", "diverged"})
SCHEMA = 1
"""The version of `summary.json` and of checkpoints."""


def summarise(
    rounds: Sequence[Mapping[str, Any]],
    *,
    config: Mapping[str, Any],
    environment: Mapping[str, Any],
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """What `summary.json` holds: one entry a curve, in the order of the rounds."""
    curves: dict[tuple[str, str, int], list[Mapping[str, Any]]] = {}
    for record in rounds:
        curves.setdefault((record["rule"], record["attack"], record["seed"]), []).append(record)
    return {
        "schema": SCHEMA,
        "config": config,
        "environment": environment,
        "curves": [_summarise_curve(key, lines) for key, lines in curves.items()],
        "notes": list(notes),
    }


def count_errors(rounds: Sequence[Mapping[str, Any]]) -> int:
    """How often custom workers raised."""
    return sum(sum(record.get("custom_errors", {}).values()) for record in rounds)


def _summarise_curve(
    key: tuple[str, str, int], lines: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    rule, attack, seed = key
    metric = metric_of(lines)
    values = [line[metric.key] for line in lines if line.get(metric.key) is not None]
    successes = [line["attack_success"] for line in lines if line.get("attack_success") is not None]
    return {
        "rule": rule,
        "attack": attack,
        "seed": seed,
        "rounds": len(lines),
        f"final_{metric.key}": values[-1] if values else None,
        f"best_{metric.key}": max(values, default=None),
        **({"final_attack_success": successes[-1]} if successes else {}),
        "outcome": "diverged" if lines[-1]["outcome"] == "diverged" else "completed",
        "empty_rounds": sum(line["outcome"] not in MOVED for line in lines),
        "seconds": round(sum(line["seconds"] for line in lines), 3),
    }
