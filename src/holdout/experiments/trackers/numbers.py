"""What every tracker is told of a round, whichever package it is for."""

import math
from collections.abc import Mapping
from typing import Any

from holdout.config import Config
from holdout.curve_rows import CurveKey
from holdout.metrics import MEASURED
from holdout.rounds import RoundRecord

NUMBERS = (
    *MEASURED,
    "gamma",
    "radius",
    "byzantine_proposers",
    "byzantine_voters",
    "byzantine_selected",
    "seconds",
)
"""The fields of a round's line that are tracked."""


def points(record: RoundRecord) -> list[tuple[int, dict[str, float]]]:
    """Steps with the finite numbers of each: the round and, before the first, step 0."""
    steps: list[tuple[int, Mapping[str, Any]]] = []
    if record.initial is not None:
        steps.append((0, record.initial))
    steps.append((record.round, {key: getattr(record, key) for key in NUMBERS}))
    return [
        (step, {k: float(v) for k, v in values.items() if v is not None and math.isfinite(v)})
        for step, values in steps
    ]


def curve_of(record: RoundRecord) -> CurveKey:
    """The curve that a round belongs to."""
    return CurveKey(record.rule, record.attack, record.seed)


def is_last(record: RoundRecord, config: Config) -> bool:
    """Whether the curve ends with this round."""
    return record.round >= config.experiment.rounds or record.outcome == "diverged"


def flat_config(config: Config) -> dict[str, str]:
    """Every value of a config as text, by "section.key"."""
    return {
        f"{section}.{key}": str(value)
        for section, values in config.as_dict().items()
        for key, value in values.items()
    }
