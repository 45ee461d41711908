"""A member's worker, as small as it gets: a linear model on private synthetic data."""

import time

import torch
from torch import nn

from holdout.data.datasets import Shard
from holdout.ids import WorkerId
from holdout.voting import Approvals
from holdout.workers import HonestWorker, Recipe

SHAPE, CLASSES = (8,), 3


def make_model(shape, classes):
    return nn.Linear(shape[0], classes)


class Failing:
    """A worker that does not do what it should, from some round on."""

    def __init__(self, honest, how, after):
        self.honest, self.how, self.after = honest, how, after

    def propose(self, weights, *, round_number, learning_rate):
        update = self.honest.propose(
            weights, round_number=round_number, learning_rate=learning_rate
        )
        if round_number <= self.after:
            return update
        if self.how == "raises":
            raise RuntimeError("no data today")
        if self.how == "hangs":
            time.sleep(3600)
        return update * float("nan")

    def vote(self, weights, proposals, *, round_number, learning_rate, terms):
        if round_number > self.after and self.how == "approves-all":
            return Approvals(tuple(proposals))
        if round_number > self.after:
            raise RuntimeError("no opinion")
        return self.honest.vote(
            weights,
            proposals,
            round_number=round_number,
            learning_rate=learning_rate,
            terms=terms,
        )


def make_worker(*, model, shape, classes, member, members, how="", after=0):
    if how == "no-worker":
        raise RuntimeError("the data base is down")
    generator = torch.Generator().manual_seed(member)
    truth = torch.randn(classes, *shape, generator=torch.Generator().manual_seed(99))
    x = torch.randn(200, *shape, generator=generator)
    y = (x @ truth.T).argmax(dim=1)
    shard = Shard(x, y, torch.arange(200))
    honest = HonestWorker(WorkerId(member), model, shard, Recipe(32, 1, 100), 0)
    return Failing(honest, how, after) if how else honest
