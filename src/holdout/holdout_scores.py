"""What voters think of proposals: the losses of many candidates on many voters' holdout samples.

Simulated honest workers share one pool of samples, so their votes are computed together, in large
matrix products. A voter alone is the case of one.
"""

import hashlib
from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from holdout import device, parallel
from holdout.data.datasets import Shard
from holdout.ids import RoundNumber
from holdout.learning import sparse
from holdout.learning.losses import Loss
from holdout.learning.scoring import Combinations, Samples, sample_losses, takes_sparse
from holdout.learning.sparse import Sparse
from holdout.learning.training import gradients

SCORING_BLOCK = 4096  # Rows gathered at once: bounds memory, small beside the matrix products.


class Voter(Protocol):
    """What scoring needs of a voter: its model, its data, and the rows that it judges by."""

    @property
    def model(self) -> nn.Module:
        """What turns samples into logits."""

    @property
    def shard(self) -> Shard:
        """Its data."""

    @property
    def loss(self) -> Loss:
        """What it judges by."""

    def holdout_rows(self, round_number: RoundNumber) -> Tensor:
        """The rows of the pool that it judges by in this round."""


class HoldoutScores:
    """What some voters think of updates in one round: L_c(w - eta * u) for each voter c.

    Nothing is computed twice: a sample that several voters hold is scored once, and so is an update
    that comes again, from several proposers or in a later call. Voters are known here by their
    number; a caller that does not need all of them names those that it asks.
    """

    def __init__(
        self,
        voters: Sequence[Voter],
        weights: Tensor,
        *,
        round_number: RoundNumber,
        learning_rate: float,
        first_order: bool = False,
        with_current: bool = False,
    ) -> None:
        """With `with_current`, the current model is scored along with the first updates."""
        self._voters = tuple(voters)
        self._weights = weights
        self._learning_rate = learning_rate
        self._with_current = with_current
        self._known: dict[bytes, dict[int, float]] = {}
        self._pools: dict[tuple[int, ...], list[_Pool]] = {}
        # Keyed by the directions, and forgotten with them.
        self._combinations: MutableMapping[Tensor, dict[int, Combinations]] = (
            WeakTensorKeyDictionary()
        )
        self._rows = [voter.holdout_rows(round_number) for voter in self._voters]
        self._own_gradients: Tensor | None = None
        if first_order:
            samples = [
                (v.shard.x[r], v.shard.y[r]) for v, r in zip(self._voters, self._rows, strict=True)
            ]
            first = self._voters[0]
            self._own_gradients = gradients(first.model, weights, samples, loss=first.loss).double()

    @property
    def voter_count(self) -> int:
        """The number of voters."""
        return len(self._voters)

    @property
    def current(self) -> list[float]:
        """Each voter's loss of the current model; 0 for first-order scores, which are changes."""
        return self.current_of(range(self.voter_count))

    def current_of(self, voters: Sequence[int]) -> list[float]:
        """The current model's loss for these voters only."""
        heard = self._known.setdefault(self._no_step_key, {})
        if silent := tuple(voter for voter in voters if voter not in heard):
            column = self._score(self._no_step, silent)[:, 0].tolist()
            heard.update(zip(silent, column, strict=True))
        return [heard[voter] for voter in voters]

    def losses(
        self,
        updates: Tensor,
        voters: Sequence[int] | None = None,
        digests: Sequence[bytes] | None = None,
    ) -> Tensor:
        """(voters, updates) of float64; what is not finite comes out as infinite.

        Args:
            updates: What is judged, (n, d).
            voters: Who judges, by number; without it, all.
            digests: `digest_of` each update, from callers who ask about the same ones repeatedly.
        """
        asked = range(self.voter_count) if voters is None else voters
        keys = [digest_of(row) for row in updates] if digests is None else digests
        tried, wanted = updates, keys
        if self._with_current:
            tried, wanted = torch.cat([updates, self._no_step]), [*keys, self._no_step_key]
        # Mostly all updates are new to the same voters, and then this is one computation.
        new: dict[tuple[int, ...], dict[bytes, int]] = {}
        for place, key in enumerate(wanted):
            heard = self._known.setdefault(key, {})
            if silent := tuple(voter for voter in asked if voter not in heard):
                new.setdefault(silent, {})[key] = place
        for silent, places in new.items():
            columns = self._score(tried[list(places.values())], silent).T.tolist()
            for key, column in zip(places, columns, strict=True):
                self._known[key].update(zip(silent, column, strict=True))
        found = [[self._known[key][voter] for key in keys] for voter in asked]
        return device.tensor(found, dtype=torch.float64).view(len(asked), len(updates))

    def combination_losses(
        self, directions: Tensor, coefficients: Tensor, voters: Sequence[int] | None = None
    ) -> Tensor:
        """Losses of the updates coefficients @ directions; cheap for many on few directions.

        What can be reused is kept for the next call with the same tensor of directions. So here
        each voter's samples are scored separately.
        """
        asked = list(range(self.voter_count) if voters is None else voters)
        if self._own_gradients is not None:
            return self._first_order(coefficients.double() @ directions.double(), asked)
        steps = -self._learning_rate * coefficients
        result = device.empty(len(asked), len(coefficients), dtype=torch.float64)
        parts = self._combinations.setdefault(directions, {})

        def score(place: int) -> None:
            voter = asked[place]
            if voter not in parts:
                x, y = self._samples(voter)
                model, loss = self._voters[voter].model, self._voters[voter].loss
                parts[voter] = Combinations(model, self._weights, directions, x, y, loss=loss)
            result[place] = parts[voter].losses(steps).mean(dim=1, dtype=torch.float64)

        parallel.run_all(score, range(len(asked)))
        return result

    def scaled_losses(
        self, updates: Tensor, scales: Tensor, voters: Sequence[int] | None = None
    ) -> Tensor:
        """What voters think of the updates in several sizes, (voters, sizes, updates)."""
        coefficients = torch.diag_embed(scales).flatten(0, 1)
        losses = self.combination_losses(updates, coefficients, voters)
        return losses.view(len(losses), *scales.shape)

    @property
    def shares_sizes(self) -> bool:
        """Whether many sizes of an update cost little more than one."""
        model, shape = self._voters[0].model, self._voters[0].shard.x.shape[1:]
        return self._own_gradients is not None or takes_sparse(model, tuple(shape))

    @cached_property
    def _no_step(self) -> Tensor:
        return torch.zeros_like(self._weights)[None]

    @cached_property
    def _no_step_key(self) -> bytes:
        return digest_of(self._no_step[0])

    def _score(self, updates: Tensor, voters: tuple[int, ...]) -> Tensor:
        if self._own_gradients is not None:
            return self._first_order(updates.double(), voters)
        candidates = self._weights - self._learning_rate * updates
        loss = self._voters[0].loss
        return self._average(
            lambda model, x, y: sample_losses(model, candidates, x, y, loss=loss),
            len(updates),
            voters,
        )

    def _first_order(self, updates: Tensor, voters: Sequence[int]) -> Tensor:
        assert self._own_gradients is not None  # noqa: S101
        return -(self._own_gradients[list(voters)] @ updates.T)

    def _samples(self, voter: int) -> tuple[Samples, Tensor]:
        """One voter's holdout samples and their labels."""
        shard, rows = self._voters[voter].shard, self._rows[voter]
        compressed = _compressed(self._voters[voter])
        x = shard.x[rows] if compressed is None else sparse.take(compressed, rows)
        return x, shard.y[rows]

    def _average(self, score: "_Score", count: int, voters: tuple[int, ...]) -> Tensor:
        result = device.empty(len(voters), count, dtype=torch.float64)
        if voters not in self._pools:
            self._pools[voters] = _pool(
                [self._voters[voter] for voter in voters], [self._rows[voter] for voter in voters]
            )
        for pool in self._pools[voters]:
            losses = torch.cat([score(pool.model, *samples) for samples in pool.samples()], dim=1)
            for place, columns in pool.places:
                result[place] = losses[:, columns].mean(dim=1, dtype=torch.float64)
        return result


class _Score(Protocol):
    def __call__(self, model: nn.Module, x: Samples, y: Tensor) -> Tensor: ...


@dataclass(frozen=True, slots=True, eq=False)
class _Pool:
    """The samples of those voters who share a pool, each sample once."""

    model: nn.Module
    x: Tensor
    y: Tensor
    blocks: tuple[Tensor, ...]
    places: list[tuple[int, Tensor]]
    """For each voter (by its place), where its samples are in the blocks."""
    sparse: tuple[Sparse, ...] | None
    """The blocks' samples in sparse form, where the model gains from it."""

    def samples(self) -> Iterator[tuple[Samples, Tensor]]:
        """The samples and their labels, block by block."""
        for number, rows in enumerate(self.blocks):
            yield self.x[rows] if self.sparse is None else self.sparse[number], self.y[rows]


def _pool(voters: Sequence[Voter], rows: Sequence[Tensor]) -> list[_Pool]:
    members: dict[tuple[int, int], list[int]] = {}
    for place, voter in enumerate(voters):
        members.setdefault((id(voter.shard.x), id(voter.shard.y)), []).append(place)
    pools = []
    for places in members.values():
        distinct, columns = torch.unique(torch.cat([rows[n] for n in places]), return_inverse=True)
        first = voters[places[0]]
        x, y, compressed = first.shard.x, first.shard.y, _compressed(first)
        # Sparse samples are small enough for one block, so the weights are prepared only once.
        blocks = distinct.split(SCORING_BLOCK) if compressed is None else (distinct,)
        pools.append(
            _Pool(
                first.model,
                x,
                y,
                blocks,
                list(zip(places, columns.split([len(rows[n]) for n in places]), strict=True)),
                None if compressed is None else tuple(compressed.take(rows) for rows in blocks),
            )
        )
    return pools


def digest_of(update: Tensor) -> bytes:
    """What tells an update from others that voters have judged."""
    return hashlib.sha256(device.to_numpy(update.contiguous()).data).digest()


def _compressed(worker: Voter) -> Sparse | None:
    """The pool that the worker's samples are part of, if the model gains from sparse samples."""
    x = worker.shard.x
    return sparse.of(x) if takes_sparse(worker.model, tuple(x.shape[1:])) else None
