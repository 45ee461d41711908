"""What ByzFL 0.0.11 computes, as plain numpy formulas, its departures from the papers included.

`test_byzfl.py` holds our rules against these formulas, and these formulas against ByzFL itself
where it is installed.
"""

import itertools

import numpy as np


def average(x):
    return x.mean(axis=0)


def median(x):
    return np.quantile(x, 0.5, axis=0)


def trimmed_mean(x, f):
    return np.sort(x, axis=0)[f : len(x) - f].mean(axis=0)


def mean_around_median(x, f):
    nearest = np.argsort(np.abs(x - np.median(x, axis=0)), axis=0, kind="stable")[: len(x) - f]
    return np.take_along_axis(x, nearest, axis=0).mean(axis=0)


def distances(x):
    return np.array([[np.linalg.norm(a - b) for b in x] for a in x])


def krum_scores(x, neighbours):
    """The mean squared distance to the nearest others."""
    return (np.sort(distances(x), axis=1)[:, 1 : neighbours + 1] ** 2).mean(axis=1)


def krum(x, f, *, neighbours=None):
    """Departs: n - f - 1 neighbours, where Blanchard et al. have n - f - 2."""
    return x[krum_scores(x, neighbours or len(x) - f - 1).argmin()]


def multi_krum(x, f, *, neighbours=None):
    best = np.argsort(krum_scores(x, neighbours or len(x) - f - 1), kind="stable")[: len(x) - f]
    return x[best].mean(axis=0)


def geometric_median(x, *, nu=0.1, steps=3):
    """Departs: three smoothed steps from zero, not converged."""
    z = np.zeros(x.shape[1])
    for _ in range(steps):
        weights = 1 / np.maximum(np.linalg.norm(x - z, axis=1), nu)
        z = (weights[:, None] * x).sum(axis=0) / weights.sum()
    return z


def centered_clipping(x, centre, *, tau, steps):
    for _ in range(steps):
        away = x - centre
        scales = np.minimum(1, tau / np.linalg.norm(away, axis=1))
        centre = centre + (away * scales[:, None]).mean(axis=0)
    return centre


def diameter(between, chosen):
    return max((between[i, j] for i, j in itertools.combinations(chosen, 2)), default=0.0)


def mda(x, f):
    """Of several subsets of least diameter the first in the order of their indices."""
    between = distances(x)
    subsets = itertools.combinations(range(len(x)), len(x) - f)
    return x[list(min(subsets, key=lambda chosen: diameter(between, chosen)))].mean(axis=0)


def monna(x, f, *, pivot):
    away = np.linalg.norm(x - x[pivot], axis=1)
    return x[np.argsort(away, kind="stable")[: len(x) - f]].mean(axis=0)


def top_eigenvalue(rows, start):
    """Departs: one power iteration from a random start."""
    away = rows - rows.mean(axis=0)
    vector = away.T @ (away @ (start / np.linalg.norm(start)))
    return np.linalg.norm(vector)


def smea(x, f, *, starts):
    """`starts` are what the power iterations begin with, one for each subset."""
    subsets = list(itertools.combinations(range(len(x)), len(x) - f))
    values = [top_eigenvalue(x[list(s)], start) for s, start in zip(subsets, starts, strict=True)]
    return x[list(subsets[int(np.argmin(values))])].mean(axis=0)


def nnm(x, f):
    nearest = np.argsort(distances(x), axis=1, kind="stable")[:, : len(x) - f]
    return x[nearest].mean(axis=1)


def bucketing(x, *, size, order):
    groups = [order[i : i + size] for i in range(0, len(x), size)]
    return np.stack([x[group].mean(axis=0) for group in groups])


def clipping(x, *, radius):
    lengths = np.linalg.norm(x, axis=1, keepdims=True)
    return x * np.minimum(1, radius / lengths)


def arc_count(n, f):
    """Departs: floats, which may round to just below a whole number."""
    return int(2 * f / n * (n - f))


def arc(x, f, *, count=None):
    lengths = np.linalg.norm(x, axis=1, keepdims=True)
    clipped = arc_count(len(x), f) if count is None else count
    return x * np.minimum(1, np.sort(lengths, axis=0)[len(x) - 1 - clipped] / lengths)
