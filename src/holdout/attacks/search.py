"""The adaptive attacker: inflate the lie up to the last strength that the rule still selects."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from holdout.attacks.view import Deployed, MixedLie, Mixtures
from holdout.custom_code import guard
from holdout.errors import InfeasibleError
from holdout.learning.vector import ProposalFault, read_update
from holdout.rules import mean
from holdout.rules.context import ReportingVoters, RuleContext, made_context
from holdout.rules.distance import Matrix
from holdout.rules.outlook import Estimate, Outlook
from holdout.rules.rule import LEAVES_NOBODY_OUT, LieLine, Rule, checked_update

STEP = 0.1
GROWTH = 1.05


@dataclass(frozen=True, slots=True, eq=False)
class DeployedRule:
    """A baseline rule, run by the attacker on the honest updates that it knows.

    Example:
        >>> import torch
        >>> from holdout.rules import RULES
        >>> honest = torch.tensor([[0.0], [1.0], [2.0], [3.0]])
        >>> deployed = DeployedRule(RULES["median"], honest, copies=1, f=1)
        >>> list(deployed.selects(torch.tensor([1.5]), torch.tensor([1.0]), [0.0, 0.5, 9.0]))
        [True, True, False]
        >>> deployed.outcome([torch.tensor([9.0])])
        tensor([2.])
    """

    rule: Rule
    """The rule."""
    honest: Tensor
    """(h, d) the honest updates."""
    copies: int
    """How many copies of the lie are sent in addition."""
    f: int
    """How many lies the rule expects."""
    context: Callable[[], RuleContext] | None = None
    """Makes the context of a rule that takes one, as far as the attacker can foresee it."""
    places: Sequence[int] = ()
    """The rows of the lies among all updates; without it they follow the honest ones."""
    tolerated: Callable[[int], int] | None = None
    """How many lies the rule expects among n updates, if some are rejected; without it always f."""
    voters: Callable[[Sequence[int]], ReportingVoters] | None = None
    """The voters of that context, for updates of which these are lies."""

    @property
    def leaves_nobody_out(self) -> bool:
        """Whether every update counts, so that no strength is too much."""
        return self.rule.rehearse is LEAVES_NOBODY_OUT

    def selects(self, base: Tensor, direction: Tensor, tried: Sequence[float]) -> Iterator[bool]:
        """For each strength: whether the rule selects the lie (never, if it is infeasible)."""
        line = LieLine(
            self.honest,
            base,
            direction,
            self.copies,
            self.f,
            ladder=strengths(max(tried, default=0.0)),
            context=self.context,
            voters=self.voters,
        )
        if self.rule.rehearse is None or not self.rule.is_feasible(n=line.count, f=self.f):
            yield from [False] * len(tried)
            return
        yield from map(self.rule.rehearse(line), tried)

    def outcome(
        self, lies: Sequence[Tensor | None], messages: Sequence[Tensor | None] | None = None
    ) -> Tensor | None:
        """The rule over the honest updates and these lies; None where there would be no step."""
        del messages  # A rule has no voters.
        places = self.places or range(len(self.honest), len(self.honest) + len(lies))
        rows: list[Tensor | None] = list(self.honest)
        for place, lie in zip(places, lies, strict=True):
            read = read_update(lie, self.honest.shape[1])
            rows.insert(place, None if isinstance(read, ProposalFault) else read)
        valid = [row for row in rows if row is not None]
        heard = [place for place, row in enumerate(rows) if row is not None]
        told = [row for row, place in enumerate(heard) if place in places]
        if not valid:
            return None
        f = self.f if len(valid) == len(rows) or not self.tolerated else self.tolerated(len(valid))
        label = f"rule {self.rule.label!r}"
        try:
            result = guard(
                label, lambda: self._apply(torch.stack(valid), f, told), self.rule.function
            )
        except InfeasibleError:
            return None
        shape = self.honest.shape[1:]
        return checked_update(label, result, shape, self.rule.function).float().clone()

    def reaches(self, basis: Tensor, trials: Sequence[MixedLie], along: Tensor) -> list[float]:
        """How far the outcome of each trial goes along a direction."""
        return reaches_one_by_one(self, basis, trials, along)

    def outlook(self, basis: Tensor, compared: Tensor) -> "RuleOutlook | None":
        """An estimate of the outcome of lies that are mixtures of a basis; None: there is none.

        Args:
            basis: Vectors, (k, d).
            compared: What steps are compared with, (d,).
        """
        n, f = len(self.honest) + self.copies, self.f
        if not (len(self.honest) and self.copies and self.rule.is_feasible(n=n, f=f)):
            return None
        context = self.context() if self.context and self.rule.beside else None
        found = Outlook.of(
            self.rule, torch.cat([self.honest, basis]), compared, f=f, context=context
        )
        places = self.places or range(len(self.honest), n)
        return None if found is None else RuleOutlook(found, len(self.honest), tuple(places))

    def _apply(self, updates: Tensor, f: int, lies: Sequence[int]) -> Tensor:
        context = made_context(self.context, self.voters, lies)
        prepared = self.rule.prepare(updates, f=f, context=context)
        if self.rule.choose is None:
            return self.rule.finish(prepared, f=f, context=context)
        chosen = list(self.rule.choice(prepared, f=f, context=context))
        return mean(prepared if len(chosen) == len(prepared) else prepared[chosen], f=0)


@dataclass(frozen=True, slots=True, eq=False)
class RuleOutlook:
    """An estimate of the steps that lies lead to through a deployed rule."""

    outlook: Outlook
    honest: int
    """How many honest updates there are."""
    places: tuple[int, ...]
    """Where the lies stand among all updates."""

    def distance(self, lies: Mixtures) -> Estimate:
        """How far the step would be from what steps are compared with."""
        return self.outlook.distance(self._updates(lies))

    def reach(self, lies: Mixtures) -> Estimate:
        """How far the step would go along what steps are compared with."""
        return self.outlook.reach(self._updates(lies))

    def _updates(self, lies: Mixtures) -> Matrix:
        """All updates as mixtures: a row each, the honest ones and then the basis as columns."""
        n, k = self.honest + len(self.places), lies.shape[1]
        updates = np.zeros((n, self.honest + k))
        others = [row for row in range(n) if row not in self.places]
        updates[others, range(self.honest)] = 1.0
        updates[list(self.places), self.honest :] = lies
        return updates


def reaches_one_by_one(
    deployed: Deployed, basis: Tensor, trials: Sequence[MixedLie], along: Tensor
) -> list[float]:
    """`Deployed.reaches` of a rule that can only be run as a whole."""
    direction = along.double()

    def reach(trial: MixedLie) -> float:
        update = deployed.outcome(*trial.dense(basis))
        return 0.0 if update is None else float(update.double() @ direction)

    return [reach(trial) for trial in trials]


def strengths(maximum: float) -> list[float]:
    """0, then small steps: 0.1 at first, later five per cent, ending exactly at the maximum.

    >>> strengths(0.25)
    [0.0, 0.1, 0.2, 0.25]
    """
    values = [0.0]
    while (value := round(max(values[-1] + STEP, values[-1] * GROWTH), 4)) < maximum:
        values.append(value)
    return [*values, maximum] if maximum > 0 else values


def inflate(deployed: Deployed, base: Tensor, direction: Tensor, *, maximum: float) -> float:
    """The last strength, on the way up from 0, at which the lie is still selected.

    Where even strength 0 is not selected the answer is 0: the lie is then the base alone.
    """
    if deployed.leaves_nobody_out:
        return maximum
    passed = 0.0
    ladder = strengths(maximum)
    # Lazily: what lies past the first failure is never computed.
    for strength, selected in zip(ladder, deployed.selects(base, direction, ladder), strict=False):
        if not selected:
            return passed
        passed = strength
    return passed
