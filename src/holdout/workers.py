"""Workers: holders of private data who propose updates and vote on those of others.

`Worker` is the one protocol: a simulated federation calls it, and so can anything else that trains.
`HonestWorker` follows Algorithm 2. Simulated honest workers share one pool of samples, so their
gradients are computed together (`propose_together`), and so are their votes (`holdout_scores`).

A custom worker that remembers something from one round to the next takes `state` in `propose`: a
dict of tensors that nobody else sees; see `holdout.custom_code`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from typing_extensions import TypeIs

from holdout import device
from holdout.data.datasets import Shard
from holdout.holdout_scores import HoldoutScores
from holdout.ids import ProposalId, RoundNumber, WorkerId
from holdout.learning.training import gradients, local_update
from holdout.seeds import stream
from holdout.voting import Ballot, JointBallot, Terms


class Worker(Protocol):
    """A holder of private data.

    Example:
        >>> class Scaled:
        ...     def __init__(self, honest):
        ...         self.honest = honest
        ...
        ...     def propose(self, weights, *, round_number, learning_rate):
        ...         update = self.honest.propose(
        ...             weights, round_number=round_number, learning_rate=learning_rate
        ...         )
        ...         return 0.5 * update
        ...
        ...     def vote(self, weights, proposals, **round_facts):
        ...         return self.honest.vote(weights, proposals, **round_facts)

    Either method may also take a keyword `state`: a dict of tensors, this worker's alone, that is
    empty at first. What the worker writes into it is handed to it again in the next round, and is
    saved in checkpoints (on a node it lasts as long as the worker's process).
    """

    def propose(
        self, weights: Tensor, *, round_number: RoundNumber, learning_rate: float
    ) -> Tensor:
        """An update (a gradient, or with local steps a pseudo-gradient) from its own data."""

    def vote(
        self,
        weights: Tensor,
        proposals: Mapping[ProposalId, Tensor],
        *,
        round_number: RoundNumber,
        learning_rate: float,
        terms: Terms,
    ) -> Ballot:
        """What it says about the proposals, judged by its own data.

        Where `terms.is_joint`, nobody shows it any: `proposals` is empty, and it answers with a
        `holdout.voting.JointBallot`, the update that it would itself propose by its holdout data.
        """


@dataclass(frozen=True, slots=True)
class Recipe:
    """How much of its data a worker uses in a round.

    Example:
        >>> import holdout
        >>> recipe = holdout.Recipe(batch_size=32, local_steps=1, holdout_samples=200)
    """

    batch_size: int
    """The samples in a mini-batch: the paper's B."""
    local_steps: int
    """The steps of SGD that a proposal is made of."""
    holdout_samples: int
    """The samples by which a voter judges in a round: the paper's m_c."""


@dataclass(frozen=True, slots=True, eq=False)
class HonestWorker:
    """A worker that follows the algorithm; `Plugins(worker=...)` is called with each of them.

    Example:
        >>> import holdout
        >>> from dataclasses import replace
        >>> def in_small_batches(worker):
        ...     return replace(worker, recipe=replace(worker.recipe, batch_size=2))
        >>> x, y = [[-3.0], [3.0]] * 20, [0, 1] * 20
        >>> plugins = holdout.Plugins(data=(x, y, x, y), worker=in_small_batches)
        >>> setting = {
        ...     "experiment": {"rules": ["holdout"], "rounds": 3, "threads": 1},
        ...     "data": {"samples_per_worker": 10},
        ...     "federation": {"workers": 9, "proposers": 4, "voters": 4},
        ...     "training": {"batch_size": 5}, "vote": {"samples": 10},
        ... }
        >>> holdout.run(setting, plugins=plugins).accuracy("holdout")
        1.0
    """

    worker_id: WorkerId
    """Its number in the federation, from 0."""
    model: nn.Module
    """What is trained; its weights are handed in each round."""
    shard: Shard
    """Its private data."""
    recipe: Recipe
    """How much of its data it uses in a round."""
    seed: int
    """With the round and its number, decides which samples it draws."""

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
        """Algorithm 2's getVotes; a joint ballot does not depend on the proposals."""
        if terms.is_joint:
            return JointBallot(
                judge_together(
                    [self], weights, round_number=round_number, learning_rate=learning_rate
                )[0]
            )
        if not proposals:
            return terms.cast({}, current_loss=math.inf)
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

    def holdout_batches(self, round_number: RoundNumber) -> list[tuple[Tensor, Tensor]]:
        """The samples that this worker judges by in this round, in as many parts as local steps."""
        parts = self.holdout_rows(round_number).tensor_split(self.recipe.local_steps)
        return [self._samples(rows) for rows in parts if len(rows)]

    def _draw(self, count: int, *purpose: str | int) -> Tensor:
        rows = self.shard.rows
        if count == len(rows):
            return rows
        seed = stream(self.seed, *purpose, self.worker_id).generator_seed()
        order = device.randperm(len(rows), generator=device.generator(seed))
        return rows[order[:count]]

    def _samples(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        # For few rows several times as fast as x[rows].
        return self.shard.x.index_select(0, rows), self.shard.y.index_select(0, rows)


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
    drawn = [worker.batches(round_number) for worker in workers]
    return _updates(workers, weights, drawn, learning_rate)


def judge_together(
    workers: Sequence[HonestWorker],
    weights: Tensor,
    *,
    round_number: RoundNumber,
    learning_rate: float,
) -> Tensor:
    """The joint ballots of several workers, (n, d): what each would propose by its holdout rows."""
    drawn = [worker.holdout_batches(round_number) for worker in workers]
    return _updates(workers, weights, drawn, learning_rate)


def _updates(
    workers: Sequence[HonestWorker],
    weights: Tensor,
    drawn: Sequence[list[tuple[Tensor, Tensor]]],
    learning_rate: float,
) -> Tensor:
    if not workers:
        return weights.new_empty(0, len(weights))
    model = workers[0].model
    if all(len(batches) == 1 for batches in drawn):
        return gradients(model, weights, [batches[0] for batches in drawn])
    return torch.stack(
        [local_update(model, weights, batches, learning_rate=learning_rate) for batches in drawn]
    )
