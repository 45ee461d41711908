"""What a round starts from: who takes part, what is compared, and who was drawn.

A `Federation` is what a seed decides: shards, liars, initial weights. A `Curve` is what is compared
on it: a rule under an attack. A `State` is all that one round hands to the next. A `RoundSetup` is
the three together with the draw of one round: a value that both sides work with.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor, nn

from holdout.attacks import (
    BALLOT_ATTACKS,
    MESSAGE_ATTACKS,
    REPORT_ATTACKS,
    Attack,
    BallotAttack,
    MessageAttack,
    ReportAttack,
    Triggering,
)
from holdout.attacks.schedule import Schedule
from holdout.config import Config
from holdout.custom_code import Kept, ask_each, guard, private_copy
from holdout.data.datasets import Shard
from holdout.federation.root_set import RootSet
from holdout.ids import ProposalId, RoundNumber, WorkerId
from holdout.learning.losses import CROSS_ENTROPY, Loss
from holdout.learning.schedules import rate_at
from holdout.rules import Rule, RuleContext
from holdout.seeds import stream
from holdout.tracebacks import Failure
from holdout.voting import Committee, Terms, draw_committee
from holdout.workers import HonestWorker, Worker, is_plain, propose_together

PROPOSE, VOTE, BALLOT, LIE = "propose", "vote", "ballot", "lie"
"""What is asked of custom code, as a round's record counts what it raises: a worker's update and
its vote, what lying voters send, what liars propose."""
MOMENTUM = "training.worker_momentum"
"""The name under which a worker's m_i is kept; custom workers never see it."""


@dataclass(frozen=True, slots=True, eq=False)
class Federation:
    """What a seed decides, the same for every rule that is compared."""

    config: Config
    seed: int
    model: nn.Module
    initial_weights: Tensor
    workers: Sequence[Worker]
    """All, by id. Liars hold what an honest worker in their place would, or poisoned labels."""
    labels: Tensor
    """The true labels of the pool of samples that the workers hold rows of."""
    byzantine: frozenset[WorkerId]
    x_test: Tensor
    y_test: Tensor
    classes: int | None
    root: Shard | None = None
    """The server's own clean rows, if it has any."""
    trigger: Triggering | None = None
    """The attack whose success on triggered rows is measured, on curves without liars too."""
    loss: Loss = CROSS_ENTROPY
    pool: Sequence[Tensor] = ()
    """The data that all workers share, which custom ones must not change."""
    rates: Sequence[float] = ()
    """The learning rates of the first rounds; for later ones the schedule is asked."""

    def rate(self, t: int) -> float:
        """The learning rate of round t, counted from 1."""
        if t <= len(self.rates):
            return self.rates[t - 1]
        return rate_at(self.config.training, t, rounds=self.config.experiment.rounds)


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """A rule under an attack."""

    rule: str
    method: Rule | Terms
    """A baseline, or the terms of a vote."""
    attack: str
    act: Attack | None
    """None: nobody lies."""
    ballot_attack: BallotAttack
    message_attack: MessageAttack = MESSAGE_ATTACKS["honest"]
    """How Byzantine voters lie where ballots are joint."""
    report_attack: ReportAttack = REPORT_ATTACKS["honest"]
    """How Byzantine voters lie where a rule asks for reports."""

    @property
    def terms(self) -> Terms | None:
        """The terms of the vote, if the rule is one."""
        return self.method if isinstance(self.method, Terms) else None


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """All that a round hands to the next."""

    round: int
    weights: Tensor
    velocity: Tensor | None = None
    radius: float | None = None
    last_honest: Tensor | None = None
    """The honest updates of the last round, for an attacker that knows only those."""
    rule_state: Mapping[str, Tensor] = field(default_factory=dict)
    """What the rule keeps."""
    worker_states: Mapping[WorkerId, Mapping[str, Tensor]] = field(default_factory=dict)
    """What workers keep, such as their momentum; those that keep nothing are left out."""
    diverged: bool = False


def first_state(federation: Federation) -> State:
    """The state before round 1."""
    return State(round=0, weights=federation.initial_weights)


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

    @property
    def lie_share(self) -> float:
        """How much of the lie is told in this round, by the attack's schedule; 0: nobody lies."""
        attack = self.federation.config.attack
        schedule = Schedule(attack.onset, attack.ramp, attack.every, attack.dormant)
        return schedule.share(self.number)

    @property
    def ballot_attack(self) -> BallotAttack:
        """How Byzantine voters vote in this round."""
        return self.curve.ballot_attack if self.lie_share else BALLOT_ATTACKS["honest"]

    @property
    def message_attack(self) -> MessageAttack:
        """What Byzantine voters send in this round where ballots are joint."""
        return self.curve.message_attack if self.lie_share else MESSAGE_ATTACKS["honest"]

    @property
    def report_attack(self) -> ReportAttack:
        """What Byzantine voters report in this round where a rule asks them."""
        return self.curve.report_attack if self.lie_share else REPORT_ATTACKS["honest"]

    @cached_property
    def coalition(self) -> frozenset[ProposalId]:
        """The proposals that liars send together."""
        liars = self.byzantine - self.apart
        places = enumerate(self.committee.proposers)
        return frozenset(ProposalId(place) for place, worker in places if worker in liars)

    def honest_part(self, workers: Sequence[WorkerId]) -> list[HonestWorker]:
        """Byzantine workers as they would work if they were honest, with the labels they hold."""
        chosen = [self.federation.workers[worker] for worker in workers]
        plain = [worker for worker in chosen if is_plain(worker)]
        return plain if self.lie_share else self.with_true_labels(plain)

    def with_true_labels(self, workers: Sequence[HonestWorker]) -> list[HonestWorker]:
        """The workers as they would be without an attack that poisons their labels."""
        y = self.federation.labels
        return [w if w.shard.y is y else replace(w, shard=replace(w.shard, y=y)) for w in workers]

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

    def propose_each(
        self, workers: Sequence[HonestWorker], failures: list[Failure]
    ) -> tuple[list[Tensor | None], dict[WorkerId, Kept]]:
        """The same where custom code may raise: None for each worker whom it keeps from it."""
        kept: dict[WorkerId, Kept] = {}

        def ask(some: Sequence[HonestWorker]) -> Tensor:
            updates, states = self.propose(some)
            kept.update(states)
            return updates

        sent = ask_each(
            ask,
            workers,
            kind=PROPOSE,
            who=lambda worker: f"worker {worker.worker_id}, asked to {PROPOSE}: ",
            failures=failures,
        )
        return sent, kept

    def with_momentum(
        self, worker: WorkerId, update: Tensor, states: dict[WorkerId, Kept]
    ) -> Tensor:
        """What the worker sends: m_i = beta m_i + (1 - beta) g_i, if `worker_momentum` is set.

        It starts at 0 and is updated when the worker proposes (Karimireddy et al., 2021). The new
        m_i is kept in `states`.
        """
        beta = self.federation.config.training.worker_momentum
        if not beta:
            return update
        before = self.state.worker_states.get(worker, {}).get(MOMENTUM)
        fresh = (1 - beta) * update
        sent = fresh if before is None else beta * before + fresh
        kept = states.get(worker, self.state.worker_states.get(worker, {}))
        states[worker] = {**kept, MOMENTUM: sent}
        return sent


def draw_round(federation: Federation, curve: Curve, state: State) -> RoundSetup:
    """The round after this state, with the committee that a truthful server draws."""
    config = federation.config
    settings = config.federation
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
    return RoundSetup(federation, curve, state, committee, federation.rate(number))


def rule_context(setup: RoundSetup, root: Shard | None = None) -> RuleContext:
    """What a rule may know in this round; whatever it does to it changes nothing here.

    Args:
        setup: The round.
        root: The rows that are taken for the server's; without it, the server's own.
    """
    held = root or setup.federation.root
    return RuleContext(
        round_number=setup.number,
        weights=setup.state.weights.clone(),
        learning_rate=setup.learning_rate,
        source=stream(setup.federation.seed, "rule", setup.number),
        state=private_copy(setup.state.rule_state),
        root=None if held is None else _root_set(setup, held),
    )


def _root_set(setup: RoundSetup, held: Shard) -> RootSet:
    return RootSet(
        setup.federation.model,
        setup.state.weights,
        setup.learning_rate,
        setup.federation.config.training,
        setup.federation.loss,
        held.x[held.rows],
        held.y[held.rows],
    )
