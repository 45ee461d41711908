"""A whole round in the paper's MNIST sizes: how much of it is the vote itself?

And, with `make bench DATA=FOLDER` (the folder has `mnist` and `cifar10` in it), all of the MNIST
figure, and both figures cut down by `--quick`.
"""

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from bench import memory
from bench.measure import Row
from bench.simulated import rounds
from holdout.data.datasets import Dataset, load
from holdout.experiments import reproduce
from holdout.experiments.own import Own
from holdout.workers import HoldoutScores

WARM_UP, MEASURED = 2, 5
SCORERS = ("_score", "combination_losses")
"""The two ways in which scores are computed."""
REPRODUCTION_SECONDS, QUICK_SECONDS = 300, 180


def rows() -> list[Row]:
    """Scoring's share of a HoldOut round, the adaptive attack included."""
    data = _as_large_as_mnist()
    found = [
        Row(f"{rule} round, 30 + 30, m_c = 2,000: scoring / all", _scoring_share(rule, data), 0.8)
        for rule in ("holdout", "holdout-paper")
    ]
    if folder := os.environ.get("DATA"):
        found += _figures(Path(folder))
    return found


def _figures(data: Path) -> Iterator[Row]:
    """Whole figures, from the files on."""
    for name, settings in reproduce.QUICK.items():
        need = _reproduction(name, data, settings)
        title = f"{name} figure, `--quick`: 3 minutes / time"
        yield Row(title, QUICK_SECONDS / need.seconds, 1.0, f"{need.seconds:.0f} s; memory: {need}")
    for count, panels in ((2, "the paper's panels"), (None, "all panels")):
        need = _reproduction("mnist", data, ["experiment.seeds=[0]"], panels=count)
        title = f"mnist figure, one seed, all curves, {panels}: 5 minutes / time"
        ratio = REPRODUCTION_SECONDS / need.seconds
        yield Row(title, ratio, 1.0, f"{need.seconds:.0f} s; memory: {need}")


def _reproduction(
    name: str, data: Path, settings: Sequence[str], panels: int | None = None
) -> memory.Need:
    """A figure, or the first panels of it."""
    whole = reproduce.FIGURES
    reproduce.FIGURES = {name: whole[name][:panels]}
    try:
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "out"
            return memory.spent(
                lambda: reproduce.reproduce(name, data=data / name, out=out, settings=settings)
            )
    finally:
        reproduce.FIGURES = whole


def _as_large_as_mnist() -> Dataset:
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
    next_round = rounds(config, Own(data=data))
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
