"""What a round starts from, once its committee is drawn: a value that both sides work with."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from holdout.federation.plugin_calls import guard
from holdout.federation.state import Curve, Federation, State
from holdout.ids import ProposalId, RoundNumber, WorkerId
from holdout.kept import Kept
from holdout.voting import Committee, draw_committee
from holdout.workers import HonestWorker, is_plain, propose_together

MOMENTUM = "training.worker_momentum"
"""The name under which a worker's m_i is kept; custom workers never see it."""


@dataclass(frozen=True, eq=False)
class RoundSetup:
    """One round before anybody acts."""

    federation: Federation
    curve: Curve
    state: State
    committee: Committee
    """P_t and C_t."""
    learning_rate: float
    """eta_t."""
    apart: frozenset[WorkerId] = frozenset()
    """Byzantine workers that do not act with the coalition in this round."""

    @property
    def number(self) -> RoundNumber:
        """The paper's t."""
        return RoundNumber(self.state.round + 1)

    @property
    def byzantine(self) -> frozenset[WorkerId]:
        """All workers that lie, drawn or not."""
        return self.federation.byzantine

    @cached_property
    def coalition(self) -> frozenset[ProposalId]:
        """The proposals that liars send together."""
        liars = self.byzantine - self.apart
        places = enumerate(self.committee.proposers)
        return frozenset(ProposalId(place) for place, worker in places if worker in liars)

    def honest_part(self, workers: Sequence[WorkerId]) -> list[HonestWorker]:
        """Byzantine workers as they would work if they were honest."""
        chosen = [self.federation.workers[worker] for worker in workers]
        return [worker for worker in chosen if is_plain(worker)]

    def propose(self, workers: Sequence[HonestWorker]) -> tuple[Tensor, dict[WorkerId, Kept]]:
        """What several workers send in this round, (n, d), and what each keeps of it."""
        updates: Tensor = guard(
            "a worker's model or data",
            lambda: propose_together(
                workers,
                self.state.weights,
                round_number=self.number,
                learning_rate=self.learning_rate,
            ),
        )
        states: dict[WorkerId, Kept] = {}
        if not self.federation.config.training.worker_momentum:
            return updates, states
        pairs = zip(workers, updates, strict=True)
        sent = [self.with_momentum(worker.worker_id, update, states) for worker, update in pairs]
        return torch.stack(sent) if sent else updates, states

    def with_momentum(
        self, worker: WorkerId, update: Tensor, states: dict[WorkerId, Kept]
    ) -> Tensor:
        """What the worker sends: m_i = beta m_i + (1 - beta) g_i, if `worker_momentum` is set.

        From m_i = 0 on, updated when the worker proposes (Karimireddy et al., 2021). The new m_i
        is kept in `states`.
        """
        beta = self.federation.config.training.worker_momentum
        if not beta:
            return update
        before = self.state.worker_states.get(worker, {}).get(MOMENTUM)
        fresh = (1 - beta) * update
        sent = fresh if before is None else beta * before + fresh
        states[worker] = {**states.get(worker, {}), MOMENTUM: sent}
        return sent


def draw_round(federation: Federation, curve: Curve, state: State) -> RoundSetup:
    """The round after this state, with the committee that a truthful server draws."""
    settings, training = federation.config.federation, federation.config.training
    number = RoundNumber(state.round + 1)
    redraw = federation.byzantine if settings.redraw_until_honest_majority else None
    committee = draw_committee(
        workers=settings.workers,
        proposers=settings.proposers,
        voters=settings.voters,
        disjoint=settings.disjoint,
        seed=federation.seed,
        round_number=number,
        redraw_until_honest=redraw,
    )
    slower = number if training.schedule == "inverse" else 1
    return RoundSetup(federation, curve, state, committee, training.learning_rate / slower)
