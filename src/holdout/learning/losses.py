"""Losses: what training lowers and voters judge by; the loss also decides the task.

    cross-entropy        labels: the model gives a logit for each class
    mse                  real-valued targets: the model gives a number for each of them
    package.module:name  custom: (outputs, targets) -> one loss for each sample

Labels make the task a classification, measured by accuracy; real-valued targets make it a
regression, measured by R2 and the mean absolute error (`holdout.metrics`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from holdout.custom_code import describe, guard, refused, untouched
from holdout.dotted import resolve
from holdout.errors import PluginError

Reduction = Literal["none", "mean", "sum"]
Reduced = Callable[[Tensor, Tensor, Reduction], Tensor]
"""(outputs (n, k), targets, how) -> the losses of n samples, their mean or their sum."""

Stacked = Callable[[Tensor, Tensor], Tensor]
"""(outputs of m candidates (m, k, n), which may be overwritten, targets) -> losses (m, n)."""


@dataclass(frozen=True, slots=True)
class Loss:
    """What training lowers.

    Example:
        >>> import torch
        >>> outputs, targets = torch.tensor([[1.0], [2.0]]), torch.tensor([[1.0], [4.0]])
        >>> LOSSES["mse"](outputs, targets, "none")
        tensor([0., 4.])
    """

    name: str
    """Its name in a config."""
    real_targets: bool | None
    """Whether it needs real-valued targets, or labels; None: it takes what the data set has."""
    reduced: Reduced
    """Computes it, sample by sample or for all of them."""
    stacked: Stacked
    """Computes it for many candidates' outputs at once; NaN where they overflow."""

    def __call__(self, outputs: Tensor, targets: Tensor, how: Reduction = "mean") -> Tensor:
        """The loss of the samples: of each, or their mean or sum."""
        return self.reduced(outputs, targets, how)


def find_loss(name: str) -> Loss:
    """The loss that `training.loss` names; a DottedNameError if custom code leads nowhere.

    Args:
        name: A name of `LOSSES`, or "package.module:name".

    Example:
        >>> find_loss("mse").real_targets
        True
    """
    return LOSSES[name] if name in LOSSES else custom_loss(resolve(name), name)


def custom_loss(function: object, name: str) -> Loss:
    """A loss made of a function from outputs and targets to one loss for each sample."""

    def each(outputs: Tensor, targets: Tensor) -> Tensor:
        if not callable(function):
            raise PluginError(f"the loss {name} must be callable; got {type(function).__name__}")
        # A copy: the targets are the data's own. One that writes on it is refused all the same,
        # since torch cannot differentiate what was computed from it before.
        given = targets.clone()
        with untouched(f"the loss {name}", (given,), function, what="the targets"):
            losses = guard(f"the loss {name}", lambda: function(outputs, given), function)
        return _checked(losses, outputs, name, function)

    def reduced(outputs: Tensor, targets: Tensor, how: Reduction) -> Tensor:
        return _reduce(each(outputs, targets), how)

    def stacked(outputs: Tensor, targets: Tensor) -> Tensor:
        # Copies of one layout: custom code may be written for rows that lie side by side.
        return torch.stack([each(one.t().contiguous(), targets) for one in outputs])

    return Loss(name, None, reduced, stacked)


def _checked(losses: object, outputs: Tensor, name: str, function: object) -> Tensor:
    wanted = (len(outputs),)
    if not isinstance(losses, Tensor) or losses.shape != wanted or losses.dtype != outputs.dtype:
        raise refused(
            f"the loss {name} must return one float32 for each sample, {wanted}; "
            f"got {describe(losses)}",
            function,
        )
    if torch.is_grad_enabled() and outputs.requires_grad and not losses.requires_grad:
        raise refused(
            f"the loss {name} must be computed from the outputs by torch alone, so that it can be "
            "differentiated; what it returned has no gradient",
            function,
        )
    return losses


def _reduce(losses: Tensor, how: Reduction) -> Tensor:
    match how:
        case "none":
            return losses
        case "mean":
            return losses.mean()
        case "sum":
            return losses.sum()


def _cross_entropy(outputs: Tensor, targets: Tensor, how: Reduction) -> Tensor:
    return F.cross_entropy(outputs, targets, reduction=how)


def _cross_entropy_stacked(logits: Tensor, y: Tensor) -> Tensor:
    top = logits.amax(1)
    target = logits.gather(1, y.expand(len(logits), 1, -1)).squeeze(1)
    return logits.sub_(top.unsqueeze(1)).exp_().sum(1).log_().add_(top.sub_(target))


def _squares(outputs: Tensor, targets: Tensor, how: Reduction) -> Tensor:
    return _reduce((outputs - targets).square().mean(dim=1), how)


def _squares_stacked(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs.sub_(targets.t()).square_().mean(dim=1)


CROSS_ENTROPY = Loss("cross-entropy", False, _cross_entropy, _cross_entropy_stacked)
MSE = Loss("mse", True, _squares, _squares_stacked)

LOSSES: Mapping[str, Loss] = MappingProxyType({loss.name: loss for loss in (CROSS_ENTROPY, MSE)})
"""The losses that a config names in `training.loss`."""
