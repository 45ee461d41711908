"""What Byzantine workers know when they decide what to send.

The Byzantine workers of a round act as one coalition: an attack sees a `View` and says what each of
its proposers sends. How much the view shows is set by the config's `attack.knowledge`.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor, nn

from holdout import device
from holdout.ids import RoundNumber
from holdout.seeds import Stream


class Deployed(Protocol):
    """The aggregation rule under attack, as the coalition can run it on what it knows."""

    @property
    def leaves_nobody_out(self) -> bool:
        """Whether every update counts, so that no strength is too much (mean, a custom rule)."""

    def selects(
        self, base: Tensor, direction: Tensor, strengths: Sequence[float]
    ) -> Iterable[bool]:
        """For each strength s: whether base + s * direction, sent by all, is selected."""


@dataclass(frozen=True, eq=False)
class View:
    """What the coalition knows in one round.

    An update is a gradient: a proposal u makes the candidate w - eta * u.
    """

    round_number: RoundNumber
    weights: Tensor
    """w_t, which every worker knows."""
    learning_rate: float
    model: nn.Module
    count: int
    """How many proposals the coalition sends."""
    known: Tensor
    """(h, d) honest updates, as far as `attack.knowledge` lets the coalition see them."""
    own_updates: Callable[[], Tensor]
    """(count, d) what its proposers would send if they were honest, from their own data."""
    deployed: Deployed
    baseline: Callable[[str], Deployed]
    """A baseline rule on the same updates, by name, whatever is deployed."""
    source: Stream

    @cached_property
    def mean(self) -> Tensor:
        """mu_t of Algorithm 4."""
        return self.known.mean(dim=0)

    @cached_property
    def deviation(self) -> Tensor:
        """sigma_t of Algorithm 4: the population's, as in the attack's first publication."""
        return self.known.std(dim=0, correction=0)

    def update_towards(self, weights: Tensor) -> Tensor:
        """The update whose candidate is exactly the given weights."""
        return (self.weights - weights) / self.learning_rate

    def generator(self) -> torch.Generator:
        """A generator for noise, decided by the seed and the round."""
        return device.generator(self.source.generator_seed())


@dataclass(frozen=True, slots=True, eq=False)
class Lie:
    """What the coalition's proposers send: one vector for all, or one each; None is silence."""

    updates: Tensor | Sequence[Tensor | None]
    gamma: float | None = None
    """The strength that was chosen, where the attack has one."""


class Attack(Protocol):
    """What Byzantine proposers send; a custom attack may return plain tensors, not a `Lie`."""

    def __call__(self, view: View) -> Lie | Tensor | Sequence[Tensor | None]:
        """Decide what the coalition sends in this round."""
