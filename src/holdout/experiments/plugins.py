"""Rules, attacks, models, data and workers of the user's own.

They are passed as objects, here, or named in the config as "package.module:name".
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from holdout.attacks import Attack, BallotAttack
from holdout.data.datasets import Dataset
from holdout.learning.models import ModelFactory
from holdout.rules import Rule
from holdout.workers import HonestWorker, Worker


@dataclass(frozen=True, slots=True)
class Plugins:
    """Code of the user's, as objects."""

    rules: Mapping[str, Rule] = field(default_factory=dict)
    attack: Attack | None = None
    ballots: BallotAttack | None = None
    model: ModelFactory | None = None
    data: Dataset | tuple[Any, Any, Any, Any] | None = None
    """A data set, or the arrays x_train, y_train, x_test, y_test; normalised as the config says."""
    worker: Callable[[HonestWorker], Worker] | None = None
    """Wraps or replaces each honest worker."""
