"""A whole vote under attack, against what public research code does and against `torch.mm`.

30 proposals, 10 of them the same lie, judged by 30 voters on 2,000 samples each.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from bench import memory
from bench.measure import Row, seconds
from bench.scoring import MLP_FLOPS, PRODUCT_FLOPS, product
from holdout.data.datasets import Shard, load
from holdout.holdout_scores import HoldoutScores
from holdout.ids import RoundNumber, WorkerId
from holdout.learning import vector
from holdout.learning.models import MODELS, build
from holdout.workers import HonestWorker, Recipe

PROPOSALS, COPIES, VOTERS, SAMPLES, POOL, BATCH = 30, 10, 30, 2000, 60_000, 83
ASKED = 2
"""Voters whom the obvious way is timed on: it shares nothing, so 30 take 15 times as long."""
KINDS = ("digits", "noise")
"""Digits as they are, and with noise, where no background helps."""
WAYS = ("ours", "obvious")
RATE_TARGET = 0.7


@dataclass(frozen=True, slots=True, eq=False)
class Vote:
    """Who judges what."""

    model: nn.Module
    weights: Tensor
    updates: Tensor
    workers: list[HonestWorker]

    def ours(self) -> object:
        """As the simulation does it."""
        scores = HoldoutScores(
            self.workers, self.weights, round_number=RoundNumber(1), learning_rate=0.1
        )
        return scores.losses(self.updates)

    def obvious(self) -> object:
        """As one would write it first, for some of the voters."""
        candidates = self.weights - 0.1 * self.updates
        return [_losses(self.model, candidates, worker) for worker in self.workers[:ASKED]]

    @property
    def share_of_samples(self) -> float:
        """Of the samples asked for, those that are not there twice."""
        asked = torch.cat([worker.shard.rows for worker in self.workers])
        return len(torch.unique(asked)) / len(asked)


def rows() -> list[Row]:
    """Time against the obvious way; FLOP rate against a matrix product."""
    return [row for kind in KINDS for row in _rows(kind)]


def prepare(kind: str, who: str) -> Callable[[], object]:
    """One whole vote."""
    action: Callable[[], object] = getattr(_vote(kind), who)
    return action


def _rows(kind: str) -> list[Row]:
    vote = _vote(kind)
    times = seconds(
        {"ours": vote.ours, "obvious": vote.obvious, "product": product()}, repetitions=3
    )
    rate = PRODUCT_FLOPS / times["product"]
    asked = PROPOSALS * VOTERS * SAMPLES * MLP_FLOPS / times["ours"]
    # Nobody need score a sample twice, nor a copy.
    done = asked * vote.share_of_samples * (PROPOSALS - COPIES + 1) / PROPOSALS
    whole = times["obvious"] * VOTERS / ASKED
    ours, obvious = (memory.of(__name__, kind, w) for w in WAYS)
    title = f"vote, 30 x 30 x 2,000, 10 copies, {kind}"
    used = f"memory: {ours}, the other {obvious} for {ASKED} voters"
    return [
        Row(f"{title} / a DataLoader for each voter and proposal", whole / times["ours"], 10, used),
        Row(f"{title} / matrix product (all counted as work)", asked / rate, 1.0),
        Row(f"{title} / matrix product (nothing counted twice)", done / rate, RATE_TARGET),
    ]


def _vote(kind: str) -> Vote:
    digits = load("mnist-5k")
    generator = torch.Generator().manual_seed(0)
    x, y = digits.x_train.repeat(15, 1, 1, 1), digits.y_train.repeat(15)
    model = build(MODELS["mlp"], digits.shape, 10, seed=0)
    weights = vector.flatten(model)
    updates = 0.1 * torch.randn(PROPOSALS, len(weights), generator=generator)
    updates[-COPIES:] = updates[-1]
    held = [torch.randperm(POOL, generator=generator)[:SAMPLES] for _ in range(VOTERS)]
    if kind == "noise":
        x += 0.1 * torch.randn(x.shape, generator=generator)
    recipe = Recipe(BATCH, 1, SAMPLES)
    workers = [
        HonestWorker(WorkerId(i), model, Shard(x, y, rows), recipe, 0)
        for i, rows in enumerate(held)
    ]
    return Vote(model, weights, updates, workers)


def _losses(model: nn.Module, candidates: Tensor, worker: HonestWorker) -> list[float]:
    rows = worker.shard.rows
    data = TensorDataset(worker.shard.x[rows], worker.shard.y[rows])
    criterion = nn.CrossEntropyLoss(reduction="sum")
    losses = []
    for candidate in candidates:
        model.load_state_dict(vector.unflatten(model, candidate))
        total = 0.0
        with torch.no_grad():
            for x, y in DataLoader(data, batch_size=BATCH):
                total += criterion(model(x), y).item()
        losses.append(total / len(rows))
    return losses
