"""A backdoor: the model works as before, but rows that carry a trigger are taken for one class."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from holdout.attacks.view import Batch, Lie, View
from holdout.errors import MisuseError
from holdout.learning.scoring import sample_losses
from holdout.learning.training import gradients, local_update

IMAGE = 3
"""Channels, height, width."""

GROWTH = 1.5
"""The ratio of one factor that is tried to the one before."""


@runtime_checkable
class Triggering(Protocol):
    """An attack whose success is measured: the share of triggered rows taken for its target.

    Example:
        >>> import holdout
        >>> class Bright:
        ...     target = 0
        ...
        ...     def put_trigger(self, x):
        ...         return x.clamp(min=1.0)
        ...
        ...     def __call__(self, view):
        ...         return view.own_updates()
        >>> plugins = holdout.Plugins(attack=Bright())
    """

    target: int
    """The class for which triggered rows are to be taken."""

    def put_trigger(self, x: Tensor) -> Tensor:
        """A copy of the rows with the trigger on them."""


@dataclass(frozen=True, slots=True)
class Backdoor:
    """Honest work, but for rows with a bright square on them, which are labelled as one class.

    Of each mini-batch a liar takes the first `share` of the rows (x, y) with y != target, sets a
    square of `size` times `size` pixels in every channel to `value`, and labels them `target`. With
    p_i the gradient of the batch after that (with local steps, the pseudo-gradient), liar i sends

        factor * p_i.

    A factor of about n / (number of liars) replaces the mean by the liars' own (model replacement).
    With "search" it is the one of 1, 1.5, 1.5^2, ..., `factor_max` after which, tried through the
    deployed rule on samples that the liars hold,

        loss(x, y) + loss(x with the trigger, target)

    is least. With worker momentum, liars send the plain gradient.

    Source: Gu et al., 2017, BadNets, arXiv 1708.06733; Bagdasaryan et al., 2020, arXiv 1807.00459.

    Needs: images with labels, any rule, any model.

    Args:
        target: The class for which rows with the trigger are to be taken.
        share: The share of each mini-batch that gets the trigger.
        size: The side of the square, in pixels.
        row: The place of its upper edge; below 0, counted from the bottom.
        column: The place of its left edge; below 0, counted from the right.
        value: What its pixels are set to, on the scale that the model sees: after `data.normalise`.
        factor: By what the update is multiplied, or "search".
        factor_max: The largest factor that is searched.
        shape: For rows that are flat: channels, height and width of the image in each.

    Example:
        >>> from holdout.attacks import ATTACKS
        >>> attack = ATTACKS["backdoor"](size=1, row=0, column=-1, value=9.0, shape=[1, 2, 2])
        >>> attack.put_trigger(torch.zeros(1, 4))
        tensor([[0., 9., 0., 0.]])
    """

    target: int = 0
    share: float = 0.3
    size: int = 3
    row: int = -4
    column: int = -4
    value: float = 2.8
    factor: float | Literal["search"] = 1.0
    factor_max: float = 30.0
    shape: Sequence[int] = ()

    def data_problems(self, shape: tuple[int, ...], classes: int | None) -> list[str]:
        """What does not fit rows of this shape and this many classes, one line each."""
        if classes is None:
            return ["attack.name = 'backdoor': needs classes; the targets are real-valued"]
        image = tuple(self.shape) or shape
        size, numbers = torch.Size(image).numel(), torch.Size(shape).numel()
        if len(image) != IMAGE or min(image) < 1 or size != numbers:
            return [
                "attack.name = 'backdoor': needs images (channels, height, width), or flat rows "
                f"and attack.shape; got rows of shape {shape} and attack.shape = {list(self.shape)}"
            ]
        fits = {
            "target": (0 <= self.target < classes, f"must be from 0 to {classes - 1}"),
            "share": (0 < self.share <= 1, "must be above 0 and at most 1"),
            "size": (1 <= self.size <= min(image[1:]), f"must be from 1 to {min(image[1:])}"),
            "row": self._fits(self.row, *image[1:]),
            "column": self._fits(self.column, *reversed(image[1:])),
            "factor": (self.factor == "search" or self.factor > 0, 'must be above 0 or "search"'),
            "factor_max": (self.factor_max >= 1, "must be at least 1"),
        }
        return [
            f"attack.{key} = {getattr(self, key)!r}: {rule}"
            for key, (holds, rule) in fits.items()
            if not holds
        ]

    def _fits(self, place: int, side: int, other: int) -> tuple[bool, str]:
        """Whether a square that begins in this place, and is no wider, stays in the image."""
        holds = -side <= place < side and place % side + self.size <= side
        return (
            holds or not 1 <= self.size <= min(side, other),
            f"a square of {self.size} pixels there does not fit a side of {side}",
        )

    def put_trigger(self, x: Tensor) -> Tensor:
        """A copy of the rows with the square on them."""
        images = x.reshape(len(x), *(self.shape or x.shape[1:])).clone()
        top, left = self.row % images.shape[2], self.column % images.shape[3]
        images[:, :, top : top + self.size, left : left + self.size] = self.value
        return images.reshape(x.shape)

    def poison(self, x: Tensor, y: Tensor) -> Batch:
        """The mini-batch on which a liar trains."""
        rows = torch.nonzero(y != self.target).flatten()[: max(1, round(self.share * len(y)))]
        x, y = x.clone(), y.clone()
        x[rows] = self.put_trigger(x[rows])
        y[rows] = self.target
        return x, y

    def __call__(self, view: View) -> Lie:
        """A row for each Byzantine proposer."""
        batches = view.own_batches()
        if len(batches) != view.count:
            raise MisuseError(f"{view.count} liars need their batches; got {len(batches)}")
        poisoned = _updates(view, [[self.poison(*batch) for batch in one] for one in batches])
        factor = self._searched(view, poisoned) if self.factor == "search" else self.factor
        return Lie(factor * poisoned, factor)

    def _searched(self, view: View, poisoned: Tensor) -> float:
        """The factor after which the model knows the trigger best and has lost least."""
        tried = [1.0]
        while GROWTH * tried[-1] < self.factor_max:
            tried.append(GROWTH * tried[-1])
        tried.append(self.factor_max)
        none = torch.zeros_like(view.weights)
        steps = [view.deployed.outcome(list(factor * poisoned)) for factor in tried]
        moves = torch.stack([none if step is None else step for step in steps])
        x, y = view.held()
        others = y != self.target
        wanted = torch.full_like(y[others], self.target)
        goals = [(x, y), (self.put_trigger(x[others]), wanted)]
        weights = view.weights - view.learning_rate * moves
        means = [
            sample_losses(view.model, weights, rows, labels).mean(dim=1, dtype=torch.float64)
            for rows, labels in goals
            if len(labels)
        ]
        totals = torch.stack(means).sum(dim=0).nan_to_num(nan=torch.inf).tolist()
        return tried[min(range(len(tried)), key=totals.__getitem__)]  # The weakest of equals.


def _updates(view: View, batches: Sequence[Sequence[Batch]]) -> Tensor:
    if all(len(one) == 1 for one in batches):
        return gradients(view.model, view.weights, [one[0] for one in batches])
    return torch.stack(
        [
            local_update(view.model, view.weights, one, learning_rate=view.learning_rate)
            for one in batches
        ]
    )
