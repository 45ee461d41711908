"""Sketches: inner products kept as promised, integers that are the same everywhere, null spaces."""

import hashlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from threadpoolctl import threadpool_limits

from holdout.errors import MisuseError
from holdout.sketch import (
    BITS,
    ENTRY_MAX,
    SIZE_MAX,
    inner_products,
    quantise,
    size_for,
    sketch,
)


def matrix(d, size, seed=0, round_number=1):
    """The whole matrix, (size, d)."""
    return sketch(np.eye(d, dtype=np.int64), size=size, seed=seed, round_number=round_number).T


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def noise(generator, n, d):
    return generator.normal(size=(n, d))


def gradients(generator, n, d):
    """A common direction, layers of other scales, most units silent, heavy tails."""
    scales = np.repeat(10.0 ** generator.uniform(-3, 0, size=20), -(-d // 20))[:d]
    awake = generator.random((n, d)) < 0.2
    tails = generator.standard_t(3, size=(n, d))
    return scales * (generator.normal(size=d) + 2 * awake * tails)


def spikes(generator, n, d):
    rows = np.zeros((n, d))
    rows[np.arange(n), generator.integers(0, d, size=n)] = 1.0
    return rows


def errors(rows, size, seed):
    """How far each inner product of unit vectors is off."""
    whole = quantise(rows, radius=1.0)
    sketches = sketch(whole, size=size, seed=seed, round_number=1)
    kept = inner_products(sketches) / size / 4.0**BITS
    return np.abs(kept - rows @ rows.T)


@pytest.mark.parametrize("kind", [noise, gradients, spikes])
def test_all_inner_products_are_kept_as_promised(kind):
    error, vectors = 0.3, 12
    size = size_for(error, vectors, failure=0.01)
    worst = [
        errors(unit(kind(np.random.default_rng(seed), vectors, 700)), size, seed).max()
        for seed in range(20)
    ]
    assert max(worst) <= error
    # The bound is not idle: a sixteenth of the entries keeps the promise hardly ever.
    few = 8 * (size // 128)
    broken = [
        errors(unit(kind(np.random.default_rng(seed), vectors, 700)), few, seed).max() > error
        for seed in range(20)
    ]
    if kind is not spikes:
        assert sum(broken) > 10


def test_the_size_grows_with_the_logarithm_of_vectors_and_confidence():
    assert size_for(0.2, 60, 1e-3) == 1824
    assert size_for(0.2, 60, 1e-6) - size_for(0.2, 60, 1e-3) == pytest.approx(797, abs=8)
    assert size_for(0.2, 6000, 1e-3) - size_for(0.2, 60, 1e-3) == pytest.approx(1063, abs=8)
    assert size_for(0.1, 60, 1e-3) > 3.5 * size_for(0.2, 60, 1e-3)
    for wrong in ((0.0, 2, 0.1), (1.0, 2, 0.1), (0.1, 0, 0.1), (0.1, 2, 0.0)):
        with pytest.raises(MisuseError, match="a sketch needs"):
            size_for(*wrong)


def test_the_matrix_holds_even_signs_that_seed_and_round_decide():
    here = matrix(1000, 64)
    assert set(np.unique(here)) == {-1, 1}
    assert abs(here.mean()) < 0.02
    assert np.array_equal(here, matrix(1000, 64))
    for other in (matrix(1000, 64, seed=1), matrix(1000, 64, round_number=2)):
        assert abs((here * other).mean()) < 0.02
    # Rows and columns are not related to each other.
    products = here @ here.T / 1000 - np.eye(64)
    assert np.abs(products).max() < 0.2


def test_the_first_columns_do_not_depend_on_how_many_there_are():
    assert np.array_equal(matrix(300, 16)[:, :130], matrix(130, 16))


def test_these_integers_are_the_same_on_every_machine():
    numbers = np.arange(-5_000, 5_000, dtype=np.float32)[None] / np.float32(7e5)
    whole = quantise(numbers, radius=0.75)
    result = sketch(whole, size=64, seed=7, round_number=3)
    digest = hashlib.sha256(result.astype("<i8").tobytes()).hexdigest()
    assert result[0, :4].tolist() == [802244, 708210, 656440, 579464]
    assert digest[:16] == "33789dc77e11a642"


@given(st.integers(1, 400), st.integers(1, 5), st.integers(0, 1000))
def test_a_sketch_is_an_exact_integer_map_in_whatever_order_it_is_summed(d, n, seed):
    generator = np.random.default_rng(seed)
    whole = quantise(unit(generator.normal(size=(n, d))), radius=1.0)
    order = generator.permutation(d)
    plain = whole[:, order] @ matrix(d, 24)[:, order].T
    assert np.array_equal(sketch(whole, size=24, seed=0, round_number=1), plain)


def test_threads_and_companions_change_no_integer():
    whole = quantise(unit(np.random.default_rng(0).normal(size=(6, 5_000))), radius=1.0)
    options = {"size": 256, "seed": 0, "round_number": 1}
    together = sketch(whole, **options)
    for threads in (1, 2):
        with threadpool_limits(threads):
            assert np.array_equal(sketch(whole, **options), together)
    with ThreadPoolExecutor(3) as pool:
        alone = list(pool.map(lambda row: sketch(row[None], **options)[0], whole))
    assert np.array_equal(np.stack(alone), together)


def test_inner_products_at_the_limit_do_not_overflow():
    row = np.full((1, SIZE_MAX), ENTRY_MAX)
    assert inner_products(row).tolist() == [[SIZE_MAX * ENTRY_MAX**2]]
    assert inner_products(row, -row).tolist() == [[-SIZE_MAX * ENTRY_MAX**2]]
    assert SIZE_MAX * ENTRY_MAX**2 == 1 << 62
    for wrong in (row + 1, np.ones((1, SIZE_MAX + 1), dtype=np.int64)):
        with pytest.raises(MisuseError, match="sketches have"):
            inner_products(row[:, : wrong.shape[1]], wrong)


def test_entries_that_only_an_unbounded_vector_reaches_are_cut():
    column = matrix(4_000, 8)[0]
    # As long as can be along one row of the matrix.
    result = sketch((column << BITS)[None], size=8, seed=0, round_number=1)
    assert result[0, 0] == ENTRY_MAX


def test_numbers_are_rounded_one_by_one_and_cut_at_the_radius():
    assert quantise(np.array([0.5, 1.5, 2.5]) / 2**BITS, radius=1.0).tolist() == [0, 2, 2]
    top = 1 << BITS
    assert quantise(np.array([2.0, -3e38]), radius=1e-30).tolist() == [top, -top]
    for values, radius in ((np.nan, 1.0), (np.inf, 1.0), (1.0, 0.0), (1.0, np.nan)):
        with pytest.raises(MisuseError, match="finite"):
            quantise(np.array([values]), radius=radius)


def test_what_cannot_be_sketched_exactly_is_misuse():
    with pytest.raises(MisuseError, match="exact"):
        sketch(np.array([[1 << 53]]), size=8, seed=0, round_number=1)
    for size in (0, 12, SIZE_MAX + 8):
        with pytest.raises(MisuseError, match="multiple of 8"):
            sketch(np.array([[1]]), size=size, seed=0, round_number=1)


def test_a_lie_in_the_null_space_passes_if_the_matrix_is_known_and_not_if_it_is_drawn_later():
    d, size = 600, 256
    generator = np.random.default_rng(0)
    honest = 0.05 * unit(generator.normal(size=d) + 0.3 * generator.normal(size=(8, d)))
    direction = honest.mean(axis=0)
    # What the known matrix does not see of -direction, twenty times as long as honest work.
    known = matrix(d, size).astype(np.float64)
    unseen = -direction + np.linalg.pinv(known) @ (known @ direction)
    unseen *= 0.95 / np.linalg.norm(unseen)
    assert direction @ unseen < 0
    lie = honest[0] + unseen
    whole = quantise(np.vstack([honest, unseen[None], lie[None]]), radius=1.0)

    before = inner_products(sketch(whole, size=size, seed=0, round_number=1)) / size / 4.0**BITS
    truth = whole @ whole.T / 4.0**BITS
    # Known beforehand: the long vector has no length and no product; the lie is its honest part.
    assert before[8, 8] < 1e-6
    assert np.abs(before[8]).max() < 1e-6
    assert np.allclose(before[9], before[0], atol=1e-6)
    assert truth[8, 8] > 0.9
    assert truth[9, 9] > 300 * truth[0, 0]
    # Drawn when the vectors are fixed: the lie is as long as it is and points where it points.
    for seed in range(1, 6):
        fresh = sketch(whole, size=size, seed=seed, round_number=1)
        after = inner_products(fresh) / size / 4.0**BITS
        lengths = np.sqrt(np.outer(truth.diagonal(), truth.diagonal()))
        assert (np.abs(after - truth) <= 0.35 * lengths).all()
        assert after[9, 9] > 200 * after[0, 0]
