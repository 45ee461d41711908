"""What rounds are played with: a federation, a curve, and the state between two rounds.

A `Federation` is what a seed decides: shards, liars, initial weights. A `Curve` is what is compared
on it: a rule under an attack. A `State` is all that one round hands to the next.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor, nn

from holdout.attacks import Attack, BallotAttack
from holdout.config import Config
from holdout.ids import WorkerId
from holdout.rules import Rule
from holdout.voting import Terms
from holdout.workers import Worker

Kept = Mapping[str, Tensor]
"""What a rule or a worker keeps, as `holdout.kept` says."""


@dataclass(frozen=True, slots=True, eq=False)
class Federation:
    """What a seed decides, the same for every rule that is compared."""

    config: Config
    seed: int
    model: nn.Module
    initial_weights: Tensor
    workers: Sequence[Worker]
    """By id. Byzantine ones hold what an honest worker in their place would, or poisoned labels."""
    byzantine: frozenset[WorkerId]
    x_test: Tensor
    y_test: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """A rule under an attack."""

    rule: str
    method: Rule | Terms
    """A baseline, or the terms of a vote."""
    attack: str
    act: Attack | None
    """None: nobody lies."""
    ballot_attack: BallotAttack

    @property
    def terms(self) -> Terms | None:
        """The terms of the vote, if the rule is one."""
        return self.method if isinstance(self.method, Terms) else None


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """All that a round hands to the next."""

    round: int
    weights: Tensor
    velocity: Tensor | None = None
    radius: float | None = None
    last_honest: Tensor | None = None
    """The honest updates of the last round, for an attacker that knows only those."""
    rule_state: Kept = field(default_factory=dict)
    """What the rule keeps."""
    worker_states: Mapping[WorkerId, Kept] = field(default_factory=dict)
    """What workers keep, such as their momentum; those that keep nothing are left out."""
    diverged: bool = False


def first_state(federation: Federation) -> State:
    """The state before round 1."""
    return State(round=0, weights=federation.initial_weights)
