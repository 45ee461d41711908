"""Lies chosen by their effect: each is tried through the deployed rule."""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, Self

import numpy as np
import torch
from torch import Tensor

from holdout.attacks.search import DeployedRule
from holdout.attacks.updates import Permute
from holdout.attacks.view import Lie, MixedLie, Mixtures, View, dense
from holdout.errors import ModelError
from holdout.learning.scoring import sample_losses
from holdout.learning.training import gradients
from holdout.learning.vector import deviation, norm, of_length
from holdout.rules.outlook import UNKNOWN, Estimate, may_be_first

By = Literal["distance", "loss"]
"""What counts as harm: how far the step is from the honest mean, or the held samples' loss."""

FIRST, GROWTH = 0.1, 1.5
"""The lowest rung of the ladder of strengths, and the ratio of one rung to the one below."""

PERMUTED, CLASS = "units in another order", "class "
"""Names of lies, and of the vectors behind them."""

CLASSES = 3
"""How many classes `Greedy` attacks one by one: those that the model knows least."""


@dataclass(frozen=True, slots=True)
class OptAlie:
    """`alie` with the strength, and the sign, that do most harm.

        lie = μ + γ σ, the same from every liar
        γ = ±0.1, ±0.15, ... ±gamma_max or 0, whose step through the deployed rule harms most

    Harm is how far the step is from μ (`distance`), or the loss of samples that the liars hold
    after it (`loss`). The γ in the results has the sign.

    Source: after Allouah, Farhadkhani, Guerraoui, Gupta, Pinot, Stephan, 2023, Fixing by Mixing: A
    Recipe for Optimal Byzantine ML under Heterogeneity, arXiv 2302.01772, which searches the
    strength.

    Needs: any rule, any model; the rule is run once for each strength.

    Args:
        gamma_max: The largest strength that is tried.
        by: What counts as harm: `distance` or `loss`.
    """

    gamma_max: float = 30.0
    by: By = "distance"

    def __call__(self, view: View) -> Lie:
        """The same vector from every Byzantine proposer."""
        return _strongest(view, view.mean, view.deviation, self.gamma_max, self.by)


@dataclass(frozen=True, slots=True)
class OptIpm:
    """`ipm` with the strength, and the sign, that do most harm.

        lie = -γ μ, the same from every liar
        γ = ±0.1, ±0.15, ... ±gamma_max or 0, whose step through the deployed rule harms most

    Harm is how far the step is from μ (`distance`), or the loss of samples that the liars hold
    after it (`loss`). The γ in the results has the sign: below zero, the lie is |γ| μ.

    Source: after Allouah, Farhadkhani, Guerraoui, Gupta, Pinot, Stephan, 2023, Fixing by Mixing: A
    Recipe for Optimal Byzantine ML under Heterogeneity, arXiv 2302.01772, which searches the
    strength.

    Needs: any rule, any model; the rule is run once for each strength.

    Args:
        gamma_max: The largest strength that is tried.
        by: What counts as harm: `distance` or `loss`.
    """

    gamma_max: float = 30.0
    by: By = "distance"

    def __call__(self, view: View) -> Lie:
        """The same vector from every Byzantine proposer."""
        return _strongest(view, torch.zeros_like(view.mean), -view.mean, self.gamma_max, self.by)


@dataclass(frozen=True, slots=True)
class Greedy:
    """The lie, out of a list, after which the loss on held samples is largest.

        lies = multiples of μ, μ ± γ σ, a liar's own work alone or mixed with these, the way back to
               the start, units in another order, single classes or all of them forgotten
        step(l) = what the deployed rule makes of the lie l
        lie = the l of largest loss at w - η step(l), of the `exact` whose steps go furthest against
              the gradient of that loss

    Source: this project.

    Needs: any rule, any model; real-valued targets have no classes to forget.

    Args:
        exact: How many lies are tried on the samples.
    """

    exact: int = 8

    def __call__(self, view: View) -> Lie:
        """A row for each Byzantine proposer."""
        menu = Menu.of(view)
        return _most_harmful(
            view, menu, [MixedLie(lies) for lies in menu.lies.values()], self.exact
        )


@dataclass(frozen=True, slots=True)
class Jointly:
    """`greedy`, with what lying voters send chosen together with the lie.

        (lie, messages) = the pair of largest loss after the step, searched as by `greedy`
        messages = honest, reversed, against all, camouflaged, silence, or promoting the lie

    Where ballots name proposals or the rule has no voters this is `greedy`: the liars then vote as
    `attack.voters` says.

    Source: this project.

    Needs: any rule, any model; more than `greedy` only where ballots are joint.

    Args:
        exact: How many pairs are tried on the samples.
    """

    exact: int = 8

    def __call__(self, view: View) -> Lie:
        """A row for each Byzantine proposer, and one for each Byzantine voter."""
        menu = Menu.of(view)
        trials = [
            MixedLie(lies, messages)
            for lies in menu.lies.values()
            for messages in menu.ways_to_vote(lies)
        ]
        return _most_harmful(view, menu, trials, self.exact)


@dataclass(frozen=True, slots=True, eq=False)
class Menu:
    """What a searching attacker chooses from: lies by name, as mixtures of a few vectors."""

    basis: Tensor
    """(k, d) the vectors."""
    lies: Mapping[str, Mixtures]
    """For each lie, a row of coefficients for each Byzantine proposer."""
    slope: Tensor
    """The gradient of the held samples' loss."""
    voters: Mapping[str, Mixtures]
    """What voters may send whatever the lie is; empty where ballots are not joint."""
    usual_message: float
    """The median norm of the honest voters' messages."""

    @classmethod
    def of(cls, view: View) -> Self:
        """What can be sent in this round."""
        x, y = view.held()
        (slope,) = gradients(view.model, view.weights, [(x, y)], loss=view.loss)
        usual = view.usual_norm
        rows: dict[str, Tensor] = {
            "mean": view.mean,
            "deviation": view.deviation,
            "step": of_length(view.mean, usual),
            "back": of_length(view.weights - view.start, usual),
            "slope": of_length(slope, usual),
            **_permuted(view),
            **_class_slopes(view, x, y),
        }
        own, spoken = view.own_updates(), view.own_messages()
        known = view.messages() if len(view.messages()) else spoken
        if len(spoken):
            norms = torch.linalg.vector_norm(known, dim=1, dtype=torch.float64)
            rows["messages"] = known.mean(dim=0)
            rows["messages' deviation"] = deviation(known)
        basis = torch.cat(
            [torch.stack(list(rows.values())), own, *([spoken] if len(spoken) else [])]
        )
        place = {name: number for number, name in enumerate(rows)}

        def alike(count: int, **factors: float) -> Mixtures:
            """The same mixture from everybody."""
            mixtures = np.zeros((count, len(basis)))
            for name, factor in factors.items():
                mixtures[:, place[name]] = factor
            return mixtures

        def each(first: int, count: int, factor: float = 1.0) -> Mixtures:
            """Everybody's own vector."""
            mixtures = np.zeros((count, len(basis)))
            mixtures[np.arange(count), first + np.arange(count)] = factor
            return mixtures

        n = view.count
        lies = dict(_lies(place, partial(alike, n), partial(each, len(rows), n)))
        voters: dict[str, Mixtures] = {}
        usual_message = 0.0
        if len(spoken):
            usual_message = float(norms.median())
            m = len(spoken)
            mine = partial(each, len(rows) + len(own), m)
            length = norm(rows["messages"])
            voters = {
                "honest": mine(),
                "reversed": mine(-1.0),
                "against all": alike(m, messages=-usual_message / length if length else 0.0),
                "camouflaged": alike(m, **{"messages": 1.0, "messages' deviation": -1.5}),
                "silent": np.zeros((0, len(basis))),
            }
        return cls(basis, lies, slope, voters, usual_message)

    def ways_to_vote(self, lies: Mixtures) -> Iterator[Mixtures | None]:
        """What lying voters may send with a lie, a row for each of them; None: as usual."""
        if not self.voters:
            yield None
            return
        yield from self.voters.values()
        mean = lies.mean(axis=0)
        length = norm(dense(mean[None], self.basis)[0])
        promoting = mean * (self.usual_message / length if length else 0.0)
        honest = self.voters["honest"]
        yield np.repeat(promoting[None], len(honest), axis=0)
        yield honest + 0.5 * promoting


def _lies(
    place: Collection[str], alike: Callable[..., Mixtures], own: Callable[..., Mixtures]
) -> Iterator[tuple[str, Mixtures]]:
    """The lies that are tried, by name."""
    yield "honest work", own()
    for factor in (0.5, -0.5, -1.0, -3.0, -100.0):
        yield f"mean times {factor:g}", alike(mean=factor)
    for gamma in (0.3, 0.75, 1.5, 3.0, 30.0):
        yield f"mean + {gamma:g} deviations", alike(mean=1.0, deviation=gamma)
        yield f"mean - {gamma:g} deviations", alike(mean=1.0, deviation=-gamma)
    yield "own reversed", own(-1.0)
    for factor in (1.0, 2.0, 4.0):
        yield f"own - {factor:g} means", own() + alike(mean=-factor)
    yield "own - half a step", own() + alike(step=-0.5)
    yield "own + 0.3 deviations", own() + alike(deviation=0.3)
    yield "own - 0.3 deviations", own() + alike(deviation=-0.3)
    yield "back to the start", alike(back=1.0)
    if PERMUTED in place:
        yield PERMUTED, alike(**{PERMUTED: 1.0})
    for name in place:
        if name.startswith(CLASS):
            yield f"{name} forgotten", alike(**{name: -1.0})
            yield f"own + half of {name} forgotten", own() + alike(**{name: -0.5})
    yield "all forgotten", alike(slope=-1.0)


def _most_harmful(view: View, menu: Menu, trials: Sequence[MixedLie], exact: int) -> Lie:
    """The lie after which the loss on held samples is largest.

    Those whose step goes furthest against the gradient of the held samples are tried on them.
    """
    trials = _most_damaging(view, menu, trials, exact)
    reaches = view.deployed.reaches(menu.basis, trials, menu.slope)
    damage = [_finite_or_worst(-reach) for reach in reaches]
    order = sorted(range(len(trials)), key=lambda place: -damage[place])
    best = [trials[place].dense(menu.basis) for place in order[: max(1, exact)]]
    none = torch.zeros_like(view.weights)
    steps = [none if (u := view.deployed.outcome(*one)) is None else u for one in best]
    losses = _losses_after(view, steps)
    lies, messages = best[max(range(len(best)), key=losses.__getitem__)]  # The first of equals.
    return Lie(lies, messages=messages)


def _most_damaging(
    view: View, menu: Menu, trials: Sequence[MixedLie], count: int
) -> Sequence[MixedLie]:
    """The trials that may be among those whose step goes furthest against the gradient."""
    deployed = view.deployed
    if not isinstance(deployed, DeployedRule):
        return trials
    outlook = deployed.outlook(menu.basis, -menu.slope)
    if outlook is None:
        return trials
    places = may_be_first([outlook.reach(trial.lies) for trial in trials], count)
    return [trials[place] for place in places]


def _permuted(view: View) -> dict[str, Tensor]:
    try:
        lie = Permute()(view).updates
    except ModelError:  # Not every model has units that can change places.
        return {}
    return {PERMUTED: lie} if isinstance(lie, Tensor) else {}


def _class_slopes(view: View, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Gradients of the classes that the model does worst on, worst first, at the usual length."""
    if y.is_floating_point():  # Real-valued targets have no classes.
        return {}
    losses = sample_losses(view.model, view.weights[None], x, y, loss=view.loss)[0].double()
    mean_of = {int(label): float(losses[y == label].mean()) for label in torch.unique(y)}
    worst = sorted(mean_of, key=lambda label: -mean_of[label])[:CLASSES]
    batches = [(x[y == c], y[y == c]) for c in worst]
    slopes = gradients(view.model, view.weights, batches, loss=view.loss)
    pairs = zip(worst, slopes, strict=True)
    return {f"{CLASS}{label}": of_length(slope, view.usual_norm) for label, slope in pairs}


def _strongest(view: View, base: Tensor, direction: Tensor, maximum: float, by: By) -> Lie:
    """The lie base + gamma * direction with the gamma, of either sign, that does most harm."""
    tried = both_signs(maximum)
    none = torch.zeros_like(view.weights)

    def step(gamma: float) -> Tensor:
        update = view.deployed.outcome([base + gamma * direction] * view.count)
        return none if update is None else update

    if by == "loss":
        harm = _losses_after(view, [step(gamma) for gamma in tried])
    else:
        centre = view.mean.double()
        harm = _longest(
            lambda place: float((step(tried[place]).double() - centre).norm()),
            _distances(view, base, direction, tried),
        )
    gamma = tried[max(range(len(tried)), key=harm.__getitem__)]  # The weakest of equals.
    return Lie(base + gamma * direction, gamma)


def both_signs(maximum: float) -> list[float]:
    """The strengths that are tried, weak ones first.

    >>> both_signs(0.12)
    [0.0, 0.1, -0.1, 0.12, -0.12]
    """
    rungs = [0.0]
    while (rung := max(FIRST, GROWTH * rungs[-1])) < maximum:
        rungs.append(rung)
    ladder = [*rungs, maximum] if maximum > 0 else rungs
    return [sign * gamma for gamma in ladder for sign in (1.0, -1.0) if gamma or sign > 0]


def _distances(
    view: View, base: Tensor, direction: Tensor, tried: Sequence[float]
) -> Sequence[Estimate]:
    """How far from the mean the step after each strength is, as far as that can be estimated."""
    deployed = view.deployed
    outlook = None
    if isinstance(deployed, DeployedRule):
        outlook = deployed.outlook(torch.stack([base, direction]), view.mean)
    if outlook is None:
        return [UNKNOWN] * len(tried)
    return [outlook.distance(np.array([[1.0, gamma]] * view.count)) for gamma in tried]


def _longest(measure: Callable[[int], float], estimates: Sequence[Estimate]) -> list[float]:
    """What is measured in each place; -inf where the estimates tell that it is not the largest."""
    found = [-math.inf] * len(estimates)
    for place in sorted(may_be_first(estimates, 1), key=lambda place: -estimates[place].high):
        if estimates[place].high < max(found):
            break
        found[place] = _finite_or_worst(measure(place))
    return found


def _losses_after(view: View, steps: list[Tensor]) -> list[float]:
    """The mean loss of the held samples after each step; what is not finite is infinite."""
    x, y = view.held()
    weights = view.weights - view.learning_rate * torch.stack(steps)
    losses = sample_losses(view.model, weights, x, y, loss=view.loss)
    means = losses.mean(dim=1, dtype=torch.float64)
    return [_finite_or_worst(loss) for loss in means.tolist()]


def _finite_or_worst(harm: float) -> float:
    """A step that no model survives gives NaN."""
    return math.inf if math.isnan(harm) else harm
