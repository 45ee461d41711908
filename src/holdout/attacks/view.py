"""What Byzantine workers know when they decide what to send.

The Byzantine workers of a round act as one coalition: an attack sees a `View` and says what each of
its proposers sends. How much the view shows is set by the config's `attack.knowledge`.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from holdout import device
from holdout.ids import RoundNumber
from holdout.learning.losses import CROSS_ENTROPY, Loss
from holdout.learning.vector import deviation
from holdout.seeds import Stream


class Deployed(Protocol):
    """The aggregation rule under attack, as the coalition can run it on what it knows.

    Example:
        >>> def strongest(deployed, base, direction, strengths):
        ...     if deployed.leaves_nobody_out:
        ...         return max(strengths)
        ...     selected = deployed.selects(base, direction, strengths)
        ...     return max((s for s, passes in zip(strengths, selected) if passes), default=0.0)
        >>> from holdout.attacks import DeployedRule
        >>> from holdout.rules import RULES
        >>> honest = torch.tensor([[0.0], [1.0], [2.0], [3.0]])
        >>> for name in ("mean", "median"):
        ...     deployed = DeployedRule(RULES[name], honest, copies=1, f=1)
        ...     print(name, strongest(deployed, honest[1], torch.ones(1), [0.0, 1.0, 9.0]))
        mean 9.0
        median 1.0
    """

    @property
    def leaves_nobody_out(self) -> bool:
        """Whether every update counts, so that no strength is too much (the mean)."""

    def selects(
        self, base: Tensor, direction: Tensor, strengths: Sequence[float]
    ) -> Iterable[bool]:
        """For each strength s: whether base + s * direction, sent by all, is selected."""

    def outcome(
        self, lies: Sequence[Tensor | None], messages: Sequence[Tensor | None] | None = None
    ) -> Tensor | None:
        """The update that would be made if its proposers, in id order, sent these; None: no step.

        What the server would reject is rejected here too. Where ballots are joint, `messages` is
        what its voters send; None: what `attack.voters` says.
        """

    def reaches(
        self, basis: Tensor, trials: Sequence["MixedLie"], along: Tensor
    ) -> Sequence[float]:
        """How far the outcome of each trial goes along a direction, <outcome, along>; 0: no step.

        Args:
            basis: (k, d) vectors.
            trials: Lies as mixtures of them: hundreds can be tried for the price of the basis.
            along: The direction, (d,).
        """


Mixtures = npt.NDArray[np.float64]
"""Vectors as mixtures of a basis: a row of coefficients for each."""


@dataclass(frozen=True, slots=True, eq=False)
class MixedLie:
    """A lie that an attacker considers, as mixtures of a basis.

    Example:
        >>> trial = MixedLie(np.array([[1.0, -2.0]]))
        >>> trial.dense(torch.tensor([[3.0, 0.0], [0.0, 1.0]]))[0]
        [tensor([ 3., -2.])]
    """

    lies: Mixtures
    """(count, k) what each of the coalition's proposers sends, in id order."""
    messages: Mixtures | None = None
    """(voters, k) what its voters send where ballots are joint, in the order of the draw; no rows
    for silence; None: what `attack.voters` says."""

    def dense(self, basis: Tensor) -> tuple[list[Tensor], list[Tensor] | None]:
        """The lies and the messages as vectors."""
        messages = None if self.messages is None else dense(self.messages, basis)
        return dense(self.lies, basis), messages


def dense(mixtures: Mixtures, basis: Tensor) -> list[Tensor]:
    """The mixtures as vectors; equal ones are one tensor, so that they are handled as copies."""
    made: dict[bytes, Tensor] = {}
    vectors = []
    for row in mixtures:
        key = row.tobytes()
        if key not in made:
            used = np.flatnonzero(row)
            factors = device.tensor(row[used], dtype=torch.float32)
            made[key] = factors @ basis[device.tensor(used)]
        vectors.append(made[key])
    return vectors


Batch = tuple[Tensor, Tensor]
"""Samples and their labels."""


def _no_messages() -> Tensor:
    return device.empty(0, 0)


def _no_batches() -> Sequence[Sequence[Batch]]:
    return ()


@dataclass(frozen=True, eq=False)
class View:
    """What the coalition knows in one round.

    An update is a gradient: a proposal u makes the candidate w - eta * u.

    Example:
        >>> import holdout
        >>> known = torch.tensor([[1.0, 2.0], [3.0, 2.0]])
        >>> rule = holdout.attacks.DeployedRule(holdout.rules.RULES["mean"], known, copies=1, f=1)
        >>> view = View(
        ...     round_number=1, weights=torch.zeros(2), learning_rate=0.1, model=nn.Linear(1, 1),
        ...     count=1, proposers=3, known=known, own_updates=lambda: known[:1],
        ...     held=lambda: (torch.ones(5, 1), torch.zeros(5).long()), start=torch.zeros(2),
        ...     deployed=rule, baseline=lambda name: rule,
        ...     source=holdout.stream(0, 1), run_source=holdout.stream(0),
        ... )
        >>> view.mean, view.deviation, round(view.usual_norm, 2)
        (tensor([2., 2.]), tensor([1., 0.]), 2.24)
        >>> view.deployed.outcome([torch.tensor([-1.0, -1.0])])
        tensor([1., 1.])
        >>> holdout.attacks.ATTACKS["sign-flip"]()(view).updates
        tensor([-2., -2.])
    """

    round_number: RoundNumber
    """The round, counted from 1."""
    weights: Tensor
    """w_t, which every worker knows."""
    learning_rate: float
    """eta, the step size of this round."""
    model: nn.Module
    """What the weights are the weights of."""
    count: int
    """How many proposals the coalition sends."""
    proposers: int
    """How many proposers were drawn in this round, honest ones and liars."""
    known: Tensor
    """(h, d) honest updates, as far as `attack.knowledge` lets the coalition see them."""
    own_updates: Callable[[], Tensor]
    """(count, d) what its proposers would send if they were honest, from their own data."""
    held: Callable[[], tuple[Tensor, Tensor]]
    """Samples that the liars hold and their true labels: up to 600, the same in every round."""
    start: Tensor
    """w_0, the weights before the first round."""
    deployed: Deployed
    """The rule under attack."""
    baseline: Callable[[str], Deployed]
    """A baseline rule on the same updates, by name, whatever is deployed."""
    source: Stream
    """Random integers that only this attack draws, decided by the seed and the round."""
    run_source: Stream
    """The same, decided by the seed alone: every round of a run finds the same integers."""
    loss: Loss = CROSS_ENTROPY
    """What training lowers and voters judge by."""
    messages: Callable[[], Tensor] = _no_messages
    """(h, d) honest voters' joint ballots, as far as the coalition sees them; no rows where ballots
    are not joint."""
    own_messages: Callable[[], Tensor] = _no_messages
    """What the coalition's voters would send if they were honest, a row each; likewise."""
    own_batches: Callable[[], Sequence[Sequence[Batch]]] = _no_batches
    """For each of its proposers the mini-batches behind its honest update, one per local step."""

    @cached_property
    def mean(self) -> Tensor:
        """mu_t of Algorithm 4."""
        return self.known.mean(dim=0)

    @cached_property
    def deviation(self) -> Tensor:
        """sigma_t of Algorithm 4: the population's, as in the attack's first publication."""
        return deviation(self.known)

    @cached_property
    def usual_norm(self) -> float:
        """The (lower) median of the known updates' L2 norms."""
        return float(torch.linalg.vector_norm(self.known, dim=1, dtype=torch.float64).median())

    def update_towards(self, weights: Tensor) -> Tensor:
        """The update whose candidate is exactly the given weights."""
        return (self.weights - weights) / self.learning_rate

    def generator(self) -> torch.Generator:
        """A generator for noise, decided by the seed and the round."""
        return device.generator(self.source.generator_seed())


@dataclass(frozen=True, slots=True, eq=False)
class Lie:
    """What the coalition's proposers send.

    Example:
        >>> Lie(torch.tensor([-2.0, 0.0]), gamma=2.0).gamma
        2.0
        >>> [update is None for update in Lie([torch.zeros(2), None]).updates]
        [False, True]
    """

    updates: Tensor | Sequence[Tensor | None]
    """One vector for all of them, or one for each; None is silence."""
    gamma: float | None = None
    """The strength that was chosen, where the attack has one."""
    messages: Tensor | Sequence[Tensor | None] | None = None
    """What its voters send where ballots are joint: one for all or one for each, empty for
    silence; None: what `attack.voters` says."""


class Attack(Protocol):
    """What Byzantine proposers send; a custom attack may return plain tensors, not a `Lie`.

    Example:
        >>> import holdout
        >>> def cancel(view):
        ...     return -2 * view.mean
        >>> plugins = holdout.Plugins(attack=cancel)
    """

    def __call__(self, view: View) -> Lie | Tensor | Sequence[Tensor | None]:
        """Decide what the coalition sends in this round."""
