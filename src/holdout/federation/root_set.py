"""The server's own clean rows, for rules that look at more than the updates."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from holdout import device
from holdout.config import TrainingSection
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

    It trains as a worker does, but nothing is drawn: all rows are used, in as many parts as there
    are local steps; with local epochs, batch after batch.
    """

    model: nn.Module
    weights: Tensor
    learning_rate: float
    training: TrainingSection
    loss: Loss
    x: Tensor
    y: Tensor

    def update(self) -> Tensor:
        """The gradient of all rows; with local steps or epochs, the pseudo-gradient."""
        epochs, steps = self.training.local_epochs, self.training.local_steps

        def parts(rows: Tensor) -> Sequence[Tensor]:
            return (
                torch.split(rows, self.training.batch_size) if epochs else rows.tensor_split(steps)
            )

        once = [(x, y) for x, y in zip(parts(self.x), parts(self.y), strict=True) if len(y)]
        return local_update(
            self.model,
            self.weights,
            once * max(epochs, 1),
            learning_rate=self.learning_rate,
            loss=self.loss,
            weight_decay=self.training.weight_decay,
        )

    def losses(self, updates: Tensor) -> Tensor:
        """The mean loss of the rows at w - eta * u; infinite where it is not finite."""
        candidates = self.weights - self.learning_rate * updates.to(self.weights)
        losses = sample_losses(self.model, candidates, self.x, self.y, loss=self.loss)
        return losses.mean(dim=1, dtype=torch.float64)
