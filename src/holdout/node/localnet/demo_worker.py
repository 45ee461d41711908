"""The worker of `holdout localnet`: the demo's, on its shard of the 5,000 bundled digits."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from holdout.data.datasets import load
from holdout.data.partitions import partition
from holdout.ids import ProposalId, RoundNumber, WorkerId
from holdout.learning import vector
from holdout.voting import Ballot, Terms
from holdout.workers import HonestWorker, Recipe, Shard

DATA = "mnist-5k"


@dataclass(frozen=True, slots=True, eq=False)
class BundledWorker:
    """An honest worker that can also tell how good a model is."""

    honest: HonestWorker
    x_test: Tensor
    y_test: Tensor

    def propose(
        self, weights: Tensor, *, round_number: RoundNumber, learning_rate: float
    ) -> Tensor:
        """As Algorithm 2 says."""
        return self.honest.propose(weights, round_number=round_number, learning_rate=learning_rate)

    def vote(
        self,
        weights: Tensor,
        proposals: Mapping[ProposalId, Tensor],
        *,
        round_number: RoundNumber,
        learning_rate: float,
        terms: Terms,
    ) -> Ballot:
        """As Algorithm 2 says."""
        return self.honest.vote(
            weights,
            proposals,
            round_number=round_number,
            learning_rate=learning_rate,
            terms=terms,
        )

    def accuracy(self, weights: Tensor) -> float:
        """The share of the test digits that the model reads rightly."""
        with torch.no_grad():
            parts = vector.unflatten(self.honest.model, weights)
            logits = vector.call(self.honest.model, parts, self.x_test)
        return float((logits.argmax(dim=1) == self.y_test).double().mean())


def make_worker(
    *,
    model: nn.Module,
    shape: tuple[int, ...],
    classes: int,
    member: int,
    members: int,
    seed: int = 0,
    samples: int = 400,
    batch_size: int = 40,
    holdout_samples: int = 200,
) -> BundledWorker:
    """The worker of one member: its shard is decided by the seed and its place in the roster."""
    del shape
    dataset = load(DATA)
    rows = partition(
        "iid",
        dataset.y_train.numpy(),
        workers=members,
        samples_per_worker=samples,
        classes=classes,
        seed=seed,
    )[member]
    shard = Shard(dataset.x_train, dataset.y_train, torch.from_numpy(rows))
    recipe = Recipe(batch_size, 1, holdout_samples)
    honest = HonestWorker(WorkerId(member), model, shard, recipe, seed)
    return BundledWorker(honest, dataset.x_test, dataset.y_test)


def linear(shape: tuple[int, ...], classes: int) -> nn.Module:
    """The smallest model for these digits: one layer. For networks of many nodes on one machine."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))
