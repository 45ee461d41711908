"""SignGuard against its definition in plain loops, and its clustering."""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from holdout.errors import UserError
from holdout.rules import RuleContext, signguard
from holdout.rules.signs import largest_cluster
from holdout.seeds import stream


def random_updates(n=15, d=40, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, d, generator=generator, dtype=torch.float64).to(dtype)


def context(seed=0):
    return RuleContext(1, torch.zeros(1), 0.1, stream(seed, "rule", 1))


def distance(a, b):
    return math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b, strict=True)))


def plain_cluster(points):
    """The mean shift that the docstring describes, point by point."""
    half = math.ceil(len(points) / 2)
    h = sum(sorted(distance(p, q) for q in points)[half - 1] for p in points) / len(points) + 1e-9
    places = []
    for start in points:
        point = start
        for _ in range(300):
            near = [q for q in points if distance(point, q) <= h]
            moved = [sum(q[k] for q in near) / len(near) for k in range(len(point))]
            way, point = distance(moved, point), moved
            if way <= h / 1000:
                break
        places.append(point)
    crowd = [sum(distance(place, q) <= h for q in points) for place in places]
    kept = []
    for i in sorted(range(len(places)), key=lambda i: (-crowd[i], places[i])):
        if all(distance(places[i], other) > h for other in kept):
            kept.append(places[i])
    home = [min(range(len(kept)), key=lambda k: distance(p, kept[k])) for p in points]
    largest = max(range(len(kept)), key=lambda k: (home.count(k), -k))
    return [i for i, k in enumerate(home) if k == largest]


@settings(max_examples=100)
@given(st.integers(1, 14), st.integers(0, 10_000), st.floats(0, 3))
def test_the_cluster_is_that_of_a_plain_mean_shift(n, seed, apart):
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(n, 3))
    points[: n // 3] += apart
    assert largest_cluster(points).tolist() == plain_cluster(points.tolist())


def test_equal_points_are_one_cluster():
    assert largest_cluster(np.full((5, 3), 1 / 3)).tolist() == [0, 1, 2, 3, 4]
    two = np.repeat([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]], [4, 3], axis=0)
    assert largest_cluster(two).tolist() == [0, 1, 2, 3]


def plain_signguard(updates, lower=0.1, upper=3.0):
    """The definition with all coordinates."""
    rows = updates.double()
    norms = [float(row.norm()) for row in rows]
    n = len(norms)
    middle = (sorted(norms)[(n - 1) // 2] + sorted(norms)[n // 2]) / 2
    ordinary = {i for i in range(n) if lower * middle <= norms[i] <= upper * middle}
    shares = [[float((row > 0).double().mean()), float((row == 0).double().mean())] for row in rows]
    points = [[p, z, 1 - p - z] for p, z in shares]
    nudged = [
        [x + 1e-9 * ((7 * i + 3 * k) % 5 - 2) for k, x in enumerate(point)]
        for i, point in enumerate(points)
    ]
    # Shares of few coordinates may lie exactly at the edge of a cluster: there rounding decides.
    assume(plain_cluster(points) == plain_cluster(nudged))
    chosen = sorted(ordinary & set(plain_cluster(points))) or sorted(ordinary)
    clipped = [rows[i] * min(1.0, middle / norms[i]) for i in chosen]
    return (sum(clipped) / len(clipped)).to(updates.dtype)


@settings(max_examples=60)
@given(st.integers(2, 14), st.integers(1, 30), st.integers(0, 10_000))
def test_signguard_equals_its_definition(n, d, seed):
    updates = random_updates(n, d, seed) + 0.3
    updates[: n // 3] *= -4.0 if seed % 2 else -1.0
    result = signguard(updates, f=0, share=1.0)
    assert torch.allclose(result, plain_signguard(updates), atol=1e-5)


def test_flipped_signs_of_honest_length_are_filtered():
    honest = random_updates(11, 400) + 0.5
    updates = torch.cat([honest, -honest[:4]])
    kept = signguard(updates, f=4, share=1.0)
    norms = updates.double().norm(dim=1)
    clipped = honest.double() * (norms.median() / norms[:11]).clamp(max=1)[:, None]
    assert torch.allclose(kept, clipped.mean(dim=0).float(), atol=0.02)


def test_long_and_short_updates_are_filtered():
    updates = random_updates(9, 50).abs()
    updates[0] *= 3.5
    updates[1] *= 0.05
    expected = signguard(torch.cat([updates[2:], updates[2:4]]), f=0, share=1.0)
    assert (signguard(updates, f=2, share=1.0) - expected).abs().max() < 0.5
    wide = signguard(updates, f=2, lower=0.01, upper=9.0, share=1.0)
    assert not torch.allclose(wide, signguard(updates, f=2, share=1.0))


def test_the_coordinates_that_are_looked_at_are_drawn_from_the_context():
    updates = random_updates(12, 300) + 0.05
    drawn = {tuple(signguard(updates, f=3, context=context(seed)).tolist()) for seed in range(8)}
    assert len(drawn) > 1
    again = signguard(updates, f=3, context=context(0))
    assert torch.equal(again, signguard(updates, f=3, context=context(0)))
    assert torch.equal(signguard(updates, f=3), signguard(updates, f=3))


def test_nothing_finite_gives_nothing_finite_and_zeros_give_zeros():
    assert signguard(torch.full((5, 3), math.nan), f=2).isnan().all()
    assert not signguard(torch.zeros(5, 3), f=2).any()
    most = random_updates(5)
    most[:3] = math.inf
    assert signguard(most, f=1).shape == (40,)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"lower": -0.1}, "signguard needs 0 <= lower <= 1 <= upper; got lower=-0.1, upper=3.0"),
        ({"upper": 0.5}, "signguard needs 0 <= lower <= 1 <= upper; got lower=0.1, upper=0.5"),
        ({"upper": math.nan}, "signguard needs upper > 0; got nan"),
        ({"share": 0.0}, "signguard needs 0 < share <= 1; got 0.0"),
        ({"share": 1.5}, "signguard needs 0 < share <= 1; got 1.5"),
    ],
)
def test_parameters_that_make_no_sense_are_refused(parameters, message):
    with pytest.raises(UserError) as caught:
        signguard(random_updates(), f=1, **parameters)
    assert str(caught.value) == message
