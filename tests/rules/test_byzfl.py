"""Our rules beside ByzFL 0.0.11's, and where the two differ.

ByzFL is only in the environment of the benchmarks: `make peers` runs this file there. Everywhere
else our rules are held against its formulas, and what needs ByzFL itself is left out.
"""

import importlib.util
import itertools
import warnings

import numpy as np
import pytest
import torch
from tests.rules import byzfl_formulas as formulas

from holdout import rules
from holdout.rules import RuleContext
from holdout.rules.subsets import mda_choice, smea_choice
from holdout.seeds import stream

HERE = importlib.util.find_spec("byzfl") is not None
with_byzfl = pytest.mark.skipif(not HERE, reason="ByzFL is in the benchmarks' environment only")
N, D, F = 11, 25, 3
RADIUS = 5.0
seeds = pytest.mark.parametrize("seed", range(6))


def rows(seed, n=N, d=D):
    """Noise around a common mean, and two rows that stand out."""
    x = np.random.default_rng(seed).normal(size=(n, d)) + 0.3
    x[1] *= 3
    x[4] += 1
    return x


def byzfl(name, **options):
    """One of its classes; numpy warns about its imports."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return getattr(importlib.import_module("byzfl"), name)(**options)


def tensor(x):
    return torch.from_numpy(x.copy())


SAME = {
    "Average": (lambda x: rules.mean(x, f=F), formulas.average, {}),
    "Median": (lambda x: rules.median(x, f=F), formulas.median, {}),
    "TrMean": (
        lambda x: rules.trimmed_mean(x, f=F),
        lambda x: formulas.trimmed_mean(x, F),
        {"f": F},
    ),
    "Meamed": (
        lambda x: rules.mean_around_median(x, f=F),
        lambda x: formulas.mean_around_median(x, F),
        {"f": F},
    ),
    "CenteredClipping": (
        lambda x: rules.centered_clipping(x, f=F, radius=RADIUS, iterations=3),
        lambda x: formulas.centered_clipping(x, np.zeros(D), tau=RADIUS, steps=3),
        {"L": 3, "tau": RADIUS},
    ),
    "MoNNA": (
        lambda x: rules.monna(x, f=F, pivot=2),
        lambda x: formulas.monna(x, F, pivot=2),
        {"f": F, "idx": 2},
    ),
    "NNM": (lambda x: rules.nnm(x, f=F), lambda x: formulas.nnm(x, F), {"f": F}),
    "Clipping": (
        lambda x: rules.clipping(x, f=F, radius=RADIUS),
        lambda x: formulas.clipping(x, radius=RADIUS),
        {"c": RADIUS},
    ),
    "ARC": (lambda x: rules.arc(x, f=F), lambda x: formulas.arc(x, F), {"f": F}),
}
"""ByzFL's name -> our rule, its formula, its options: what computes the same."""

DIFFERENT = {
    "Krum": (lambda x: formulas.krum(x, F), {"f": F}),
    "MultiKrum": (lambda x: formulas.multi_krum(x, F), {"f": F}),
    "GeometricMedian": (formulas.geometric_median, {}),
    "MDA": (lambda x: formulas.mda(x, F), {"f": F}),
}


@seeds
@pytest.mark.parametrize("name", SAME)
def test_ours_is_what_byzfls_formula_gives(name, seed):
    ours, formula, _ = SAME[name]
    x = rows(seed)
    assert np.allclose(ours(tensor(x)).numpy(), formula(x), atol=1e-9)


@with_byzfl
@seeds
@pytest.mark.parametrize("name", [*SAME, *DIFFERENT])
def test_byzfl_computes_what_its_formula_says(name, seed):
    *_, formula, options = (SAME | DIFFERENT)[name]
    x = rows(seed)
    assert np.allclose(byzfl(name, **options)(x.copy()), formula(x), atol=1e-9)


@seeds
def test_krum_counts_one_neighbour_less_than_byzfls(seed):
    x = rows(seed)
    ours, multi = rules.krum(tensor(x), f=F).numpy(), rules.multi_krum(tensor(x), f=F).numpy()
    assert np.allclose(ours, formulas.krum(x, F, neighbours=N - F - 2))
    assert np.allclose(multi, formulas.multi_krum(x, F, neighbours=N - F - 2))


def test_one_neighbour_more_leads_byzfls_krum_to_another_choice():
    found = [
        seed
        for seed in range(40)
        if not np.allclose(
            rules.krum(tensor(rows(seed)), f=F).numpy(), formulas.krum(rows(seed), F)
        )
    ]
    assert found


@seeds
def test_our_geometric_median_is_nearer_to_all_than_byzfls_three_steps(seed):
    x = rows(seed)

    def total(point):
        return np.linalg.norm(x - point, axis=1).sum()

    ours = rules.geometric_median(tensor(x), f=F).numpy()
    assert total(ours) < total(formulas.geometric_median(x))


@seeds
def test_mda_has_byzfls_diameter_and_a_second_distance_that_is_no_larger(seed):
    x = rows(seed)
    between = formulas.distances(x)
    subsets = list(itertools.combinations(range(N), N - F))
    theirs = min(subsets, key=lambda chosen: formulas.diameter(between, chosen))

    def lengths(chosen):
        return sorted((between[i, j] for i, j in itertools.combinations(chosen, 2)), reverse=True)

    ours = mda_choice(tensor(x), f=F)
    assert lengths(ours)[0] == pytest.approx(lengths(theirs)[0])
    assert lengths(ours) <= [*lengths(theirs)] or np.allclose(lengths(ours), lengths(theirs))
    if len([s for s in subsets if formulas.diameter(between, s) <= lengths(theirs)[0]]) == 1:
        assert ours == theirs


def variance(x, chosen):
    """The largest eigenvalue of the covariance of some rows."""
    away = x[list(chosen)] - x[list(chosen)].mean(axis=0)
    return float(np.linalg.eigvalsh(away.T @ away)[-1])


@seeds
def test_smea_is_byzfls_formula_once_its_power_iteration_starts_at_the_answer(seed):
    x = rows(seed, n=8, d=6)
    starts = []
    for chosen in itertools.combinations(range(8), 6):
        away = x[list(chosen)] - x[list(chosen)].mean(axis=0)
        starts.append(np.linalg.eigh(away.T @ away)[1][:, -1])
    ours = rules.smea(tensor(x), f=2).numpy()
    assert np.allclose(ours, formulas.smea(x, 2, starts=starts))


@with_byzfl
def test_byzfls_smea_varies_from_call_to_call_and_never_varies_less_than_ours():
    x = rows(0, n=8, d=6)
    ours = variance(x, smea_choice(tensor(x), f=2))
    subsets = list(itertools.combinations(range(8), 6))
    means = np.stack([x[list(chosen)].mean(axis=0) for chosen in subsets])
    smea, found = byzfl("SMEA", f=2), set()
    for seed in range(30):
        np.random.seed(seed)  # noqa: NPY002
        found.add(int(np.linalg.norm(means - smea(x), axis=1).argmin()))
    assert len(found) > 1
    assert all(variance(x, subsets[place]) >= ours - 1e-9 for place in found)


@with_byzfl
def test_byzfls_caf_varies_from_call_to_call_and_ours_does_not():
    x = rows(0)
    caf, found = byzfl("CAF", f=F), set()
    for seed in range(10):
        np.random.seed(seed)  # noqa: NPY002
        found.add(caf(x).tobytes())
    assert len(found) > 1
    assert len({rules.caf(tensor(x), f=F).numpy().tobytes() for _ in range(3)}) == 1


class Order:
    """A source that hands out a known order."""

    def __init__(self, order):
        self.order = order

    def sample(self, items, count):
        assert (list(items), count) == (list(range(len(self.order))), len(self.order))
        return self.order


@seeds
@pytest.mark.parametrize("size", [1, 2, 3, 11, 12])
def test_buckets_are_byzfls_in_the_same_order(seed, size):
    x = rows(seed)
    order = np.random.default_rng(seed).permutation(N).tolist()
    context = RuleContext(1, torch.zeros(1), 0.1, Order(order))
    ours = rules.bucketing(tensor(x), f=F, context=context, size=size).numpy()
    assert np.allclose(ours, formulas.bucketing(x, size=size, order=order))


@with_byzfl
@seeds
@pytest.mark.parametrize("size", [1, 2, 3, 11])
def test_byzfls_buckets_are_the_means_of_an_order_of_its_own(seed, size):
    x = rows(seed)
    np.random.seed(seed)  # noqa: NPY002
    theirs = byzfl("Bucketing", s=size)(x)
    np.random.seed(seed)  # noqa: NPY002
    order = np.random.permutation(N).tolist()  # noqa: NPY002
    assert np.allclose(theirs, formulas.bucketing(x, size=size, order=order))


def test_adaptive_clipping_counts_exactly_where_byzfls_floats_fall_short():
    # 2 (33 / 242) (242 - 33) is 57; in floats it is a little less.
    x = rows(0, n=242)
    assert formulas.arc_count(242, 33) == 56
    ours = rules.arc(tensor(x), f=33).numpy()
    assert np.allclose(ours, formulas.arc(x, 33, count=57))
    assert not np.allclose(ours, formulas.arc(x, 33))


@with_byzfl
@pytest.mark.parametrize(("name", "options"), [("Clipping", {"c": 1.0}), ("ARC", {"f": F})])
def test_byzfls_clipping_changes_its_input_and_ours_does_not(name, options):
    x = tensor(rows(0)).float()
    theirs = x.clone()
    byzfl(name, **options)(theirs)
    assert not torch.equal(theirs, x)
    ours = x.clone()
    (rules.arc(ours, f=F), rules.clipping(ours, f=F, radius=1.0))
    assert torch.equal(ours, x)


@with_byzfl
def test_centered_clipping_keeps_what_byzfls_keeps_and_can_be_given_a_start():
    theirs = byzfl("CenteredClipping", L=1, tau=RADIUS)
    context = RuleContext(1, torch.zeros(1), 0.1, stream(0))
    for seed in range(4):
        x = rows(seed)
        ours = rules.centered_clipping(tensor(x), f=F, context=context, radius=RADIUS)
        assert np.allclose(ours.numpy(), theirs(x))
    with pytest.raises(TypeError, match="m must be of type"):
        byzfl("CenteredClipping", m=np.zeros(D))
    start = RuleContext(1, torch.zeros(1), 0.1, stream(0), {"centre": torch.ones(D)})
    assert rules.centered_clipping(tensor(rows(0)), f=F, context=start).isfinite().all()
