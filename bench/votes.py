"""A whole vote under attack, against what public research code does and against `torch.mm`.

30 proposals, 10 of them the same lie, judged by 30 voters on 2,000 samples each.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from bench.measure import Row, seconds
from bench.scoring import MLP_FLOPS, PRODUCT_FLOPS
from holdout.data.datasets import load
from holdout.ids import RoundNumber, WorkerId
from holdout.learning import vector
from holdout.learning.models import MODELS, build
from holdout.workers import HoldoutScores, HonestWorker, Recipe, Shard

PROPOSALS, COPIES, VOTERS, SAMPLES, POOL, BATCH = 30, 10, 30, 2000, 60_000, 83
ASKED = 2
"""Voters whom the obvious way is timed on: it shares nothing, so 30 take 15 times as long."""


def rows() -> list[Row]:
    """Digits as they are, and with noise, where no background helps."""
    digits = load("mnist-5k")
    generator = torch.Generator().manual_seed(0)
    x, y = digits.x_train.repeat(15, 1, 1, 1), digits.y_train.repeat(15)
    model = build(MODELS["mlp"], digits.shape, 10, seed=0)
    weights = vector.flatten(model)
    updates = 0.1 * torch.randn(PROPOSALS, len(weights), generator=generator)
    updates[-COPIES:] = updates[-1]
    held = [torch.randperm(POOL, generator=generator)[:SAMPLES] for _ in range(VOTERS)]
    left = torch.randn(2000, 784, generator=generator)
    right = torch.randn(784, 3000, generator=generator)
    found = []
    for name, samples in (("digits", x), ("noise", x + 0.1 * torch.randn(x.shape))):
        workers = [
            HonestWorker(WorkerId(i), model, Shard(samples, y, rows), Recipe(BATCH, 1, SAMPLES), 0)
            for i, rows in enumerate(held)
        ]

        def vote(workers: list[HonestWorker] = workers) -> object:
            scores = HoldoutScores(workers, weights, round_number=RoundNumber(1), learning_rate=0.1)
            return scores.losses(updates)

        def obvious(workers: list[HonestWorker] = workers) -> object:
            return [_losses(model, weights - 0.1 * updates, worker) for worker in workers[:ASKED]]

        times = seconds(
            {"ours": vote, "obvious": obvious, "product": lambda: torch.mm(left, right)},
            repetitions=3,
        )
        rate = PRODUCT_FLOPS / times["product"]
        done = PROPOSALS * VOTERS * SAMPLES * MLP_FLOPS / times["ours"]
        whole = times["obvious"] * VOTERS / ASKED
        title = f"vote, 30 x 30 x 2,000, 10 copies, {name}"
        found += [
            Row(f"{title} / a DataLoader for each voter and proposal", whole / times["ours"], 10.0),
            Row(f"{title} / matrix product (all counted as work)", done / rate, 1.0),
        ]
    return found


def _losses(model: nn.Module, candidates: torch.Tensor, worker: HonestWorker) -> list[float]:
    """What one would write first."""
    rows = worker.shard.rows
    criterion = nn.CrossEntropyLoss(reduction="sum")
    losses = []
    for candidate in candidates:
        model.load_state_dict(vector.unflatten(model, candidate))
        total = 0.0
        with torch.no_grad():
            data = TensorDataset(worker.shard.x[rows], worker.shard.y[rows])
            for x, y in DataLoader(data, batch_size=BATCH):
                total += criterion(model(x), y).item()
        losses.append(total / len(rows))
    return losses
