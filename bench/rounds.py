"""A whole round in the paper's MNIST sizes: how much of it is the vote itself?"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from bench.measure import Row
from bench.simulated import rounds
from holdout.data.datasets import Dataset, load
from holdout.experiments.plugins import Plugins
from holdout.holdout_scores import HoldoutScores

WARM_UP, MEASURED = 2, 5
SCORERS = ("_score", "combination_losses")
"""The two ways in which scores are computed."""


def rows() -> list[Row]:
    """Scoring's share of a round with approvals, the adaptive attack included."""
    data = as_large_as_mnist()
    return [
        Row(f"{rule} round, 30 + 30, m_c = 2,000: scoring / all", _scoring_share(rule, data), 0.8)
        for rule in ("holdout-1", "holdout-paper")
    ]


def as_large_as_mnist() -> Dataset:
    """60,000 digits: the 4,000 that come with a dependency, again and again, with noise."""
    digits = load("mnist-5k")
    noise = torch.randn(60_000, *digits.shape, generator=torch.Generator().manual_seed(0))
    return Dataset(
        "mnist-60k",
        digits.x_train.repeat(15, 1, 1, 1) + 0.1 * noise,
        digits.y_train.repeat(15),
        digits.x_test,
        digits.y_test,
        digits.classes,
    )


def _scoring_share(rule: str, data: Dataset) -> float:
    config = {"experiment": {"rules": [rule], "baseline": False}}
    next_round = rounds(config, Plugins(data=data))
    for _ in range(WARM_UP):
        next_round()
    with _timed_scoring() as scoring:
        started = time.perf_counter()
        for _ in range(MEASURED):
            next_round()
        whole = time.perf_counter() - started
    return sum(scoring) / whole


@contextmanager
def _timed_scoring() -> Iterator[list[float]]:
    """The seconds of every call of the scoring functions."""
    spent: list[float] = []

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            started = time.perf_counter()
            result = function(*arguments)
            spent.append(time.perf_counter() - started)
            return result

        return call

    originals = {name: getattr(HoldoutScores, name) for name in SCORERS}
    for name, function in originals.items():
        setattr(HoldoutScores, name, timed(function))
    try:
        yield spent
    finally:
        for name, function in originals.items():
            setattr(HoldoutScores, name, function)
