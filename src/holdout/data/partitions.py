"""Who holds which training rows: pure index arithmetic.

In the first four each worker draws from a stream of its own, so its rows do not depend on how many
others there are, and two workers may hold the same row. The next three divide rows among all
workers, and no two hold the same. Rows never repeat inside a worker.

    iid        any rows
    balanced   equally many rows of every class
    dirichlet  a mix of labels of its own, drawn from Dirichlet(alpha): small alpha, few labels
    shards     a few labels of its own, equally many rows of each
    gamma      a share gamma of its rows at random, the others from a piece of all rows by label
    extreme    a piece of all rows by label: `gamma` with gamma = 0
    quantity   any rows, but unequally many: sizes drawn from Dirichlet(alpha)
    file       what a file says
    package.module:name   what custom code says

`gamma` is the gamma-similarity of ByzFL (arXiv 2505.24802).
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from holdout.custom_code import guard
from holdout.data.partition_files import checked_shards, read_partition
from holdout.dotted import resolve
from holdout.errors import DataError
from holdout.seeds import stream
from holdout.tracebacks import with_place

Integers = NDArray[np.int64]

PARTITIONS: Mapping[str, str] = MappingProxyType(
    {
        "iid": "any rows",
        "balanced": "equally many rows of every class",
        "dirichlet": "a mix of labels of its own, drawn from Dirichlet(alpha)",
        "shards": "labels_per_worker labels of its own, equally many rows of each",
        "gamma": "a share gamma of its rows at random, the rest from a piece of all rows by label",
        "extreme": "a piece of all rows sorted by label",
        "quantity": "any rows, unequally many: sizes drawn from Dirichlet(alpha)",
        "file": "the rows that data.partition_file lists",
    }
)
"""What a worker holds, by the name that a config gives in `data.partition`."""

KINDS = tuple(PARTITIONS)
DIVIDING = ("gamma", "extreme", "quantity")
"""Those in which no two workers hold the same row."""
UNEQUAL = ("quantity", "file")
"""Those in which workers may hold unequally many rows; custom ones may too."""


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
    gamma: float = 0.5,
    file: Path | None = None,
) -> list[Integers]:
    """The row indices of each worker: different ones, `samples_per_worker` of them, shuffled.

    Where sizes are unequal, `samples_per_worker` is their mean; a file or custom code sets its own.

    Args:
        kind: How labels are spread over the workers: one of `KINDS`, or "package.module:name", a
            function that is called with the labels, the number of workers and a numpy generator,
            and returns the row numbers of each worker.
        labels: The label of every training row.
        workers: How many workers there are.
        samples_per_worker: How many rows each holds.
        classes: How many labels there are.
        seed: Decides every draw.
        alpha: For dirichlet: the smaller, the fewer labels a worker holds. For quantity: the
            smaller, the more unequal the sizes.
        labels_per_worker: For shards: how many labels a worker holds.
        gamma: For gamma: the share of a worker's rows that is drawn at random.
        file: For file: which file.

    >>> rows = partition(
    ...     "iid", np.array([0, 1] * 10), workers=3, samples_per_worker=5, classes=2, seed=0
    ... )
    >>> [len(set(held.tolist())) for held in rows]
    [5, 5, 5]
    """
    labels = np.asarray(labels)
    if ":" in kind or kind == "file":
        _check_labels(labels, workers=workers, classes=classes)
        if kind != "file":
            return _custom(kind, labels, workers, seed)
        if file is None:
            raise DataError("the partition 'file' needs a file; data.partition_file names it")
        return read_partition(file, workers=workers, rows=len(labels))
    _check(labels, workers=workers, samples=samples_per_worker, classes=classes)
    if kind in DIVIDING:
        _check_division(kind, len(labels), workers, samples_per_worker)
        rng = _generator(seed)
        if kind == "quantity":
            return _divided_unequally(rng, len(labels), workers, samples_per_worker, alpha)
        share = gamma if kind == "gamma" else 0.0
        return _divided(rng, labels, workers, samples_per_worker, share)
    sizes = np.bincount(labels.astype(np.int64), minlength=classes).astype(np.int64)
    rows = np.split(np.argsort(labels, kind="stable"), np.cumsum(sizes)[:-1])
    counts = _counts_of(
        kind, sizes, samples_per_worker, alpha=alpha, labels_per_worker=labels_per_worker
    )
    held = []
    for worker in range(workers):
        rng = _generator(seed, worker)
        if counts is None:
            held.append(rng.choice(len(labels), samples_per_worker, replace=False))
        else:
            taken = zip(rows, counts(rng), strict=True)
            chosen = [rng.choice(of_class, count, replace=False) for of_class, count in taken]
            held.append(rng.permutation(np.concatenate(chosen)))
    return held


def samples_max(
    kind: str, labels: NDArray[np.integer], *, workers: int, classes: int, labels_per_worker: int
) -> int:
    """The most rows that each worker can hold; the least of them, if the labels drawn decide.

    >>> samples_max(
    ...     "extreme", np.zeros(100, int), workers=30, classes=2, labels_per_worker=2
    ... )
    3
    """
    if kind in DIVIDING:
        return len(labels) // workers
    if kind == "shards":
        sizes = np.bincount(labels.astype(np.int64), minlength=classes)
        return int(np.sort(sizes[sizes > 0])[:labels_per_worker].sum())
    return len(labels)


def _generator(seed: int, *worker: int) -> np.random.Generator:
    return np.random.Generator(
        np.random.Philox(stream(seed, "partition", *worker).generator_seed())
    )


def _divided(
    rng: np.random.Generator,
    labels: NDArray[np.integer],
    workers: int,
    samples: int,
    gamma: float,
) -> list[Integers]:
    """A share gamma of the rows at random; the others by label, in one piece for each worker."""
    if not 0 <= gamma <= 1:
        raise DataError(f"gamma needs a share from 0 to 1; got gamma={gamma}")
    mixed = round(gamma * samples)
    order = rng.permutation(len(labels))[: workers * samples]
    random, rest = np.split(order, [workers * mixed])
    by_label = rest[np.argsort(labels[rest], kind="stable")]
    parts = zip(np.split(random, workers), np.split(by_label, workers), strict=True)
    return [rng.permutation(np.concatenate(part)) for part in parts]


def _divided_unequally(
    rng: np.random.Generator, rows: int, workers: int, samples: int, alpha: float
) -> list[Integers]:
    """Any rows, in pieces whose sizes are drawn; everybody gets at least one."""
    _check_alpha("quantity", alpha)
    shares = rng.dirichlet(np.full(workers, alpha))
    if shares.sum() == 0:  # So large an alpha that the draw overflows: as good as equal.
        shares = np.ones(workers)
    sizes = 1 + _apportioned(workers * (samples - 1), shares)
    order = rng.permutation(rows)[: workers * samples]
    return np.split(order, np.cumsum(sizes)[:-1])


def _custom(name: str, labels: NDArray[np.integer], workers: int, seed: int) -> list[Integers]:
    function = resolve(name)
    if not callable(function):
        raise DataError(f"{name}: a partition must be callable; got {type(function).__name__}")
    made = guard(
        f"the partition {name}",
        lambda: function(labels.copy(), workers, _generator(seed)),
        function,
    )
    try:
        return checked_shards(made, workers=workers, rows=len(labels), name=name)
    except DataError as error:
        raise DataError(with_place(str(error), error, function)) from error


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
            _check_alpha("dirichlet", alpha)
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
    _check_labels(labels, workers=workers, classes=classes)
    if not 1 <= samples <= len(labels):
        raise DataError(
            "a worker holds between 1 and all of the training rows; "
            f"got samples_per_worker={samples} of {len(labels)} rows"
        )


def _check_division(kind: str, rows: int, workers: int, samples: int) -> None:
    if workers * samples > rows:
        raise DataError(
            f"{kind} needs samples_per_worker different rows for each worker; "
            f"got samples_per_worker={samples}, {workers} workers, {rows} rows"
        )


def _check_alpha(kind: str, alpha: float) -> None:
    if not 0 < alpha < np.inf:
        raise DataError(f"{kind} needs a finite alpha > 0; got alpha={alpha}")


def _check_labels(labels: NDArray[np.integer], *, workers: int, classes: int) -> None:
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise DataError(f"labels must be whole numbers (n,); got {labels.dtype} {labels.shape}")
    if workers < 1:
        raise DataError(f"a partition needs at least one worker; got workers={workers}")
    if not len(labels):
        raise DataError("a partition needs at least one row; got none")
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
