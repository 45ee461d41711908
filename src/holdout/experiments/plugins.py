"""Custom code that takes part in an experiment: rules, attacks, models, data and workers.

It is passed as objects, here, or named in the config as "package.module:name".
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from holdout.attacks import Attack, BallotAttack, MessageAttack
from holdout.data.datasets import Dataset
from holdout.learning.models import ModelFactory
from holdout.rules import Rule
from holdout.workers import HonestWorker, Worker


@dataclass(frozen=True, slots=True)
class Plugins:
    """Custom code for one run, as objects; whatever is left out is as the config says.

    >>> import holdout
    >>> def first_row(updates, *, f):
    ...     return updates[0]
    >>> plugins = holdout.Plugins(rules={"first": first_row})
    >>> sorted(plugins.rules)
    ['first']
    """

    rules: Mapping[str, Rule] = field(default_factory=dict)
    """Rules by the names under which `experiment.rules` lists them."""
    attack: Attack | None = None
    """What Byzantine proposers send, given a `holdout.attacks.View`."""
    ballots: BallotAttack | MessageAttack | None = None
    """How Byzantine voters vote, given a `holdout.attacks.BallotView`; where ballots are joint, a
    `holdout.attacks.MessageView`."""
    model: ModelFactory | None = None
    """Makes the model, given the shape of one sample and the number of classes."""
    data: Dataset | tuple[Any, Any, Any, Any] | None = None
    """A data set, or the arrays x_train, y_train, x_test, y_test; normalised as the config says."""
    worker: Callable[[HonestWorker], Worker] | None = None
    """Called with each honest worker; returns what takes its place."""
