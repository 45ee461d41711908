"""ByzFL's small networks, layer by layer, so that its configs find them.

They give logits: the log-softmax that ByzFL's networks for MNIST end in is part of the loss here.
"""

import math

from torch import nn

from holdout.errors import ModelError


def cnn_mnist(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Two convolutions of 5 x 5 (20 and 50 channels), each pooled, and two full layers.

    >>> import torch
    >>> cnn_mnist((1, 28, 28), 10)(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """
    _expect("cnn_mnist", shape, (1, 28, 28))
    return nn.Sequential(
        nn.Conv2d(1, 20, 5),
        nn.ReLU(),
        nn.MaxPool2d(2, 2),
        nn.Conv2d(20, 50, 5),
        nn.ReLU(),
        nn.MaxPool2d(2, 2),
        nn.Flatten(),
        nn.Linear(800, 500),
        nn.ReLU(),
        nn.Linear(500, classes),
    )


def logreg_mnist(shape: tuple[int, ...], classes: int) -> nn.Module:
    """One full layer: logistic regression."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))


def cnn_cifar(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Three padded convolutions of 5 x 5 (20, 100, 200 channels), each pooled; three full layers.

    >>> import torch
    >>> cnn_cifar((3, 32, 32), 10)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """
    _expect("cnn_cifar", shape, (3, 32, 32))
    layers: list[nn.Module] = []
    for inner, outer in ((3, 20), (20, 100), (100, 200)):
        layers += [nn.Conv2d(inner, outer, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2, 2)]
    return nn.Sequential(
        *layers,
        nn.Flatten(),
        nn.Linear(3200, 512),
        nn.ReLU(),
        nn.Linear(512, 256),
        nn.ReLU(),
        nn.Linear(256, classes),
    )


def _expect(name: str, shape: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    if shape != wanted:
        raise ModelError(f"{name} is for samples of shape {wanted}; got {shape}")
