import pytest
import torch

from holdout.data.datasets import Dataset


@pytest.fixture(scope="session")
def blobs() -> Dataset:
    """Three overlapping clouds of points: small, learnable, different for every worker."""
    generator = torch.Generator().manual_seed(7)
    centres = 1.5 * torch.randn(3, 8, generator=generator)
    y = torch.arange(720) % 3
    x = centres[y] + torch.randn(720, 8, generator=generator)
    return Dataset("blobs", x[:600], y[:600], x[600:], y[600:], classes=3)
