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
F_SUBSETS = 2
"""Where ByzFL looks at all C(n, f) subsets: at 9 there would be 14 million."""
RADIUS = 100.0

Action = Callable[[Tensor], Any]


def available() -> bool:
    """Whether ByzFL is here: only in the benchmark's own environment."""
    return importlib.util.find_spec("byzfl") is not None


def _byzfl(name: str, **options: Any) -> Action:
    def run(updates: Tensor) -> Any:
        return getattr(importlib.import_module("byzfl"), name)(**options)(updates)

    return run


def _byzfl_on_a_copy(name: str, **options: Any) -> Action:
    """What changes its input: ours leaves it, so a copy is part of the work."""
    run = _byzfl(name, **options)
    return lambda updates: run(updates.clone())


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
        "mean-around-median": {
            "ours": lambda updates: rules.mean_around_median(updates, f=F),
            "ByzFL": _byzfl("Meamed", f=F),
        },
        "caf": {
            "ours": lambda updates: rules.caf(updates, f=F),
            "ByzFL": _byzfl("CAF", f=F),
        },
        "centered-clipping": {
            "ours": lambda updates: rules.centered_clipping(updates, f=F, radius=RADIUS),
            "ByzFL": _byzfl("CenteredClipping", tau=RADIUS),
        },
        "mda": {
            "ours": lambda updates: rules.mda(updates, f=F_SUBSETS),
            "ByzFL": _byzfl("MDA", f=F_SUBSETS),
        },
        "smea": {
            "ours": lambda updates: rules.smea(updates, f=F_SUBSETS),
            "ByzFL": _byzfl("SMEA", f=F_SUBSETS),
        },
        "monna": {
            "ours": lambda updates: rules.monna(updates, f=F, pivot=0),
            "ByzFL": _byzfl("MoNNA", f=F, idx=0),
        },
        "dnc": {"ours": lambda updates: rules.dnc(updates, f=F)},
        "norm-bound-mean": {"ours": lambda updates: rules.norm_bound_mean(updates, f=F)},
        "signguard": {"ours": lambda updates: rules.signguard(updates, f=F)},
        "nnm": {
            "ours": lambda updates: rules.nnm(updates, f=F),
            "ByzFL": _byzfl("NNM", f=F),
        },
        "bucketing": {
            "ours": lambda updates: rules.bucketing(updates, f=F),
            "ByzFL": _byzfl("Bucketing", s=2),
        },
        "clipping": {
            "ours": lambda updates: rules.clipping(updates, f=F),
            "ByzFL": _byzfl_on_a_copy("Clipping", c=2.0),
        },
        "arc": {
            "ours": lambda updates: rules.arc(updates, f=F),
            "ByzFL": _byzfl_on_a_copy("ARC", f=F),
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
"""Where nothing stands here: never slower."""

TARGETS_LARGE: Mapping[str, float] = MappingProxyType({"nnm": 3.0, "caf": 3.0})
"""Other targets where there are millions of coordinates."""

DIFFERENCES = frozenset(
    {
        ("krum", "ByzFL"),
        ("multi-krum", "ByzFL"),
        ("geometric-median", "ByzFL"),
        ("bulyan", "Flower"),
        ("mean-around-median", "ByzFL"),
        ("caf", "ByzFL"),
        ("mda", "ByzFL"),
        ("smea", "ByzFL"),
        ("bucketing", "ByzFL"),
        ("centered-clipping", "ByzFL"),
    }
)
"""Rules whose results need not agree; docs/benchmarks.md says why."""
