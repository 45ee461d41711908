"""The task: images of CIFAR-10's size, made on the spot, and a network with batch norm."""

from functools import cache

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

CLASSES, TRAIN_ROWS, TEST_ROWS = 10, 800, 400


def make_model(seed: int = 0) -> nn.Module:
    """Two convolutions with batch norm; its statistics are buffers, which nobody judges."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return nn.Sequential(
            *(nn.Conv2d(3, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU()),
            *(nn.Conv2d(8, 16, 3, stride=2), nn.BatchNorm2d(16), nn.ReLU()),
            *(nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Linear(16 * 9, CLASSES)),
        )


@cache
def images() -> tuple[Tensor, Tensor]:
    """3 x 32 x 32 pixels: the pattern of a class, moved a little, under much noise."""
    generator = torch.Generator().manual_seed(0)
    patterns = torch.randn(CLASSES, 3, 8, 8, generator=generator)
    patterns = nn.functional.interpolate(patterns, size=(32, 32), mode="bilinear")
    y = torch.arange(TRAIN_ROWS + TEST_ROWS) % CLASSES
    noise = torch.randn(len(y), 3, 32, 32, generator=generator)
    return 3.0 + 2.0 * (patterns[y] + 1.5 * noise), y


def partition(number: int, partitions: int) -> tuple[Tensor, Tensor]:
    """The images that one client holds."""
    x, y = images()
    order = torch.randperm(TRAIN_ROWS, generator=torch.Generator().manual_seed(1))
    rows = order[number::partitions]
    return x[rows], y[rows]


def train(model: nn.Module, x: Tensor, y: Tensor, *, epochs: int) -> None:
    """Some epochs of SGD with momentum."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    model.train()
    for _ in range(epochs):
        for rows in torch.arange(len(x)).split(32):
            optimizer.zero_grad()
            cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()


def accuracy(model: nn.Module) -> float:
    """On images that no client holds."""
    x, y = (part[TRAIN_ROWS:] for part in images())
    model.eval()
    with torch.no_grad():
        return (model(x).argmax(1) == y).float().mean().item()
