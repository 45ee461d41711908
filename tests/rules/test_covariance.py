"""CAF and DnC against plain loops over a covariance or its singular vectors."""

import math
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from holdout.errors import MisuseError, UserError
from holdout.rules import RULES, RuleContext, caf, dnc
from holdout.rules.covariance import dnc_choice, draw_coordinates, screen
from holdout.rules.distance import centred_gram
from holdout.seeds import stream


def gram(updates):
    """The inner products of all rows with each other."""
    return centred_gram(updates, torch.zeros_like(updates[0]))


class NeverEnds(Exception):  # noqa: N818
    """The definition takes weight from nobody any more."""


def plain_passes(rows, f, *, among_all=False):
    """(variance, weights) of every pass, by the definition.

    With `among_all` as ByzFL 0.0.11 describes it: the furthest is sought among all, those included
    whose weight is gone. Its power iteration is taken as converged.
    """
    n, d = rows.shape
    confidence, passes = [1.0] * n, []
    while not passes or sum(confidence) > n - 2 * f:
        if len(passes) > 50 * n:
            raise NeverEnds
        total = sum(confidence)
        weights = [c / total for c in confidence]
        mean = sum(w * row for w, row in zip(weights, rows, strict=True))
        covariance = np.zeros((d, d))
        for w, row in zip(weights, rows, strict=True):
            covariance += w * np.outer(row - mean, row - mean)
        values, vectors = np.linalg.eigh(covariance)
        passes.append((values[-1], weights))
        if values[-1] < 1e-13:
            break
        scores = [float((row - mean) @ vectors[:, -1]) ** 2 for row in rows]
        counting = (
            scores if among_all else [s for s, c in zip(scores, confidence, strict=True) if c]
        )
        confidence = [
            c * (1 - s / max(counting)) if c else 0.0
            for s, c in zip(scores, confidence, strict=True)
        ]
        if sum(confidence) == 0:
            break
    return passes


def plain_weights(rows, f, **options):
    return min(plain_passes(rows, f, **options), key=lambda one: one[0])[1]


def random_rows(n, d, seed, lies=0):
    """Honest noise, and copies of one lie."""
    rows = np.random.default_rng(seed).normal(size=(n, d)) * np.linspace(0.5, 1.5, d)
    if lies:
        rows[:lies] = 2.5
    return rows


@settings(max_examples=80)
@given(st.integers(1, 14), st.integers(1, 9), st.integers(0, 6), st.integers(0, 10_000))
def test_the_weights_are_those_of_the_plain_definition(n, d, f, seed):
    f = min(f, (n - 1) // 2)
    rows = random_rows(n, d, seed, lies=f)
    weights = screen(rows @ rows.T, f=f)
    assert weights.min() >= 0
    assert weights.sum() == pytest.approx(1.0)
    assert np.allclose(weights, plain_weights(rows, f), atol=1e-7)


@settings(max_examples=60)
@given(st.integers(3, 14), st.integers(2, 9), st.integers(0, 10_000))
def test_it_is_byzfls_converged_description_unless_one_that_is_out_is_furthest(n, d, seed):
    f = (n - 1) // 3
    rows = random_rows(n, d, seed, lies=f)
    try:
        theirs = plain_passes(rows, f, among_all=True)
    except NeverEnds:
        assume(False)
    ours = plain_passes(rows, f)
    assume(len(ours) == len(theirs))
    assume(np.allclose([w for _, w in ours], [w for _, w in theirs], atol=1e-9))
    result = caf(torch.from_numpy(rows), f=f).numpy()
    expected = np.array(min(theirs, key=lambda one: one[0])[1]) @ rows
    assert np.allclose(result, expected, atol=1e-7)


def test_a_far_update_that_is_out_does_not_hold_the_filter_up():
    # Both lies go at once; sought among all, the furthest would ever after be one of them.
    rows = random_rows(9, 3, 1)
    rows[:2] = [[1e6, 0.0, 1e3], [0.0, 1e6, 1e3]]
    with pytest.raises(NeverEnds):
        plain_passes(rows, 3, among_all=True)
    weights = screen(rows @ rows.T, f=3)
    assert weights[:2].tolist() == [0.0, 0.0]


def test_copies_of_a_lie_that_hides_in_every_coordinate_lose_their_weight():
    honest = torch.randn(20, 2_000, generator=torch.Generator().manual_seed(0))
    lie = honest.mean(dim=0) - 1.5 * honest.std(dim=0)
    updates = torch.cat([honest, lie.expand(9, -1)])
    weights = screen(gram(updates), f=9)
    assert weights[20:].sum() < 0.02
    assert (caf(updates, f=9) - honest.mean(dim=0)).norm() < 0.1 * (lie - honest.mean(dim=0)).norm()


@settings(max_examples=40)
@given(st.integers(1, 6), st.integers(1, 12), st.floats(0, 6), st.integers(0, 10_000))
def test_many_at_once_are_as_one_at_a_time(count, n, f, seed):
    generator = np.random.default_rng(seed)
    grams = np.stack([r @ r.T for r in generator.normal(size=(count, n, 5))])
    present = generator.integers(0, 2, size=(count, n))
    together = screen(grams, f=f, present=present)
    for one, here, weights in zip(grams, present, together, strict=True):
        assert np.allclose(screen(one, f=f, present=here), weights, rtol=0, atol=1e-12)
    assert np.allclose(screen(grams, f=f)[0], screen(grams[0], f=f), rtol=0, atol=1e-12)
    shared = screen(grams, f=f, present=present[0])
    assert np.allclose(shared[-1], screen(grams[-1], f=f, present=present[0]), rtol=0, atol=1e-12)


@given(st.integers(1, 12), st.integers(0, 5), st.integers(0, 10_000))
def test_who_is_absent_might_as_well_not_be_there(n, f, seed):
    rows = random_rows(n, 4, seed)
    here = np.random.default_rng(seed).integers(0, 2, size=n).astype(bool)
    weights = screen(rows @ rows.T, f=f, present=here)
    assert weights[~here].tolist() == [0.0] * int((~here).sum())
    if here.any():
        alone = rows[here]
        assert np.allclose(weights[here], screen(alone @ alone.T, f=f), atol=1e-9)
    else:
        assert not weights.any()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e200])
def test_one_that_is_not_finite_is_one_of_the_f(bad):
    rows = random_rows(9, 4, 3)
    spoilt = np.vstack([rows, np.full(4, bad)])
    with np.errstate(all="ignore"):
        weights = screen(spoilt @ spoilt.T, f=3)
    assert weights[9] == 0
    assert np.allclose(weights[:9], screen(rows @ rows.T, f=2), atol=1e-12)


@given(st.integers(1, 13), st.integers(0, 10_000))
def test_whatever_is_sent_there_are_weights_and_no_warning(n, seed):
    generator = np.random.default_rng(seed)
    rows = generator.normal(size=(n, 4)) * 10.0 ** generator.integers(-160, 150, size=(n, 1))
    if seed % 2:
        rows[generator.integers(0, n)] = [math.nan, math.inf, 1e308, -math.inf]
    with np.errstate(all="ignore"):
        products = rows @ rows.T
    weights = screen(products, f=generator.uniform(0, n / 2))
    assert weights.min() >= 0
    if n > 1:
        assert weights.sum() == pytest.approx(1.0)


@pytest.mark.parametrize("n", [1, 2, 7])
@pytest.mark.parametrize("value", [0.0, 0.1, 1e-200, 1e140])
def test_equal_updates_get_equal_weights(n, value):
    rows = np.full((n, 3), value)
    assert np.allclose(screen(rows @ rows.T, f=n / 3), 1 / n)


def test_a_spread_that_is_rounding_is_none():
    # Ten equal updates and one lie: once it is out, what is left of the variance decides nothing.
    rows = np.tile(random_rows(1, 50, 5), (11, 1))
    rows[4] += 3.0
    weights = screen(rows @ rows.T, f=4)
    assert np.allclose(weights, np.where(np.arange(11) == 4, 0.0, 0.1), atol=1e-12)


def test_twins_have_equal_weights_and_go_out_together():
    rows = np.vstack([random_rows(8, 6, 2), np.full((3, 6), 9.0)])
    weights = screen(rows @ rows.T, f=3)
    assert weights[8:].tolist() == [0.0] * 3
    doubled = np.vstack([rows[:5], rows[:5]])
    weights = screen(doubled @ doubled.T, f=2)
    assert np.allclose(weights[:5], weights[5:], atol=1e-12)


@pytest.mark.parametrize("f", [5.0, 7.5, 20.0])
def test_more_lies_than_there_may_be_still_give_weights(f):
    rows = random_rows(10, 4, 6)
    weights = screen(rows @ rows.T, f=f)
    assert weights.min() >= 0
    assert weights.sum() == pytest.approx(1.0)


def test_what_is_no_square_matrix_is_misuse():
    for wrong in (np.zeros(3), np.zeros((2, 3)), np.zeros((1, 1, 2, 2))):
        with pytest.raises(MisuseError, match="screen needs"):
            screen(wrong, f=1)
    with pytest.raises(MisuseError, match="f >= 0"):
        screen(np.eye(2), f=-1)


@pytest.mark.parametrize("d", [1, 7, 50_000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_inner_products_are_those_of_float64(d, dtype):
    updates = torch.randn(9, d, generator=torch.Generator().manual_seed(1)).to(dtype)
    rows = updates.double().numpy()
    assert np.allclose(gram(updates), rows @ rows.T, rtol=1e-12, atol=1e-9)


def test_the_number_of_threads_changes_no_bit_of_weights_or_products():
    updates = torch.randn(20, 60_000, generator=torch.Generator().manual_seed(4))
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append([gram(updates).tobytes(), caf(updates, f=6).numpy().tobytes()])
    finally:
        torch.set_num_threads(before)
    assert found[0] == found[1] == found[2]


def test_products_and_filter_take_far_less_memory_than_the_updates():
    updates = torch.randn(20, 400_000, generator=torch.Generator().manual_seed(4))
    size = updates.nbytes
    for work in (lambda: gram(updates), lambda: caf(updates, f=6)):
        work()
        tracemalloc.start()
        work()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < size / 4


def plain_dnc(rows, f, coordinates, *, discard=1.0):
    """Which rows stay, by the singular value decomposition of each choice of coordinates."""
    n = len(rows)
    times = [0] * n
    for looked_at in coordinates:
        part = rows[:, looked_at]
        away = part - part.mean(axis=0)
        direction = np.linalg.svd(away, full_matrices=False)[2][0]
        scores = [float(one @ direction) ** 2 for one in away]
        for i in sorted(range(n), key=lambda i: scores[i])[: n - math.floor(discard * f)]:
            times[i] += 1
    return tuple(i for i in range(n) if times[i] == max(times))


def context(seed=0):
    return RuleContext(1, torch.zeros(1), 0.1, stream(seed, "rule", 1))


@settings(max_examples=80)
@given(st.integers(3, 14), st.integers(2, 30), st.integers(0, 10_000))
def test_dnc_drops_those_furthest_along_the_top_singular_vector(n, d, seed):
    f = (n - 1) // 2
    rows = random_rows(n, d, seed, lies=f // 2)
    found = dnc_choice(torch.from_numpy(rows), f=f)
    assert found == plain_dnc(rows, f, [np.arange(d)])
    result = dnc(torch.from_numpy(rows), f=f)
    assert np.allclose(result.numpy(), rows[list(found)].mean(axis=0))


@pytest.mark.parametrize("iterations", [1, 2, 5])
@pytest.mark.parametrize("discard", [0.5, 1.0, 1.5])
def test_dnc_looks_at_coordinates_that_are_drawn_from_the_context(iterations, discard):
    rows = random_rows(14, 60, 3, lies=3)
    parameters = {"iterations": iterations, "coordinates": 7, "discard": discard}
    source = context().source
    coordinates = [draw_coordinates(source, 60, 7) for _ in range(iterations)]
    assert all(len(set(one.tolist())) == 7 for one in coordinates)
    expected = plain_dnc(rows, 5, coordinates, discard=discard)
    updates = torch.from_numpy(rows)
    assert dnc_choice(updates, f=5, context=context(), **parameters) == expected
    rule = RULES["dnc"].with_parameters(**parameters)
    assert tuple(rule.choice(updates, f=5, context=context())) == expected
    assert torch.allclose(
        rule(updates, f=5, context=context()), updates[list(expected)].mean(dim=0)
    )


def test_draws_take_every_coordinate_at_most_once_and_all_alike():
    counts = np.zeros(20)
    for seed in range(2000):
        drawn = draw_coordinates(stream(seed), 20, 5)
        assert sorted(set(drawn.tolist())) == drawn.tolist()
        counts[drawn] += 1
    assert counts.min() > 400
    assert counts.max() < 600
    assert draw_coordinates(stream(0), 4, 9).tolist() == [0, 1, 2, 3]


def test_dnc_leaves_rows_out_that_are_not_finite_in_coordinates_it_does_not_see():
    updates = torch.from_numpy(random_rows(12, 500, 1))
    updates[3, :], updates[5, 7] = math.nan, math.inf
    for seed in range(5):
        chosen = dnc_choice(updates, f=3, context=context(seed), coordinates=2)
        assert len(chosen) == 9
        assert not {3, 5} & set(chosen)
    assert dnc_choice(torch.full((5, 2), math.nan), f=2) == (0, 1, 2)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"iterations": 0}, "dnc needs iterations >= 1 and coordinates >= 1; got 0 and 10000"),
        ({"coordinates": 0}, "dnc needs iterations >= 1 and coordinates >= 1; got 1 and 0"),
        ({"discard": -1.0}, "dnc needs discard >= 0; got -1.0"),
        ({"discard": math.nan}, "dnc needs discard >= 0; got nan"),
        ({"discard": 9.0}, "dnc needs n > 9f updates; got n=5, f=2"),
    ],
)
def test_parameters_with_which_dnc_cannot_work_are_refused(parameters, message):
    with pytest.raises(UserError) as caught:
        dnc(torch.from_numpy(random_rows(5, 3, 0)), f=2, **parameters)
    assert str(caught.value) == message
