"""Poisoned private data: what Byzantine workers take for the truth."""

from torch import Tensor


def flip_labels(labels: Tensor, classes: int) -> Tensor:
    """Each label y as classes - 1 - y.

    >>> import torch
    >>> flip_labels(torch.tensor([0, 3, 9]), 10).tolist()
    [9, 6, 0]
    """
    return classes - 1 - labels
