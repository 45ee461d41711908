"""Losses: built in and custom, in training, in scoring and in the test of a model."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from holdout.errors import PluginError
from holdout.learning import vector
from holdout.learning.losses import CROSS_ENTROPY, LOSSES, MSE, custom_loss
from holdout.learning.models import lenet5, mlp
from holdout.learning.scoring import Combinations, sample_losses
from holdout.learning.training import evaluate, gradients, local_update

HUBER = custom_loss(lambda out, y: F.huber_loss(out, y, reduction="none").mean(1), "huber")
SMOOTH = custom_loss(
    lambda out, y: F.cross_entropy(out, y, reduction="none", label_smoothing=0.1), "smooth"
)


class Called(nn.Module):
    """A model that can only be called as a whole."""

    def __init__(self, outputs):
        super().__init__()
        self.inner = nn.Linear(144, outputs)

    def forward(self, x):
        return torch.tanh(self.inner(x.flatten(1)))


MODELS = {
    "mlp": lambda outputs: mlp((1, 12, 12), outputs),
    "lenet5": lambda outputs: lenet5((1, 16, 16), outputs),
    "called": Called,
}


def problem(name, loss, samples=40, outputs=3, seed=0):
    rng = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = MODELS[name](outputs)
    side = 16 if name == "lenet5" else 12
    x = torch.randn(samples, 1, side, side, generator=rng)
    if loss in (MSE, HUBER):
        y = torch.randn(samples, outputs, generator=rng)
    else:
        y = torch.randint(outputs, (samples,), generator=rng)
    return model, x, y


every_loss = pytest.mark.parametrize(
    "loss", [CROSS_ENTROPY, MSE, HUBER, SMOOTH], ids=lambda n: n.name
)
every_model = pytest.mark.parametrize("name", MODELS)


def plainly(loss, outputs, y):
    """The mean loss, written out."""
    if loss is MSE:
        return ((outputs - y) ** 2).mean(1).mean()
    if loss is HUBER:
        return F.huber_loss(outputs, y)
    return F.cross_entropy(outputs, y, label_smoothing=0.1 if loss is SMOOTH else 0.0)


@every_loss
@every_model
def test_gradients_are_those_of_autograd(name, loss):
    model, x, y = problem(name, loss)
    weights = vector.flatten(model)
    batches = [(x[:15], y[:15]), (x[15:], y[15:])]
    found = gradients(model, weights, batches, loss=loss)
    for (bx, by), row in zip(batches, found, strict=True):
        model.zero_grad()
        plainly(loss, model(bx), by).backward()
        wanted = torch.cat([p.grad.reshape(-1) for p in model.parameters()])
        assert torch.allclose(row, wanted, rtol=1e-3, atol=1e-5)


@every_loss
@every_model
def test_scores_are_the_losses_of_each_candidate(name, loss):
    model, x, y = problem(name, loss)
    base = vector.flatten(model)
    moves = torch.randn(3, len(base), generator=torch.Generator().manual_seed(1)) * 0.01
    found = sample_losses(model, base + moves, x, y, loss=loss)
    mixed = Combinations(model, base, moves, x, y, loss=loss).losses(torch.eye(3))
    assert torch.allclose(found, mixed, rtol=1e-3, atol=1e-4)
    for move, row in zip(moves, found, strict=True):
        outputs = vector.call(model, vector.unflatten(model, base + move), x)
        assert row.mean().item() == pytest.approx(plainly(loss, outputs, y).item(), rel=1e-3)


def test_weight_decay_is_that_of_torch():
    model, x, y = problem("mlp", CROSS_ENTROPY)
    weights, rate, decay = vector.flatten(model), 0.2, 0.05
    batches = [(x[i::4], y[i::4]) for i in range(4)]
    found = local_update(model, weights, batches, learning_rate=rate, weight_decay=decay)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, weight_decay=decay)
    for bx, by in batches:
        optimizer.zero_grad()
        F.cross_entropy(model(bx), by).backward()
        optimizer.step()
    assert torch.allclose(weights - rate * found, vector.flatten(model), rtol=1e-4, atol=1e-6)


def test_a_regression_is_measured_by_r2_and_the_mean_absolute_error():
    model = nn.Linear(1, 2)
    x = torch.tensor([[0.0], [1.0], [2.0], [3.0]])
    y = torch.tensor([[0.0, 5.0], [2.0, 5.0], [4.0, 5.0], [10.0, 5.0]])
    weights = torch.tensor([2.0, 0.0, 0.0, 4.0])  # Outputs 2x and 4.
    found = evaluate(model, weights, x, y, loss=MSE)
    residuals, spread = 4.0**2, np.var([0, 2, 4, 10]) * 4
    # The second target does not vary: it has no R2.
    assert found.r2 == pytest.approx(1 - residuals / spread)
    assert found.mae == pytest.approx((0 + 0 + 0 + 4 + 4 * 1) / 8)
    assert found.loss == pytest.approx(((0 + 1) + (0 + 1) + (0 + 1) + (16 + 1)) / 2 / 4)
    assert (found.accuracy, found.class_recall) == (None, ())
    assert evaluate(model, weights, x, y[:, 1:].expand(-1, 2), loss=MSE).r2 is None


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (F.cross_entropy, r"one float32 for each sample, \(6,\)"),
        (lambda *_: [0.0] * 6, "for each sample.*got list"),
        (lambda *_: torch.zeros(6, dtype=torch.float64), "torch.float64 of shape"),
        (lambda *_: 1 / 0, "raised ZeroDivisionError"),
        (3, "must be callable; got int"),
    ],
)
def test_own_losses_that_cannot_be_used_are_named(function, problem):
    loss = custom_loss(function, "mine:loss")
    with pytest.raises(PluginError, match=f"the loss mine:loss .*{problem}"):
        loss(torch.zeros(6, 2), torch.zeros(6, dtype=torch.int64))


def test_a_loss_is_known_by_its_name():
    assert {name: loss.name for name, loss in LOSSES.items()} == {name: name for name in LOSSES}
