import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F  # noqa: N812

from holdout.errors import MisuseError
from holdout.learning.models import MODELS, build
from holdout.learning.training import evaluate, gradients, local_update
from holdout.learning.vector import dimension, flatten, unflatten


def plainly(model, weights, batches):
    """zero_grad, forward, backward, flatten, for each batch."""
    rows = []
    with torch.no_grad():
        for name, part in unflatten(model, weights).items():
            model.get_parameter(name).copy_(part)
    for x, y in batches:
        model.zero_grad()
        F.cross_entropy(model(x), y).backward()
        rows.append(torch.cat([part.grad.reshape(-1) for part in model.parameters()]))
    return torch.stack(rows)


def assert_close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("sizes", [[1], [5, 5, 5], [3, 8, 1]])
def test_gradients_are_those_of_a_plain_loop(case, draw, sizes):
    model, shape, _ = case
    batches = [draw(shape, size, seed) for seed, size in enumerate(sizes)]
    weights = flatten(model) * 1.1
    rows = gradients(model, weights, batches)
    assert rows.shape == (len(sizes), dimension(model))
    assert not rows.requires_grad
    assert_close(rows, plainly(model, weights, batches))


@pytest.mark.parametrize("name", MODELS)
def test_flat_regions_give_the_gradient_of_a_plain_loop_too(name):
    # Equal numbers under a pooling window: the slope must go where torch's own pooling sends it.
    model = build(MODELS[name], (1, 20, 20), 10, seed=1)
    x = torch.zeros(4, 1, 20, 20)
    x[:, :, 3:9, 5:15] = 1.0
    batches = [(x, torch.arange(4))]
    weights = flatten(model)
    assert_close(gradients(model, weights, batches), plainly(model, weights, batches))


def test_of_equal_maxima_the_first_gets_the_slope_as_in_torch():
    # The second channel has no weight, so whole windows are equal or equal across the diagonal.
    model = nn.Sequential(nn.Conv2d(2, 1, 1), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(4, 3))
    weights = torch.arange(1.0, dimension(model) + 1) / 10
    weights[1] = 0
    x = torch.arange(32.0).view(1, 2, 4, 4)
    x[0, 0] = torch.tensor([[1, 1, 1, 2], [1, 1, 2, 1], [1, 2, 2, 2], [1, 2, 2, 1]])
    batches = [(x, torch.tensor([1]))]
    assert_close(gradients(model, weights, batches), plainly(model, weights, batches))


def test_gradients_agree_with_finite_differences():
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(6, 2, 2, generator=generator)
    y = torch.randint(0, 3, (6,), generator=generator)
    weights = torch.randn(dimension(model), generator=generator)
    exact = model.double()

    def loss(vector):
        return F.cross_entropy(functional_call(exact, unflatten(exact, vector), (x.double(),)), y)

    step = 1e-6 * torch.eye(len(weights), dtype=torch.double)
    with torch.no_grad():
        at = weights.double()
        slopes = [(loss(at + e) - loss(at - e)).item() / 2e-6 for e in step]
    (row,) = gradients(model.float(), weights, [(x, y)])
    torch.testing.assert_close(row, torch.tensor(slopes), rtol=1e-3, atol=1e-5)


@settings(max_examples=30)
@given(sizes=st.lists(st.integers(1, 20), min_size=1, max_size=6), seed=st.integers(0, 1000))
def test_each_batch_has_its_own_gradient_whatever_the_others_are(sizes, seed):
    generator = torch.Generator().manual_seed(seed)
    model = build(MODELS["mlp"], (2, 3), 4, seed=seed)
    batches = [
        (
            torch.randn(size, 2, 3, generator=generator),
            torch.randint(0, 4, (size,), generator=generator),
        )
        for size in sizes
    ]
    weights = flatten(model)
    together = gradients(model, weights, batches)
    apart = torch.cat([gradients(model, weights, [batch]) for batch in batches])
    assert_close(together, apart)


def test_repetition_gives_the_same_bits_and_inputs_stay_as_they_were(case, draw):
    model, shape, _ = case
    batches = [draw(shape, 6, 1), draw(shape, 4, 2)]
    weights = flatten(model)
    copies = [weights.clone(), *(part.clone() for batch in batches for part in batch)]
    first = gradients(model, weights, batches)
    assert torch.equal(first, gradients(model, weights, batches))
    now = [weights, *(part for batch in batches for part in batch)]
    assert all(torch.equal(copy, part) for copy, part in zip(copies, now, strict=True))
    assert torch.equal(flatten(model), weights)
    assert all(part.grad is None for part in model.parameters())


def test_gradients_do_not_depend_on_grad_mode(case, draw):
    model, shape, _ = case
    batches = [draw(shape, 3)]
    weights = flatten(model)
    expected = gradients(model, weights, batches)
    with torch.no_grad():
        assert torch.equal(gradients(model, weights, batches), expected)
    tracked = gradients(model, weights.requires_grad_(), batches)
    assert torch.equal(tracked, expected)
    assert not tracked.requires_grad


def test_huge_weights_raise_nothing(case, draw):
    model, shape, _ = case
    weights = torch.full((dimension(model),), 3e38)
    assert gradients(model, weights, [draw(shape, 3)]).shape == (1, len(weights))
    result = evaluate(model, weights, *draw(shape, 3))
    assert not math.isfinite(result.loss)
    assert result.accuracy == 0


def test_a_parameter_without_influence_has_gradient_zero(draw):
    class Partial(nn.Module):
        def __init__(self):
            super().__init__()
            self.used = nn.Linear(4, 10)
            self.idle = nn.Parameter(torch.ones(3))

        def forward(self, x):
            return self.used(x)

    model = Partial()
    rows = gradients(model, flatten(model), [draw((4,), 5)])
    at = [name for name, _ in model.named_parameters()].index("idle")
    assert at == 0
    assert not rows[0, :3].any()
    assert rows[0, 3:].any()


class Residual(nn.Module):
    """x + f(x), then a buffer that the model scales by: it can only be called as a whole."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 10)
        self.register_buffer("scale", torch.tensor(0.5))

    def forward(self, x):
        return self.head(x + self.scale * torch.tanh(self.body(x)))


class Single(Residual):
    """The same, but it says that there can only be one."""

    def __deepcopy__(self, memo):
        raise TypeError("no")


@pytest.mark.parametrize("kind", [Residual, Single])
def test_threads_change_no_bit_of_the_gradients_of_a_model_called_as_a_whole(kind, draw):
    model = kind()
    weights, own = flatten(model) * 1.1, flatten(model)
    batches = [draw((4,), 3 + seed % 5, seed) for seed in range(24)]
    expected = gradients(model, weights, batches)
    assert_close(expected, plainly(kind(), weights, batches))
    for threads in (2, 4):
        torch.set_num_threads(threads)
        for _ in range(5):
            assert torch.equal(gradients(model, weights, batches), expected)
    assert torch.equal(flatten(model), own)


def test_batches_without_samples_or_labels_are_refused(draw):
    model = build(MODELS["mlp"], (4,), 10, seed=0)
    x, y = draw((4,), 3)
    weights = flatten(model)
    assert gradients(model, weights, []).shape == (0, len(weights))
    with pytest.raises(MisuseError, match="at least one sample"):
        gradients(model, weights, [(x, y), (x[:0], y[:0])])
    with pytest.raises(MisuseError, match="a label for each"):
        gradients(model, weights, [(x, y[:2])])
    with pytest.raises(MisuseError, match="weights are"):
        gradients(model, weights[1:], [(x, y)])
    with pytest.raises(MisuseError, match="at least one batch"):
        local_update(model, weights, [], learning_rate=0.1)


def test_one_local_step_is_the_gradient(case, draw):
    model, shape, _ = case
    batch = draw(shape, 5)
    weights = flatten(model)
    update = local_update(model, weights, [batch], learning_rate=0.1)
    assert torch.equal(update, gradients(model, weights, [batch])[0])


def test_local_steps_are_plain_sgd_in_the_order_of_the_batches(case, draw):
    model, shape, _ = case
    batches = [draw(shape, size, size) for size in (5, 2, 4)]
    weights = flatten(model)
    update = local_update(model, weights, batches, learning_rate=0.05)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for x, y in batches:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    torch.testing.assert_close(update, (weights - flatten(model)) / 0.05, rtol=1e-3, atol=1e-5)


def test_evaluation_counts_what_is_right(monkeypatch):
    monkeypatch.setattr("holdout.learning.training.EVALUATION_BLOCK", 2)
    model = nn.Linear(3, 3, bias=False)
    x = torch.eye(3)[[0, 0, 1, 1, 1]]
    result = evaluate(model, 2 * torch.eye(3).flatten(), x, torch.tensor([0, 1, 1, 1, 0]))
    assert result.accuracy == pytest.approx(3 / 5)
    assert result.class_recall[:2] == pytest.approx((1 / 2, 2 / 3))
    assert math.isnan(result.class_recall[2])
    right, wrong = math.log(1 + 2 * math.exp(-2)), math.log(2 + math.exp(2))
    assert result.loss == pytest.approx((3 * right + 2 * wrong) / 5)


def test_logits_that_are_not_finite_count_as_wrong():
    model = nn.Linear(1, 2, bias=False)
    x, y = torch.tensor([[1.0], [0.0]]), torch.tensor([0, 0])
    result = evaluate(model, torch.tensor([float("inf"), 0.0]), x, y)
    assert result.accuracy == 0
    assert math.isnan(result.loss)
    with pytest.raises(MisuseError, match="at least one sample"):
        evaluate(model, torch.zeros(2), x[:0], y[:0])
