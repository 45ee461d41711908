"""The task: a small network, 5,000 real digits that come with a dependency, and training."""

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from holdout.data.datasets import load


def make_model(seed: int = 0) -> nn.Module:
    """A 784-100-10 network whose weights the seed decides."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 10))


@cache
def digits() -> Any:
    """4,000 digits to train on and 1,000 to test with."""
    return load("mnist-5k")


def partition(number: int, partitions: int) -> tuple[Tensor, Tensor]:
    """The digits that one client holds; no two clients hold the same."""
    data = digits()
    order = torch.randperm(len(data.x_train), generator=torch.Generator().manual_seed(0))
    rows = order[number::partitions]
    return data.x_train[rows], data.y_train[rows]


def train(
    model: nn.Module, x: Tensor, y: Tensor, *, epochs: int, batch_size: int, rate: float
) -> float:
    """Train by plain SGD and return the mean loss of the last epoch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    model.train()
    for _ in range(epochs):
        losses = []
        for rows in torch.arange(len(x)).split(batch_size):
            optimizer.zero_grad()
            loss = cross_entropy(model(x[rows]), y[rows])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return sum(losses) / len(losses)


def test(model: nn.Module, x: Tensor, y: Tensor) -> tuple[float, float]:
    """The model's loss and accuracy."""
    model.eval()
    with torch.no_grad():
        logits = model(x)
    return cross_entropy(logits, y).item(), (logits.argmax(1) == y).float().mean().item()
