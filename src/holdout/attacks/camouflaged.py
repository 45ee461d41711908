"""Lies no further from the honest updates than these are from each other.

Both are by Shejwalkar and Houmansadr ("Manipulating the Byzantine", 2021), and need not know which
rule is deployed. The lie is mu - gamma * p; its squared distance to the honest update h_i is

    |mu - h_i|^2 - 2 gamma <mu - h_i, p> + gamma^2 |p|^2,

so the largest gamma that a bound on such distances allows is a root of a quadratic equation.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from holdout.attacks.view import Lie, View

Along = Literal["deviation", "unit", "sign"]
"""p: the deviation of the honest updates, their mean as a unit vector, or the mean's signs."""


@dataclass(frozen=True, slots=True)
class MinMax:
    """Far from the mean, yet no further from any honest update than these are from each other.

        lie = μ - γ p, the same from every liar
        γ = the largest with max_i |lie - x_i| <= max_{i,j} |x_i - x_j|

    Source: Shejwalkar, Houmansadr, 2021, Manipulating the Byzantine: Optimizing Model Poisoning
    Attacks and Defenses for Federated Learning, NDSS. There γ is found by halving, here by the
    root.

    Needs: any rule, any model.

    Args:
        along: p: `deviation` (σ of the honest updates), `unit` (μ / |μ|) or `sign` (of μ).
    """

    along: Along = "deviation"

    def __call__(self, view: View) -> Lie:
        """The same vector from every Byzantine proposer."""
        step = _step(view, self.along)
        apart, along, pairs = _distances(view, step)
        # The mean lies between the honest updates, so every bound holds for gamma = 0.
        gamma = min(_root(step, a, b, pairs.max()) for a, b in zip(apart, along, strict=True))
        return Lie(view.mean - gamma * step, gamma)


@dataclass(frozen=True, slots=True)
class MinSum:
    """Far from the mean, with no larger a sum of squared distances than some honest update has.

        lie = μ - γ p, the same from every liar
        γ = the largest with Σ_i |lie - x_i|² <= max_j Σ_i |x_i - x_j|²

    Source: Shejwalkar, Houmansadr, 2021, Manipulating the Byzantine: Optimizing Model Poisoning
    Attacks and Defenses for Federated Learning, NDSS. There γ is found by halving, here by the
    root.

    Needs: any rule, any model.

    Args:
        along: p: `deviation` (σ of the honest updates), `unit` (μ / |μ|) or `sign` (of μ).
    """

    along: Along = "deviation"

    def __call__(self, view: View) -> Lie:
        """The same vector from every Byzantine proposer."""
        step = _step(view, self.along)
        apart, along, pairs = _distances(view, step)
        gamma = _root(step, apart.mean(), along.mean(), pairs.sum(dim=1).max() / len(apart))
        return Lie(view.mean - gamma * step, gamma)


def _step(view: View, along: Along) -> Tensor:
    match along:
        case "deviation":
            return view.deviation
        case "unit":
            length = torch.linalg.vector_norm(view.mean, dtype=torch.float64)
            return (view.mean / length).float() if length else view.mean
        case "sign":
            return view.mean.sign()


def _distances(view: View, step: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """|mu - h_i|^2, <mu - h_i, p> and |h_i - h_j|^2, in float64."""
    away = view.mean.double() - view.known.double()
    products = away @ away.T
    apart = products.diagonal()
    pairs = (apart[:, None] + apart[None, :] - 2 * products).clamp(min=0)
    return apart, away @ step.double(), pairs


def _root(step: Tensor, apart: Tensor, along: Tensor, limit: Tensor) -> float:
    """The largest gamma with apart - 2 gamma along + gamma^2 |p|^2 <= limit."""
    square = float(step.double() @ step.double())
    if not square:
        return 0.0
    room = max(0.0, float(limit - apart))
    return max(0.0, (float(along) + math.sqrt(float(along) ** 2 + square * room)) / square)
