"""Workers: holders of private data who propose updates and vote on those of others.

`Worker` is the one protocol: a simulated federation calls it, and so can anything else that trains.
`HonestWorker` follows Algorithm 2. Simulated honest workers share one pool of samples, so their
gradients are computed together (`propose_together`), and so are their votes (`holdout_scores`).

A custom worker that remembers something from one round to the next takes `state` in `propose`: a
dict of tensors that nobody else sees; see `holdout.custom_code`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from typing_extensions import TypeIs

from holdout import device
from holdout.custom_code import describe, guard, refused
from holdout.data.datasets import Shard
from holdout.holdout_scores import HoldoutScores
from holdout.ids import ProposalId, RoundNumber, WorkerId
from holdout.learning.losses import CROSS_ENTROPY, Loss
from holdout.learning.training import Batch, decayed, gradients, local_update
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

    Either method may also take a keyword `state`: a dict of tensors of this worker's own, empty at
    first. In the next round the worker gets back what it wrote there. The dict is saved in
    checkpoints (on a node it lasts as long as the worker's process).
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
        """Its ballot on the proposals, judged by its own data.

        If `terms.is_joint`, `proposals` is empty, and the ballot is a `holdout.voting.JointBallot`:
        the update that the worker would itself propose from its holdout data.
        """


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a worker trains, and how much of its data it uses in a round.

    Example:
        >>> import holdout
        >>> recipe = holdout.Recipe(batch_size=32, local_steps=1, holdout_samples=200)
    """

    batch_size: int
    """The samples in a mini-batch: the paper's B. A worker with fewer takes all it has."""
    local_steps: int
    """The steps of SGD that a proposal is made of."""
    holdout_samples: int
    """The samples by which a voter judges in a round: the paper's m_c. A voter with fewer uses
    all."""
    local_epochs: int = 0
    """Passes over its own data that a proposal is made of; 0: `local_steps` counts instead."""
    weight_decay: float = 0.0
    """Adds this times the weights to each gradient of training; voters judge without it."""
    loss: Loss = CROSS_ENTROPY
    """What training lowers and voters judge by."""
    augment: Callable[..., Any] | None = None
    """Changes each batch of training: (x, y, generator) -> (x, y); None: batches are as drawn."""


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

    @property
    def loss(self) -> Loss:
        """What it judges by."""
        return self.recipe.loss

    def batches(self, round_number: RoundNumber) -> list[Batch]:
        """The mini-batches of this round, one per local step."""
        return [
            self._augmented(self._samples(rows), round_number, step)
            for step, rows in enumerate(self._batch_rows(round_number))
        ]

    def _batch_rows(self, round_number: RoundNumber) -> list[Tensor]:
        recipe = self.recipe
        if not recipe.local_epochs:
            return [
                self._draw(recipe.batch_size, "batch", round_number, step)
                for step in range(recipe.local_steps)
            ]
        passes = [
            self._shuffled("epoch", round_number, epoch) for epoch in range(recipe.local_epochs)
        ]
        return [rows for one in passes for rows in torch.split(one, recipe.batch_size)]

    def holdout_rows(self, round_number: RoundNumber) -> Tensor:
        """The rows of the pool that this worker judges proposals by in this round."""
        return self._draw(self.recipe.holdout_samples, "holdout", round_number)

    def holdout_batches(self, round_number: RoundNumber) -> list[Batch]:
        """The samples that this worker judges by in this round, in as many parts as local steps."""
        parts = self.holdout_rows(round_number).tensor_split(self._steps)
        return [self._samples(rows) for rows in parts if len(rows)]

    @property
    def _steps(self) -> int:
        """How many steps of SGD its proposal is made of."""
        recipe = self.recipe
        if not recipe.local_epochs:
            return recipe.local_steps
        return recipe.local_epochs * -(-len(self.shard.rows) // recipe.batch_size)

    def _draw(self, count: int, *purpose: str | int) -> Tensor:
        if count >= len(self.shard.rows):
            return self.shard.rows
        return self._shuffled(*purpose)[:count]

    def _shuffled(self, *purpose: str | int) -> Tensor:
        rows = self.shard.rows
        return rows[device.randperm(len(rows), generator=self._generator(*purpose))]

    def _generator(self, *purpose: str | int) -> torch.Generator:
        return device.generator(stream(self.seed, *purpose, self.worker_id).generator_seed())

    def _augmented(self, batch: Batch, round_number: RoundNumber, step: int) -> Batch:
        augment = self.recipe.augment
        if augment is None:
            return batch
        x, y = batch
        generator = self._generator("augment", round_number, step)
        made = guard("data.augment", lambda: augment(x.clone(), y.clone(), generator), augment)
        return _checked_batch(made, augment, like=batch)

    def _samples(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        # For few rows several times as fast as x[rows].
        return self.shard.x.index_select(0, rows), self.shard.y.index_select(0, rows)


def _checked_batch(made: object, augment: object, *, like: Batch) -> Batch:
    """What an augmentation gave, if it can be trained on."""
    match made:
        case (Tensor() as x, Tensor() as y) if len(x) == len(y) > 0:
            fits = all(
                part.dtype == old.dtype
                and part.shape[1:] == old.shape[1:]
                and device.is_here(part)
                and bool(part.isfinite().all())
                for part, old in zip((x, y), like, strict=True)
            )
            if fits:
                return x, y
    raise refused(
        "data.augment must return finite samples and targets like those that it got, "
        f"{_described(like)}; got {_described(made)}",
        augment,
    )


def _described(parts: object) -> str:
    if not isinstance(parts, tuple):
        return describe(parts)
    return " and ".join(map(describe, parts)) or "an empty tuple"


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
    decays = [worker.recipe.weight_decay for worker in workers]
    return _updates(workers, weights, drawn, learning_rate, decays)


def judge_together(
    workers: Sequence[HonestWorker],
    weights: Tensor,
    *,
    round_number: RoundNumber,
    learning_rate: float,
) -> Tensor:
    """The joint ballots of several workers, (n, d): what each would propose by its holdout rows."""
    drawn = [worker.holdout_batches(round_number) for worker in workers]
    return _updates(workers, weights, drawn, learning_rate, [0.0] * len(workers))


def _updates(
    workers: Sequence[HonestWorker],
    weights: Tensor,
    drawn: Sequence[list[Batch]],
    learning_rate: float,
    decays: Sequence[float],
) -> Tensor:
    if not workers:
        return weights.new_empty(0, len(weights))
    model, loss = workers[0].model, workers[0].loss
    alike = all(worker.loss is loss for worker in workers)
    if alike and all(len(batches) == 1 for batches in drawn):
        slopes = gradients(model, weights, [batches[0] for batches in drawn], loss=loss)
        if not any(decays):
            return slopes
        pairs = zip(slopes, decays, strict=True)
        return torch.stack([decayed(slope, weights, decay) for slope, decay in pairs])
    return torch.stack(
        [
            local_update(
                model,
                weights,
                batches,
                learning_rate=learning_rate,
                loss=worker.loss,
                weight_decay=decay,
            )
            for worker, batches, decay in zip(workers, drawn, decays, strict=True)
        ]
    )
