"""Which classes voters can judge: those of which their holdout rows hold enough.

A voter judges by `vote.samples` rows, drawn afresh from its shard in each round. It can judge a
class if at least 10 of them are of that class; where a voter judges by fewer than 200 rows, a
twentieth of them is enough. How many of a class are among the rows drawn is hypergeometric, so the
share of voters that can judge it needs no draw: it is the mean, over the honest workers, of the
exact chance that enough are drawn.
"""

from functools import cache
from typing import Any

import numpy as np

from holdout.config import Config
from holdout.curve_rows import NO_ATTACK
from holdout.data.datasets import Dataset
from holdout.experiments.sizes_fit import shards_of
from holdout.voting import draw_byzantine
from holdout.voting.odds import hypergeometric_tail

ROWS_ENOUGH, ENOUGH_OF = 10, 200


def rows_needed(samples: int) -> int:
    """How many of its holdout rows must be of a class for a voter to judge it.

    >>> [rows_needed(samples) for samples in (2000, 200, 199, 40, 10)]
    [10, 10, 10, 2, 1]
    """
    return min(ROWS_ENOUGH, -(-samples * ROWS_ENOUGH // ENOUGH_OF))


def judges_fields(config: Config, dataset: Dataset) -> dict[str, Any]:
    """The field `judges` of `summary.json`: for each seed and class, who can judge it.

    Nothing where targets are real-valued.
    """
    if dataset.classes is None:
        return {}
    labels, classes = dataset.strata()
    samples, shares = config.vote.samples, {}
    needed = rows_needed(samples)

    @cache
    def chance(held: int, of_class: int) -> float:
        drawn = min(samples, held)
        return hypergeometric_tail(workers=held, byzantine=of_class, drawn=drawn, at_least=needed)

    for seed in config.experiment.seeds:
        liars = _liars(config, seed)
        shards = shards_of(config, dataset, seed)
        honest = [rows for worker, rows in enumerate(shards) if worker not in liars]
        counts = [np.bincount(labels[rows], minlength=classes).tolist() for rows in honest]
        chances = [[chance(sum(held), of_class) for of_class in held] for held in counts]
        shares[str(seed)] = np.mean(chances, axis=0).tolist() if chances else [0.0] * classes
    return {"judges": {"rows_needed": needed, "shares": shares}}


def _liars(config: Config, seed: int) -> frozenset[int]:
    federation = config.federation
    if config.attack.name == NO_ATTACK:
        return frozenset()
    return frozenset(draw_byzantine(federation.workers, federation.byzantine_workers, seed))
