"""The same rules in ByzFL and Flower, as their users call them.

Both are there in the environment that `make bench` makes for itself: ByzFL without what it depends
on (see `stand_ins`).
"""

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from holdout import rules

ROWS = 30
F = 9
"""Byzantine rows that rules are told of; Bulyan, which needs n >= 4f + 3, is told of 6."""
F_BULYAN = 6

Action = Callable[[Tensor], Any]


def available() -> bool:
    """Whether ByzFL is here: only in the benchmark's own environment."""
    return importlib.util.find_spec("byzfl") is not None


def _byzfl(name: str, **options: Any) -> Action:
    def run(updates: Tensor) -> Any:
        return getattr(importlib.import_module("byzfl"), name)(**options)(updates)

    return run


def _flower(name: str, *arguments: Any, **options: Any) -> Action:
    def run(updates: Tensor) -> Tensor:
        module = importlib.import_module("flwr.server.strategy.aggregate")
        results = [([row], 1) for row in updates.numpy()]
        return torch.from_numpy(getattr(module, name)(results, *arguments, **options)[0])

    return run


def _flower_bulyan(updates: Tensor) -> Any:
    module = importlib.import_module("flwr.server.strategy.aggregate")
    return _flower("aggregate_bulyan", F_BULYAN, module.aggregate_krum, to_keep=0)(updates)


RULES: Mapping[str, Mapping[str, Action]] = MappingProxyType(
    {
        "krum": {
            "ours": lambda updates: rules.krum(updates, f=F),
            "ByzFL": _byzfl("Krum", f=F),
            "Flower": _flower("aggregate_krum", F, 0),
        },
        "multi-krum": {
            "ours": lambda updates: rules.multi_krum(updates, f=F),
            "ByzFL": _byzfl("MultiKrum", f=F),
            "Flower": _flower("aggregate_krum", F, ROWS - F),
        },
        "trimmed-mean": {
            "ours": lambda updates: rules.trimmed_mean(updates, f=F),
            "ByzFL": _byzfl("TrMean", f=F),
            "Flower": _flower("aggregate_trimmed_avg", (F + 0.5) / ROWS),
        },
        "median": {
            "ours": lambda updates: rules.median(updates, f=F),
            "ByzFL": _byzfl("Median"),
            "Flower": _flower("aggregate_median"),
        },
        "geometric-median": {
            "ours": lambda updates: rules.geometric_median(updates, f=F),
            "ByzFL": _byzfl("GeometricMedian"),
        },
        "bulyan": {
            "ours": lambda updates: rules.bulyan(updates, f=F_BULYAN),
            "Flower": _flower_bulyan,
        },
    }
)

TARGETS: Mapping[str, float] = MappingProxyType(
    {
        "krum": 3.0,
        "multi-krum": 3.0,
        "trimmed-mean": 5.0,
        "median": 5.0,
        "geometric-median": 1.5,
        "bulyan": 1.5,
    }
)

DIFFERENCES = frozenset(
    {
        ("krum", "ByzFL"),
        ("multi-krum", "ByzFL"),
        ("geometric-median", "ByzFL"),
        ("bulyan", "Flower"),
    }
)
"""Rules whose results need not agree; docs/benchmarks.md says why."""
