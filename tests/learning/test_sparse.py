"""Samples without their background: the same samples, and the same losses of what is scored."""

import weakref
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from holdout.learning import sparse
from holdout.learning.models import MODELS, build
from holdout.learning.scoring import Combinations, sample_losses, takes_sparse
from holdout.learning.vector import flatten


def mostly_background(samples=50, shape=(1, 6, 6), background=-0.4, share=0.2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, *shape, generator=generator)
    x[torch.rand(x.shape, generator=generator) > share] = background
    return x, torch.randint(0, 10, (samples,), generator=generator)


@settings(max_examples=40)
@given(
    samples=st.integers(1, 40),
    background=st.floats(-3, 3, width=32),
    share=st.floats(0, 0.4),
    seed=st.integers(0, 99),
)
def test_nothing_is_lost(samples, background, share, seed):
    x, _ = mostly_background(samples, (2, 20), background, share, seed)
    found = sparse.of(x)
    assert found is not None
    torch.testing.assert_close(found.dense(), x, rtol=1e-6, atol=1e-6)
    rows = torch.randint(0, samples, (7,), generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(found.take(rows).dense(), x[rows], rtol=1e-6, atol=1e-6)
    some = rows.sort().values  # Often of rows that follow each other.
    torch.testing.assert_close(found.take(some).dense(), x[some], rtol=1e-6, atol=1e-6)
    assert found.take(rows[:0]).dense().shape == (0, 2, 20)
    half = slice(samples // 3, samples)
    torch.testing.assert_close(found.block(half).dense(), x[half], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("hidden", [3, 100, 300])
@pytest.mark.parametrize("bias", [True, False])
def test_losses_are_those_of_the_samples_in_full(hidden, bias):
    x, y = mostly_background()
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(36, hidden, bias=bias), nn.ReLU(), nn.Linear(hidden, 10)
    )
    weights = flatten(model)
    generator = torch.Generator().manual_seed(1)
    candidates = weights + 0.1 * torch.randn(9, len(weights), generator=generator)
    coefficients = torch.randn(11, 2, generator=generator)
    found = sparse.of(x)
    assert takes_sparse(model, (1, 6, 6))
    torch.testing.assert_close(
        sample_losses(model, candidates, found, y),
        sample_losses(model, candidates, x, y),
        rtol=1e-5,
        atol=1e-5,
    )
    torch.testing.assert_close(
        Combinations(model, weights, candidates[:2] - weights, found, y).losses(coefficients),
        Combinations(model, weights, candidates[:2] - weights, x, y).losses(coefficients),
        rtol=1e-5,
        atol=1e-5,
    )


@pytest.mark.parametrize(
    "model",
    [
        build(MODELS["lenet5"], (1, 16, 16), 10, seed=0),
        nn.Sequential(nn.Flatten(), nn.Tanh(), nn.Linear(256, 10)),
        nn.Sequential(nn.Flatten(), nn.GELU(), nn.Linear(256, 10)),
    ],
)
def test_a_model_that_does_not_begin_with_a_product_gets_the_samples_in_full(model):
    x, y = mostly_background(9, (1, 16, 16))
    assert not takes_sparse(model, (1, 16, 16))
    candidates = flatten(model)[None]
    torch.testing.assert_close(
        sample_losses(model, candidates, sparse.of(x), y), sample_losses(model, candidates, x, y)
    )


def test_samples_without_background_stay_as_they_are():
    assert sparse.of(torch.randn(20, 30)) is None
    assert sparse.of(torch.zeros(0, 30)) is None
    assert sparse.of(mostly_background()[0].double()) is None


def test_what_would_overflow_stays_as_it_is():
    x, _ = mostly_background(background=3e38)
    x[0, 0, 0, 0] = -3e38
    assert sparse.of(x) is None


def test_a_change_in_place_is_noticed():
    x, _ = mostly_background()
    before = sparse.of(x)
    assert sparse.of(x) is before
    x[3] = 1.5
    after = sparse.of(x)
    assert after is not before
    torch.testing.assert_close(after.dense(), x, rtol=1e-6, atol=1e-6)


def test_rows_are_taken_once_and_not_kept_longer_than_they_live():
    x, _ = mostly_background()
    found, rows = sparse.of(x), torch.tensor([3, 4, 9])
    before = sparse.take(found, rows)
    assert sparse.take(found, rows) is before
    rows[0] = 7
    assert_close = partial(torch.testing.assert_close, rtol=1e-6, atol=1e-6)
    assert_close(sparse.take(found, rows).dense(), x[rows])
    x[7] = 0.5
    assert_close(sparse.take(sparse.of(x), rows).dense(), x[rows])
    kept = weakref.ref(sparse.take(sparse.of(x), rows).values)
    assert kept() is not None
    del rows
    assert kept() is None


def test_a_candidate_that_is_not_finite_is_infinitely_bad():
    x, y = mostly_background()
    model = build(MODELS["mlp"], (1, 6, 6), 10, seed=0)
    weights = flatten(model)
    candidates = torch.stack([weights, weights + torch.nan, weights * torch.inf])
    losses = sample_losses(model, candidates, sparse.of(x), y)
    assert losses[0].isfinite().all()
    assert losses[1:].isinf().all()
