import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F  # noqa: N812

from holdout.errors import MisuseError
from holdout.learning import layers, scoring
from holdout.learning.models import MODELS, build
from holdout.learning.scoring import Combinations, sample_losses
from holdout.learning.vector import dimension, flatten, unflatten


def plainly(model, candidates, x, y):
    with torch.no_grad():
        losses = [
            F.cross_entropy(
                functional_call(model, unflatten(model, candidate), (x,)), y, reduction="none"
            )
            for candidate in candidates
        ]
    return torch.stack(losses)


def assert_close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=2e-5)


def test_only_a_plain_row_of_known_layers_is_read_layer_by_layer(case):
    model, shape, layered = case
    assert (layers.steps(model, shape) is not None) == layered


@pytest.mark.parametrize("samples", [1, 2, 37])
@pytest.mark.parametrize("count", [1, 5])
def test_losses_are_those_of_a_plain_loop(case, draw, around, samples, count):
    model, shape, _ = case
    x, y = draw(shape, samples)
    candidates = around(flatten(model), count)
    losses = sample_losses(model, candidates, x, y)
    assert losses.shape == (count, samples)
    assert losses.dtype == torch.float32
    assert_close(losses, plainly(model, candidates, x, y))


@pytest.mark.parametrize("count", [2, 9])
def test_combinations_equal_their_candidates(case, draw, around, count):
    model, shape, _ = case
    x, y = draw(shape, 23)
    weights = flatten(model)
    directions = around(torch.zeros_like(weights), 2)
    coefficients = torch.linspace(-2, 3, 2 * count).view(count, 2)
    losses = Combinations(model, weights, directions, x, y).losses(coefficients)
    assert_close(losses, plainly(model, weights + coefficients @ directions, x, y))


@pytest.mark.parametrize("name", ["mlp", "lenet5"])
@pytest.mark.parametrize("kept_floats", [0, 1 << 24])
def test_what_is_kept_of_the_first_layer_serves_the_next_candidates(
    name, kept_floats, draw, around, monkeypatch
):
    monkeypatch.setattr(scoring, "KEPT_FLOATS", kept_floats)
    shape = (3, 16, 18)
    model = build(MODELS[name], shape, 10, seed=0)
    x, y = draw(shape, 70)
    weights = flatten(model)
    directions = around(torch.zeros_like(weights), 2)
    tried = Combinations(model, weights, directions, x, y)
    for count in (8, 3, 1, 8):
        coefficients = torch.linspace(-1, 2, 2 * count).view(count, 2)
        losses = tried.losses(coefficients)
        assert_close(losses, plainly(model, weights + coefficients @ directions, x, y))
        assert torch.equal(tried.losses(coefficients), losses)


@pytest.mark.parametrize("name", ["mlp", "lenet5"])
def test_the_first_layer_of_a_direction_is_computed_once(name, draw, around, monkeypatch):
    shape = (3, 16, 16)
    model = build(MODELS[name], shape, 10, seed=0)
    x, y = draw(shape, 40)
    weights = flatten(model)
    heads = []
    computed = scoring._head
    monkeypatch.setattr(
        scoring, "_head", lambda plan, vectors, x: heads.append(1) or computed(plan, vectors, x)
    )
    tried = Combinations(model, weights, around(torch.zeros_like(weights), 2), x, y)
    for count in (8, 2, 5):
        tried.losses(torch.linspace(0, 1, 2 * count).view(count, 2))
    assert len(heads) == 1


@pytest.mark.parametrize("name", ["mlp", "lenet5"])
@pytest.mark.parametrize("samples", [31, 64, 97])
def test_blocks_and_chunks_change_nothing(name, samples, draw, around, monkeypatch):
    shape = (1, 16, 16)
    model = build(MODELS[name], shape, 10, seed=0)
    x, y = draw(shape, samples)
    weights = flatten(model)
    candidates = around(weights, 7)
    coefficients = torch.linspace(0, 2, 9).view(9, 1)
    whole = sample_losses(model, candidates, x, y)
    line = Combinations(model, weights, candidates[:1], x, y).losses(coefficients)
    monkeypatch.setattr(scoring, "BLOCK_FLOATS", 1)
    monkeypatch.setattr(scoring, "CHUNK_FLOATS", 3 * len(weights) + 100_000)
    assert_close(sample_losses(model, candidates, x, y), whole)
    assert_close(Combinations(model, weights, candidates[:1], x, y).losses(coefficients), line)


def test_the_general_path_takes_blocks_too(draw, around, monkeypatch):
    monkeypatch.setattr(scoring, "BLOCK_SAMPLES_GENERAL", 4)
    model = nn.Sequential(nn.Flatten(), nn.GELU(), nn.Linear(4, 10))
    x, y = draw((2, 2), 11)
    candidates = around(flatten(model), 3)
    assert layers.steps(model, (2, 2)) is None
    assert_close(sample_losses(model, candidates, x, y), plainly(model, candidates, x, y))


@settings(max_examples=40)
@given(
    count=st.integers(1, 40),
    directions=st.integers(0, 5),
    samples=st.integers(1, 70),
    side=st.integers(1, 6),
    seed=st.integers(0, 1000),
)
def test_sizes_do_not_matter(count, directions, samples, side, seed):
    generator = torch.Generator().manual_seed(seed)
    shape = (1, side, side)
    model = build(MODELS["mlp"], shape, 10, seed=seed)
    weights = flatten(model)
    x = torch.randn(samples, *shape, generator=generator)
    y = torch.randint(0, 10, (samples,), generator=generator)
    basis = 0.1 * torch.randn(directions, len(weights), generator=generator)
    coefficients = torch.randn(count, directions, generator=generator)
    candidates = weights + coefficients @ basis
    expected = plainly(model, candidates, x, y)
    assert_close(sample_losses(model, candidates, x, y), expected)
    assert_close(Combinations(model, weights, basis, x, y).losses(coefficients), expected)


@pytest.mark.parametrize("size", [1e4, 1e15, 1e30, 3e38, float("inf"), float("nan")])
def test_huge_weights_give_large_losses_never_nan(case, draw, around, size):
    model, shape, _ = case
    x, y = draw(shape, 9)
    weights = flatten(model)
    directions = around(torch.zeros_like(weights), 2).sign() * size
    coefficients = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, -1.0], [0.5, 0.5]])
    candidates = torch.cat([weights[None], weights + directions, weights - directions])
    losses = sample_losses(model, candidates, x, y)
    assert not losses.isnan().any()
    assert (losses >= 0).all()
    assert_close(losses[0], sample_losses(model, weights[None], x, y)[0])
    line = Combinations(model, weights, directions, x, y).losses(coefficients)
    assert not line.isnan().any()
    if torch.tensor(size).isfinite():
        # A coefficient of zero takes even the largest direction out.
        assert_close(line[0], losses[0])
    else:
        assert losses[1:].isinf().all()


def test_huge_samples_give_no_nan(case, draw, around):
    model, shape, _ = case
    x, y = draw(shape, 9)
    losses = sample_losses(model, around(flatten(model), 3), x.sign() * 3e38, y)
    assert not losses.isnan().any()
    assert (losses >= 0).all()


def test_the_same_inputs_give_the_same_bits_and_stay_as_they_were(case, draw, around):
    model, shape, _ = case
    x, y = draw(shape, 40)
    weights = flatten(model)
    candidates = around(weights, 6)
    coefficients = torch.linspace(0, 1, 12).view(6, 2)
    inputs = (weights, candidates, coefficients, x, y, flatten(model))
    copies = [part.clone() for part in inputs]

    def both():
        return torch.cat(
            [
                sample_losses(model, candidates, x, y),
                Combinations(model, weights, candidates[:2], x, y).losses(coefficients),
            ]
        )

    first = both()
    assert torch.equal(first, both())
    now = (weights, candidates, coefficients, x, y, flatten(model))
    assert all(torch.equal(copy, part) for copy, part in zip(copies, now, strict=True))
    assert not first.requires_grad


def test_candidates_may_be_views_with_any_strides(case, draw, around):
    model, shape, _ = case
    x, y = draw(shape, 5)
    candidates = around(flatten(model), 6)
    expected = plainly(model, candidates[::2], x, y)
    assert_close(sample_losses(model, candidates[::2], x, y), expected)
    across = candidates.t().contiguous().t()
    assert_close(sample_losses(model, across[::2], x, y), expected)
    expanded = candidates[:1].expand(3, -1)
    assert_close(sample_losses(model, expanded, x, y), expected[:1].expand(3, -1))


def test_nothing_to_score_is_no_mistake(case, draw):
    model, shape, _ = case
    x, y = draw(shape, 4)
    weights = flatten(model)
    none = torch.empty(0, len(weights))
    assert sample_losses(model, none, x, y).shape == (0, 4)
    assert sample_losses(model, weights[None], x[:0], y[:0]).shape == (1, 0)
    assert Combinations(model, weights, none, x, y).losses(torch.empty(0, 0)).shape == (0, 4)
    alone = Combinations(model, weights, none, x, y).losses(torch.empty(2, 0))
    assert_close(alone, plainly(model, weights.expand(2, -1), x, y))


def test_misfits_are_refused(draw):
    model = build(MODELS["mlp"], (4,), 10, seed=0)
    d = dimension(model)
    x, y = draw((4,), 3)
    good = torch.zeros(2, d)
    for candidates, samples, labels in (
        (good[:, 1:], x, y),
        (good[0], x, y),
        (good, x, y[:2]),
        (good.double(), x, y),
        (good, x.double(), y),
        (good, x, y.int()),
    ):
        with pytest.raises(MisuseError):
            sample_losses(model, candidates, samples, labels)
    with pytest.raises(MisuseError, match="each of 2 directions"):
        Combinations(model, good[0], good, x, y).losses(torch.zeros(5, 3))
