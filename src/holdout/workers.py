"""Workers: holders of private data who propose updates and vote on those of others.

`Worker` is the one protocol: the simulation calls it, and so can anything else that trains.
`HonestWorker` follows Algorithm 2. Simulated honest workers share one pool of samples, so their
work is done together in large matrix products: `propose_together` for the gradients,
`HoldoutScores` for the votes. A worker alone is the case of one.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor, nn
from typing_extensions import TypeIs

from holdout.ids import ProposalId, RoundNumber, WorkerId
from holdout.learning.scoring import combination_losses, sample_losses
from holdout.learning.training import gradients, local_update
from holdout.seeds import stream
from holdout.voting import Ballot, Terms

SCORING_BLOCK = 4096  # Rows gathered at once: bounds memory, small beside the matrix products.


class Worker(Protocol):
    """A holder of private data."""

    def propose(
        self, weights: Tensor, *, round_number: RoundNumber, learning_rate: float
    ) -> Tensor:
        """An update (a gradient, or with local steps a pseudo-gradient) from the own data."""

    def vote(
        self,
        weights: Tensor,
        proposals: Mapping[ProposalId, Tensor],
        *,
        round_number: RoundNumber,
        learning_rate: float,
        terms: Terms,
    ) -> Ballot:
        """The proposals that do best on the own data."""


@dataclass(frozen=True, slots=True, eq=False)
class Shard:
    """Private data: some rows of a pool that simulated workers share."""

    x: Tensor
    y: Tensor
    rows: Tensor


@dataclass(frozen=True, slots=True)
class Recipe:
    """How much of its data a worker uses in a round."""

    batch_size: int
    """The paper's B."""
    local_steps: int
    holdout_samples: int
    """The paper's m_c."""


@dataclass(frozen=True, slots=True, eq=False)
class HonestWorker:
    """A worker that follows the algorithm."""

    worker_id: WorkerId
    model: nn.Module
    shard: Shard
    recipe: Recipe
    seed: int

    def propose(
        self, weights: Tensor, *, round_number: RoundNumber, learning_rate: float
    ) -> Tensor:
        """Algorithm 2's getUpdate."""
        return propose_together(
            [self], weights, round_number=round_number, learning_rate=learning_rate
        )[0]

    def vote(
        self,
        weights: Tensor,
        proposals: Mapping[ProposalId, Tensor],
        *,
        round_number: RoundNumber,
        learning_rate: float,
        terms: Terms,
    ) -> Ballot:
        """Algorithm 2's getVotes."""
        if not proposals:
            return Ballot(())
        scores = HoldoutScores(
            [self],
            weights,
            round_number=round_number,
            learning_rate=learning_rate,
            first_order=terms.first_order,
        )
        losses = scores.losses(torch.stack(list(proposals.values())))[0].tolist()
        current = scores.current[0] if terms.needs_current_loss else math.inf
        return terms.cast(dict(zip(proposals, losses, strict=True)), current_loss=current)

    def batches(self, round_number: RoundNumber) -> list[tuple[Tensor, Tensor]]:
        """The mini-batches of this round, one a local step."""
        return [
            self._samples(self._draw(self.recipe.batch_size, "batch", round_number, step))
            for step in range(self.recipe.local_steps)
        ]

    def holdout_rows(self, round_number: RoundNumber) -> Tensor:
        """The rows of the pool that this worker judges proposals by in this round."""
        return self._draw(self.recipe.holdout_samples, "holdout", round_number)

    def _draw(self, count: int, *purpose: str | int) -> Tensor:
        rows = self.shard.rows
        if count == len(rows):
            return rows
        seed = stream(self.seed, *purpose, self.worker_id).generator_seed()
        order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
        return rows[order[:count]]

    def _samples(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        return self.shard.x[rows], self.shard.y[rows]


def is_plain(worker: Worker) -> TypeIs[HonestWorker]:
    """Whether the worker can be computed together with others; a subclass may do anything."""
    return type(worker) is HonestWorker


def propose_together(
    workers: Sequence[HonestWorker],
    weights: Tensor,
    *,
    round_number: RoundNumber,
    learning_rate: float,
) -> Tensor:
    """The updates of several workers, (n, d)."""
    if not workers:
        return weights.new_empty(0, len(weights))
    model = workers[0].model
    drawn = [worker.batches(round_number) for worker in workers]
    if all(len(batches) == 1 for batches in drawn):
        return gradients(model, weights, [batches[0] for batches in drawn])
    return torch.stack(
        [local_update(model, weights, batches, learning_rate=learning_rate) for batches in drawn]
    )


class HoldoutScores:
    """What some voters think of updates in one round: L_c(w - eta * u) for each voter c.

    Nothing is computed twice: a sample that several voters hold is scored once, and so is an update
    that comes again, from several proposers or in a later call.
    """

    def __init__(
        self,
        voters: Sequence[HonestWorker],
        weights: Tensor,
        *,
        round_number: RoundNumber,
        learning_rate: float,
        first_order: bool = False,
    ) -> None:
        self._voters = tuple(voters)
        self._weights = weights
        self._learning_rate = learning_rate
        self._known: dict[bytes, Tensor] = {}
        rows = [voter.holdout_rows(round_number) for voter in self._voters]
        self._own_gradients: Tensor | None = None
        self._pools: list[_Pool] = []
        if first_order:
            samples = [
                (v.shard.x[r], v.shard.y[r]) for v, r in zip(self._voters, rows, strict=True)
            ]
            self._own_gradients = gradients(self._voters[0].model, weights, samples).double()
        else:
            self._pools = _pool(self._voters, rows)

    @property
    def voter_count(self) -> int:
        """How many voters these are."""
        return len(self._voters)

    @cached_property
    def current(self) -> list[float]:
        """Each voter's loss of the current model; 0 for first-order scores, which are changes."""
        losses: list[float] = self.losses(torch.zeros_like(self._weights)[None])[:, 0].tolist()
        return losses

    def losses(self, updates: Tensor) -> Tensor:
        """(voters, updates) of float64; what is not finite comes out as infinite."""
        keys = [hashlib.sha256(row.contiguous().numpy()).digest() for row in updates]
        new = {key: i for i, key in enumerate(keys) if key not in self._known}
        if new:
            columns = self._score(updates[list(new.values())])
            self._known.update(zip(new, columns.unbind(dim=1), strict=True))
        return torch.stack([self._known[key] for key in keys], dim=1)

    def combination_losses(self, directions: Tensor, coefficients: Tensor) -> Tensor:
        """The same for the updates coefficients @ directions; cheap for many on few directions."""
        if self._own_gradients is not None:
            return self._first_order(coefficients.double() @ directions.double())
        steps = -self._learning_rate * coefficients
        return self._average(
            lambda model, x, y: combination_losses(model, self._weights, directions, steps, x, y),
            len(coefficients),
        )

    def _score(self, updates: Tensor) -> Tensor:
        if self._own_gradients is not None:
            return self._first_order(updates.double())
        candidates = self._weights - self._learning_rate * updates
        return self._average(
            lambda model, x, y: sample_losses(model, candidates, x, y), len(updates)
        )

    def _first_order(self, updates: Tensor) -> Tensor:
        assert self._own_gradients is not None  # noqa: S101
        return -(self._own_gradients @ updates.T)

    def _average(self, score: "_Score", count: int) -> Tensor:
        result = torch.empty(len(self._voters), count, dtype=torch.float64)
        for pool in self._pools:
            losses = torch.cat(
                [score(pool.model, pool.x[rows], pool.y[rows]) for rows in pool.blocks], dim=1
            )
            for voter, places in pool.places:
                result[voter] = losses[:, places].mean(dim=1, dtype=torch.float64)
        return result


class _Score(Protocol):
    def __call__(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor: ...


@dataclass(frozen=True, slots=True, eq=False)
class _Pool:
    """The samples of those voters who share a pool, each sample once."""

    model: nn.Module
    x: Tensor
    y: Tensor
    blocks: tuple[Tensor, ...]
    places: list[tuple[int, Tensor]]
    """For each voter (by its number), where its samples stand in the blocks."""


def _pool(voters: Sequence[HonestWorker], rows: Sequence[Tensor]) -> list[_Pool]:
    members: dict[tuple[int, int], list[int]] = {}
    for number, voter in enumerate(voters):
        members.setdefault((id(voter.shard.x), id(voter.shard.y)), []).append(number)
    pools = []
    for numbers in members.values():
        distinct, places = torch.unique(torch.cat([rows[n] for n in numbers]), return_inverse=True)
        shard = voters[numbers[0]].shard
        pools.append(
            _Pool(
                voters[numbers[0]].model,
                shard.x,
                shard.y,
                distinct.split(SCORING_BLOCK),
                list(zip(numbers, places.split([len(rows[n]) for n in numbers]), strict=True)),
            )
        )
    return pools
