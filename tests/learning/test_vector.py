import platform

import pytest
import torch
from torch.func import functional_call

from holdout.errors import MisuseError
from holdout.learning.vector import deviation, dimension, flatten, unflatten


def test_flatten_and_unflatten_are_inverse(case, draw):
    model, shape, _ = case
    weights = flatten(model)
    assert weights.shape == (dimension(model),)
    parts = unflatten(model, weights)
    assert all(torch.equal(parts[name], part) for name, part in model.named_parameters())
    x, _ = draw(shape, 3)
    assert torch.equal(functional_call(model, parts, (x,)), model(x))


def test_flatten_copies_and_unflatten_does_not(case):
    model, _, _ = case
    weights = flatten(model)
    before = weights.clone()
    with torch.no_grad():
        next(model.parameters()).add_(1)
    assert torch.equal(weights, before)
    assert not weights.requires_grad
    next(iter(unflatten(model, weights).values())).zero_()
    assert not torch.equal(weights, before)


@pytest.mark.parametrize("wrong", [(3,), (1, 4), ()])
def test_a_vector_of_another_size_is_refused(wrong):
    model = torch.nn.Linear(1, 2)
    with pytest.raises(MisuseError, match="d=4 numbers; got shape"):
        unflatten(model, torch.zeros(wrong))


@pytest.mark.parametrize("count", [1, 2, 20, 33, 300])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_deviation_is_torchs_to_the_bit(count, dtype):
    generator = torch.Generator().manual_seed(count)
    scale = torch.logspace(-6, 6, 9000)
    rows = (scale * (torch.randn(count, 9000, generator=generator) + 3)).to(dtype)
    found, wanted = deviation(rows), rows.std(dim=0, correction=0)
    assert torch.allclose(found, wanted, rtol=1e-6)
    # Elsewhere a compiler may join a product and a sum, and round once.
    assert torch.equal(found, wanted) or platform.machine() != "x86_64"
