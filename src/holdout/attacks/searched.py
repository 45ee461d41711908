"""Lies chosen by what comes of them: each is tried through the rule that is deployed."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from holdout.attacks.updates import Permute
from holdout.attacks.view import Lie, Tried, View
from holdout.errors import ModelError
from holdout.learning.scoring import sample_losses
from holdout.learning.training import gradients
from holdout.learning.vector import of_length

By = Literal["distance", "loss"]
"""What counts as harm: how far the step is from the honest mean, or the held samples' loss."""

FIRST, GROWTH = 0.1, 1.5
"""The lowest rung of the ladder of strengths, and from one to the next."""

CLASSES = 3
"""How many classes `Greedy` attacks one by one: those that the model knows least."""


@dataclass(frozen=True, slots=True)
class OptAlie:
    """`Alie` with the strength, and the sign, that do most harm.

    The gamma in the results has the sign: below zero, the lie is mu - |gamma| * sigma.
    """

    gamma_max: float = 30.0
    by: By = "distance"

    def __call__(self, view: View) -> Lie:
        """The same vector from every Byzantine proposer."""
        return _strongest(view, view.mean, view.deviation, self.gamma_max, self.by)


@dataclass(frozen=True, slots=True)
class OptIpm:
    """`InnerProduct` with the strength, and the sign, that do most harm.

    The gamma in the results has the sign: below zero, the lie is mu times |gamma|.
    """

    gamma_max: float = 30.0
    by: By = "distance"

    def __call__(self, view: View) -> Lie:
        """The same vector from every Byzantine proposer."""
        return _strongest(view, torch.zeros_like(view.mean), -view.mean, self.gamma_max, self.by)


@dataclass(frozen=True, slots=True)
class Greedy:
    """Of a list of lies the one after which the loss on held samples is largest.

    Every lie is tried through the deployed rule. Those whose step goes furthest against the
    gradient of the held samples are also tried on the samples themselves.
    """

    exact: int = 8
    """How many lies are tried on the samples."""

    def __call__(self, view: View) -> Lie:
        """A row for each Byzantine proposer."""
        return _most_harmful(view, [Tried(list(lie)) for _, lie in candidates(view)], self.exact)


@dataclass(frozen=True, slots=True)
class Jointly:
    """`Greedy`, with what lying voters send chosen together with the lie.

    Each lie is tried with each way to vote. Where ballots name proposals or the rule has no voters
    this is `Greedy`: the liars then vote as `attack.voters` says.
    """

    exact: int = 8
    """How many pairs are tried on the samples."""

    def __call__(self, view: View) -> Lie:
        """A row for each Byzantine proposer, and one for each Byzantine voter."""
        tried = [
            Tried(list(lie), messages)
            for _, lie in candidates(view)
            for messages in ways_to_vote(view, lie)
        ]
        return _most_harmful(view, tried, self.exact)


def ways_to_vote(view: View, lie: Tensor) -> Iterator[Sequence[Tensor | None] | None]:
    """What `Jointly` lets lying voters send with a lie: a row for each of them."""
    own, known = view.own_messages(), view.messages()
    if not len(own):
        yield None
        return
    count, rows = len(own), known if len(known) else own
    usual = float(torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64).median())
    speaking = of_length(lie.mean(dim=0), usual)
    mean, deviation = rows.mean(dim=0), rows.std(dim=0, correction=0)
    yield list(own)
    yield [speaking] * count
    yield [of_length(-mean, usual)] * count
    yield list(-own)
    yield [mean - 1.5 * deviation] * count
    yield list(own + 0.5 * speaking)
    yield [None] * count


def _most_harmful(view: View, tried: Sequence[Tried], exact: int) -> Lie:
    """The lie after which the loss on held samples is largest.

    Those whose step goes furthest against the gradient of the held samples are tried on them.
    """
    x, y = view.held()
    (slope,) = gradients(view.model, view.weights, [(x, y)]).double()
    # Of all steps only the best are kept: there may be hundreds.
    best: list[tuple[float, int, Tensor]] = []
    for place, update in enumerate(view.deployed.outcomes(tried)):
        step = torch.zeros_like(view.weights) if update is None else update
        damage = _finite_or_worst(float(-(step.double() @ slope)))
        best = sorted([*best, (-damage, place, step)], key=lambda one: one[:2])[: max(1, exact)]
    losses = _losses_after(view, [step for _, _, step in best])
    worst = max(range(len(best)), key=losses.__getitem__)  # The first of equals.
    chosen = tried[best[worst][1]]
    return Lie(chosen.lies, messages=chosen.messages)


def candidates(view: View) -> Iterator[tuple[str, Tensor]]:
    """What `Greedy` tries: names, and a row for each Byzantine proposer."""
    own, mean, deviation = view.own_updates(), view.mean, view.deviation
    usual = view.usual_norm

    def alike(lie: Tensor) -> Tensor:
        return lie.expand(view.count, -1)

    yield "honest work", own
    for factor in (0.5, -0.5, -1.0, -3.0, -100.0):
        yield f"mean times {factor:g}", alike(factor * mean)
    for gamma in (0.3, 0.75, 1.5, 3.0, 30.0):
        yield f"mean + {gamma:g} deviations", alike(mean + gamma * deviation)
        yield f"mean - {gamma:g} deviations", alike(mean - gamma * deviation)
    yield "own reversed", -own
    for factor in (1.0, 2.0, 4.0):
        yield f"own - {factor:g} means", own - factor * mean
    yield "own - half a step", own - 0.5 * of_length(mean, usual)
    yield "own + 0.3 deviations", own + 0.3 * deviation
    yield "own - 0.3 deviations", own - 0.3 * deviation
    yield "back to the start", alike(of_length(view.weights - view.start, usual))
    yield from _permuted(view)
    x, y = view.held()
    classes = _worst_classes(view, x, y)
    batches = [(x[y == label], y[y == label]) for label in classes]
    for label, slope in zip(classes, gradients(view.model, view.weights, batches), strict=True):
        ascent = -of_length(slope, usual)
        yield f"class {label} forgotten", alike(ascent)
        yield f"own + half of class {label} forgotten", own + 0.5 * ascent
    (slope,) = gradients(view.model, view.weights, [(x, y)])
    yield "all forgotten", alike(-of_length(slope, usual))


def _permuted(view: View) -> Iterator[tuple[str, Tensor]]:
    try:
        lie = Permute()(view).updates
    except ModelError:  # Not every model has units that can change places.
        return
    if isinstance(lie, Tensor):
        yield "units in another order", lie.expand(view.count, -1)


def _worst_classes(view: View, x: Tensor, y: Tensor) -> list[int]:
    """The classes among the held samples that the model does worst on, worst first."""
    losses = sample_losses(view.model, view.weights[None], x, y)[0].double()
    mean_of = {int(label): float(losses[y == label].mean()) for label in torch.unique(y)}
    return sorted(mean_of, key=lambda label: -mean_of[label])[:CLASSES]


def _strongest(view: View, base: Tensor, direction: Tensor, maximum: float, by: By) -> Lie:
    """The lie base + gamma * direction with the gamma, of either sign, that does most harm."""
    rungs = [0.0]
    while (rung := max(FIRST, GROWTH * rungs[-1])) < maximum:
        rungs.append(rung)
    ladder = [*rungs, maximum] if maximum > 0 else rungs
    tried = [sign * gamma for gamma in ladder for sign in (1.0, -1.0) if gamma or sign > 0]
    lies = [Tried([base + gamma * direction] * view.count) for gamma in tried]
    none = torch.zeros_like(view.weights)
    steps = [none if step is None else step for step in view.deployed.outcomes(lies)]
    if by == "loss":
        harm = _losses_after(view, steps)
    else:
        centre = view.mean.double()
        harm = [_finite_or_worst(float((step.double() - centre).norm())) for step in steps]
    gamma = tried[max(range(len(tried)), key=harm.__getitem__)]  # The weakest of equals.
    return Lie(base + gamma * direction, gamma)


def _losses_after(view: View, steps: list[Tensor]) -> list[float]:
    """The mean loss of the held samples after each step; what is not finite is infinite."""
    x, y = view.held()
    weights = view.weights - view.learning_rate * torch.stack(steps)
    means = sample_losses(view.model, weights, x, y).mean(dim=1, dtype=torch.float64)
    return [_finite_or_worst(loss) for loss in means.tolist()]


def _finite_or_worst(harm: float) -> float:
    """NaN comes of steps that no model survives."""
    return math.inf if math.isnan(harm) else harm
