"""Workers for trying things out, on the 5,000 bundled digits: an honest one and one that lies.

A new `node.toml` names `holdout.node.demo:make_worker`, until the member names its own function.
`holdout localnet` uses both workers.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from holdout import device
from holdout.attacks import ATTACKS, Attack, DeployedRule, Lie, View
from holdout.data.datasets import Shard, load
from holdout.data.partitions import partition
from holdout.errors import UserError
from holdout.ids import ProposalId, RoundNumber, WorkerId
from holdout.learning import vector
from holdout.rules import RULES
from holdout.seeds import stream
from holdout.voting import Ballot, Terms
from holdout.workers import HonestWorker, Recipe

DATA = "mnist-5k"
GUESSES = 4
GAMMA = 1.5
"""The strength of attacks that have one: there is nothing here to search it on."""


@dataclass(frozen=True, slots=True, eq=False)
class DemoWorker(HonestWorker):
    """An honest worker that can also tell how good a model is."""

    x_test: Tensor
    y_test: Tensor

    def accuracy(self, weights: Tensor) -> float:
        """The share of the test digits that the model classifies correctly."""
        with torch.no_grad():
            parts = vector.unflatten(self.model, weights)
            logits = vector.call(self.model, parts, self.x_test)
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
) -> DemoWorker:
    """One member's honest worker; the seed and its place in the roster decide its shard."""
    del shape
    dataset = load(DATA)
    rows = partition(
        "iid",
        device.to_numpy(dataset.y_train),
        workers=members,
        samples_per_worker=samples,
        classes=classes,
        seed=seed,
    )[member]
    shard = Shard(dataset.x_train, dataset.y_train, device.from_numpy(rows))
    recipe = Recipe(batch_size, 1, holdout_samples)
    return DemoWorker(WorkerId(member), model, shard, recipe, seed, dataset.x_test, dataset.y_test)


@dataclass(frozen=True, slots=True, eq=False)
class LyingWorker:
    """Proposes what an attack says, and votes honestly (a lying node replaces the ballot).

    It proposes before it has heard any honest update of the round. In their place it gives the
    attack gradients of its own data, each on another mini-batch.
    """

    honest: HonestWorker
    attack: Attack
    seed: int

    def propose(
        self, weights: Tensor, *, round_number: RoundNumber, learning_rate: float
    ) -> Tensor:
        """Propose the attack's first update."""
        known = torch.stack(
            [
                self.honest.propose(
                    weights,
                    round_number=RoundNumber(GUESSES * round_number + guess),
                    learning_rate=learning_rate,
                )
                for guess in range(GUESSES)
            ]
        )
        shard = self.honest.shard
        made = self.attack(
            View(
                round_number=round_number,
                weights=weights,
                learning_rate=learning_rate,
                model=self.honest.model,
                count=1,
                proposers=1 + GUESSES,
                known=known,
                own_updates=lambda: known[:1],
                held=lambda: (shard.x[shard.rows], shard.y[shard.rows]),
                start=vector.flatten(self.honest.model),
                deployed=DeployedRule(RULES["krum"], known, 1, 1),
                baseline=lambda rule: DeployedRule(RULES[rule], known, 1, 1),
                source=stream(self.seed, "attack", round_number),
                run_source=stream(self.seed, "attack"),
                own_batches=lambda: [self.honest.batches(round_number)],
            )
        )
        updates = made.updates if isinstance(made, Lie) else made
        if isinstance(updates, Tensor):
            return updates if updates.ndim == 1 else updates[0]
        first = updates[0]
        return torch.zeros_like(weights) if first is None else first

    def vote(
        self,
        weights: Tensor,
        proposals: Mapping[ProposalId, Tensor],
        *,
        round_number: RoundNumber,
        learning_rate: float,
        terms: Terms,
    ) -> Ballot:
        """Vote as an honest worker would."""
        return self.honest.vote(
            weights, proposals, round_number=round_number, learning_rate=learning_rate, terms=terms
        )


def make_lying_worker(
    *,
    model: nn.Module,
    shape: tuple[int, ...],
    classes: int,
    member: int,
    members: int,
    attack: str = "sign-flip",
    seed: int = 0,
) -> LyingWorker:
    """The worker of a liar, whose updates are an attack of `holdout.attacks`."""
    if attack not in ATTACKS:
        raise UserError(f"there is no attack {attack!r}; there are {', '.join(ATTACKS)}")
    kind: Any = ATTACKS[attack]
    has_strength = "gamma" in getattr(kind, "__annotations__", {})
    act: Attack = kind(gamma=GAMMA) if has_strength else kind()
    honest = make_worker(
        model=model, shape=shape, classes=classes, member=member, members=members, seed=seed
    )
    return LyingWorker(honest, act, seed)


def linear(shape: tuple[int, ...], classes: int) -> nn.Module:
    """A model of one layer, small enough for networks of many nodes on one machine."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))
