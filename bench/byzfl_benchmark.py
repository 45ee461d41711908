"""ByzFL's own benchmark on the digits that `mnist-5k` holds, in a process of its own.

`python -m bench.byzfl_benchmark JOBS` runs `config.json` of the current folder, as users of ByzFL
do. The
data set takes the place of torchvision's, which would decode and normalise each image each time it
is used: here that is done once, to ByzFL's advantage.
"""

import importlib
import sys
from types import SimpleNamespace
from typing import Any

from torch import Tensor
from torch.utils.data import Dataset

from holdout.data.datasets import load


class Digits(Dataset[Any]):
    """What torchvision calls `datasets.MNIST`."""

    transform: object

    def __init__(self, root: str, *, train: bool, download: bool, transform: object) -> None:
        del root, download
        # In ByzFL's processes, not before it forks them: torch's threads do not survive that.
        found = load("mnist-5k")
        self.data = found.x_train if train else found.x_test
        self.targets = found.y_train if train else found.y_test
        self.transform = transform

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, place: int) -> tuple[Tensor, Tensor]:
        return self.data[place], self.targets[place]


def main(jobs: str) -> None:
    """Run the benchmark, so many trainings at a time."""
    training = importlib.import_module("byzfl.benchmark.train")
    vars(training)["datasets"] = SimpleNamespace(MNIST=Digits)
    importlib.import_module("byzfl.benchmark.benchmark").run_benchmark(int(jobs))


if __name__ == "__main__":
    main(*sys.argv[1:])
