"""Who holds which training rows: pure index arithmetic.

Each worker draws from a stream of its own, so its rows do not depend on how many others there
are. Rows never repeat inside a worker; two workers may hold the same row.

    iid        any rows
    balanced   equally many rows of every class
    dirichlet  a mix of labels of its own, drawn from Dirichlet(alpha): small alpha, few labels
    shards     a few labels of its own, equally many rows of each
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from holdout.errors import DataError
from holdout.seeds import stream

Integers = NDArray[np.int64]

KINDS = ("iid", "balanced", "dirichlet", "shards")


def partition(
    kind: str,
    labels: NDArray[np.integer],
    *,
    workers: int,
    samples_per_worker: int,
    classes: int,
    seed: int,
    alpha: float = 0.5,
    labels_per_worker: int = 2,
) -> list[Integers]:
    """The row indices of each worker, exactly `samples_per_worker` different ones, shuffled.

    Args:
        kind: iid, balanced, dirichlet or shards: how labels are spread over the workers.
        labels: The label of every training row.
        workers: How many workers there are.
        samples_per_worker: How many rows each holds.
        classes: How many labels there are.
        seed: Decides every draw.
        alpha: For dirichlet: the smaller, the fewer labels a worker holds.
        labels_per_worker: For shards: how many labels a worker holds.

    >>> rows = partition(
    ...     "iid", np.array([0, 1] * 10), workers=3, samples_per_worker=5, classes=2, seed=0
    ... )
    >>> [len(set(held.tolist())) for held in rows]
    [5, 5, 5]
    """
    labels = np.asarray(labels)
    _check(labels, workers=workers, samples=samples_per_worker, classes=classes)
    sizes = np.bincount(labels.astype(np.int64), minlength=classes).astype(np.int64)
    rows = np.split(np.argsort(labels, kind="stable"), np.cumsum(sizes)[:-1])
    counts = _counts_of(
        kind, sizes, samples_per_worker, alpha=alpha, labels_per_worker=labels_per_worker
    )
    held = []
    for worker in range(workers):
        rng = np.random.Generator(
            np.random.Philox(stream(seed, "partition", worker).generator_seed())
        )
        if counts is None:
            held.append(rng.choice(len(labels), samples_per_worker, replace=False))
        else:
            taken = zip(rows, counts(rng), strict=True)
            chosen = [rng.choice(of_class, count, replace=False) for of_class, count in taken]
            held.append(rng.permutation(np.concatenate(chosen)))
    return held


def _counts_of(
    kind: str, sizes: Integers, samples: int, *, alpha: float, labels_per_worker: int
) -> Callable[[np.random.Generator], Integers] | None:
    """How a worker draws the number of rows it takes of each class; None if it does not (iid)."""
    match kind:
        case "iid":
            return None
        case "balanced":
            return lambda rng: _level(rng, sizes, samples)
        case "dirichlet":
            if not 0 < alpha < np.inf:
                raise DataError(f"dirichlet needs a finite alpha > 0; got alpha={alpha}")
            return lambda rng: _mixed(rng.dirichlet(np.full(len(sizes), alpha)), sizes, samples)
        case "shards":
            _check_shards(sizes, samples, labels_per_worker)
            return lambda rng: _sharded(rng, sizes, samples, labels_per_worker)
        case _:
            raise DataError(f'data.partition must be one of {", ".join(KINDS)}; got "{kind}"')


def _level(rng: np.random.Generator, sizes: Integers, samples: int) -> Integers:
    """Counts as equal as the classes' sizes allow; which classes give one more is drawn."""
    counts = np.zeros_like(sizes)
    while left := samples - int(counts.sum()):
        # All classes with rows left hold the same count so far.
        wanting = np.flatnonzero(counts < sizes)
        share = left // len(wanting)
        if share == 0:
            counts[rng.choice(wanting, left, replace=False)] += 1
        else:
            counts[wanting] = np.minimum(counts[wanting] + share, sizes[wanting])
    return counts


def _mixed(mix: NDArray[np.float64], sizes: Integers, samples: int) -> Integers:
    """Counts in proportion to `mix`; what a class lacks comes from the others, in proportion."""
    counts = np.zeros_like(sizes)
    while left := samples - int(counts.sum()):
        weights = np.where(counts < sizes, mix, 0.0)
        if weights.sum() == 0:  # The mix wants nothing of the classes that have rows left.
            weights = (sizes - counts).astype(np.float64)
        counts = np.minimum(counts + _apportioned(left, weights), sizes)
    return counts


def _apportioned(total: int, weights: NDArray[np.float64]) -> Integers:
    """`total` seats by weight, by the method of largest remainders."""
    quotas = total * (weights / weights.sum())
    seats: Integers = np.floor(quotas).astype(np.int64)
    order = np.argsort(seats - quotas, kind="stable")
    seats[order[: total - int(seats.sum())]] += 1
    return seats


def _sharded(
    rng: np.random.Generator, sizes: Integers, samples: int, labels_per_worker: int
) -> Integers:
    chosen = rng.choice(np.flatnonzero(sizes), labels_per_worker, replace=False)
    kept = np.zeros_like(sizes)
    kept[chosen] = sizes[chosen]
    return _level(rng, kept, samples)


def _check(labels: NDArray[np.integer], *, workers: int, samples: int, classes: int) -> None:
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise DataError(f"labels must be whole numbers (n,); got {labels.dtype} {labels.shape}")
    if workers < 1:
        raise DataError(f"a partition needs at least one worker; got workers={workers}")
    if not 1 <= samples <= len(labels):
        raise DataError(
            "a worker holds between 1 and all of the training rows; "
            f"got samples_per_worker={samples} of {len(labels)} rows"
        )
    if labels.min() < 0 or labels.max() >= classes:
        found = labels.min() if labels.min() < 0 else labels.max()
        raise DataError(f"labels must be from 0 to classes - 1; got {found}, classes={classes}")


def _check_shards(sizes: Integers, samples: int, labels_per_worker: int) -> None:
    # Any labels a worker may draw must have enough rows; otherwise the seed would decide whether
    # this is an error.
    present = np.sort(sizes[sizes > 0])
    if not 1 <= labels_per_worker <= len(present):
        raise DataError(
            "shards needs 1 <= labels_per_worker <= labels that occur; "
            f"got labels_per_worker={labels_per_worker}, {len(present)} labels"
        )
    if samples < labels_per_worker:
        raise DataError(
            "shards needs samples_per_worker >= labels_per_worker; "
            f"got samples_per_worker={samples}, labels_per_worker={labels_per_worker}"
        )
    fewest = int(present[:labels_per_worker].sum())
    if samples > fewest:
        raise DataError(
            f"shards needs samples_per_worker rows in any {labels_per_worker} labels; "
            f"got samples_per_worker={samples}, and the rarest have {fewest}"
        )
