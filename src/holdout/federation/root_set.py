"""The server's own clean rows, for rules that look at more than the updates."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from holdout import device
from holdout.data.datasets import Shard
from holdout.learning.losses import Loss
from holdout.learning.scoring import sample_losses
from holdout.learning.training import local_update
from holdout.seeds import stream


def draw_root(x: Tensor, y: Tensor, count: int, *, seed: int) -> Shard | None:
    """The rows that the server holds: drawn once a seed, whoever else holds them; None for 0."""
    if not count:
        return None
    noise = device.generator(stream(seed, "root").generator_seed())
    return Shard(x, y, device.randperm(len(y), generator=noise)[:count])


@dataclass(frozen=True, slots=True, eq=False)
class RootSet:
    """What the rows say in one round: `holdout.rules.Root`.

    Nothing is drawn: all rows are used, in as many parts as there are local steps.
    """

    model: nn.Module
    weights: Tensor
    learning_rate: float
    local_steps: int
    loss: Loss
    x: Tensor
    y: Tensor

    def update(self) -> Tensor:
        """The gradient of all rows; with local steps, the pseudo-gradient."""
        parts = zip(
            self.x.tensor_split(self.local_steps),
            self.y.tensor_split(self.local_steps),
            strict=True,
        )
        batches = [(x, y) for x, y in parts if len(y)]
        return local_update(
            self.model, self.weights, batches, learning_rate=self.learning_rate, loss=self.loss
        )

    def losses(self, updates: Tensor) -> Tensor:
        """The mean loss of the rows at w - eta * u; infinite where it is not finite."""
        candidates = self.weights - self.learning_rate * updates.to(self.weights)
        losses = sample_losses(self.model, candidates, self.x, self.y, loss=self.loss)
        return losses.mean(dim=1, dtype=torch.float64)
