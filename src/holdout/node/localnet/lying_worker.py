"""The worker of a lying node: the bundled one, whose updates are an attack of `holdout.attacks`.

The liar knows no honest update of the round, since it has to speak before it hears them; in their
place it takes gradients of its own data on other mini-batches.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from holdout.attacks import ATTACKS, Attack, DeployedRule, Lie, View
from holdout.errors import UserError
from holdout.ids import ProposalId, RoundNumber
from holdout.node.localnet.demo_worker import BundledWorker
from holdout.node.localnet.demo_worker import make_worker as make_honest
from holdout.rules import RULES
from holdout.seeds import stream
from holdout.voting import Ballot, Terms

GUESSES = 4
GAMMA = 1.5
"""The strength of attacks that have one: there is nothing here to search it on."""


@dataclass(frozen=True, slots=True, eq=False)
class LyingWorker:
    """Proposes what the attack says; votes honestly (the driver replaces the ballot)."""

    honest: BundledWorker
    attack: Attack
    seed: int

    def propose(
        self, weights: Tensor, *, round_number: RoundNumber, learning_rate: float
    ) -> Tensor:
        """One vector of the attack's."""
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
        deployed = DeployedRule(RULES["krum"], known, 1, 1)
        made = self.attack(
            View(
                round_number=round_number,
                weights=weights,
                learning_rate=learning_rate,
                model=self.honest.honest.model,
                count=1,
                known=known,
                own_updates=lambda: known[:1],
                deployed=deployed,
                baseline=lambda rule: DeployedRule(RULES[rule], known, 1, 1),
                source=stream(self.seed, "attack", round_number),
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
        """As an honest worker would."""
        return self.honest.vote(
            weights,
            proposals,
            round_number=round_number,
            learning_rate=learning_rate,
            terms=terms,
        )


def make_worker(
    *,
    model: nn.Module,
    shape: tuple[int, ...],
    classes: int,
    member: int,
    members: int,
    attack: str = "sign-flip",
    seed: int = 0,
) -> LyingWorker:
    """The worker of a liar."""
    if attack not in ATTACKS:
        raise UserError(f"there is no attack {attack!r}; there are {', '.join(ATTACKS)}")
    kind: Any = ATTACKS[attack]
    has_strength = "gamma" in getattr(kind, "__annotations__", {})
    act: Attack = kind(gamma=GAMMA) if has_strength else kind()
    honest = make_honest(
        model=model, shape=shape, classes=classes, member=member, members=members, seed=seed
    )
    return LyingWorker(honest, act, seed)
