"""Many workers and one truthful server in one process (Algorithms 1 and 2, under attack).

A `Federation` is what a seed decides: shards, liars, initial weights. A `Curve` is what is compared
on it: a rule under an attack. `run_round` takes the state after round t - 1 to that after round t;
nothing else changes, so a run can stop and go on after any round.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from holdout.attacks import (
    Attack,
    BallotAttack,
    BallotView,
    Deployed,
    DeployedRule,
    Lie,
    View,
)
from holdout.config import Config
from holdout.errors import HoldoutError, PluginError
from holdout.ids import ProposalId, RoundNumber, WorkerId
from holdout.learning.training import evaluate
from holdout.rounds import (
    AdmittedProposals,
    Decision,
    Outcome,
    RoundRecord,
    admit_proposals,
    apply_rule,
    bound_updates,
    conclude_vote,
    count,
)
from holdout.rules import Rule
from holdout.seeds import stream
from holdout.simulation.booth import Booth, DeployedVote, Judges
from holdout.voting import Committee, Terms, approve_count, draw_committee
from holdout.workers import HoldoutScores, HonestWorker, Worker, propose_together


@dataclass(frozen=True, slots=True, eq=False)
class Federation:
    """What a seed decides, the same for every rule that is compared."""

    config: Config
    seed: int
    model: nn.Module
    initial_weights: Tensor
    workers: Sequence[Worker]
    """By id. Byzantine ones hold what an honest worker in their place would, or poisoned labels."""
    byzantine: frozenset[WorkerId]
    x_test: Tensor
    y_test: Tensor


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


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """All that a round hands to the next."""

    round: int
    weights: Tensor
    velocity: Tensor | None = None
    radius: float | None = None
    last_honest: Tensor | None = None
    """The honest updates of the last round, for an attacker that knows only those."""
    diverged: bool = False


def first_state(federation: Federation) -> State:
    """Before round 1."""
    return State(round=0, weights=federation.initial_weights)


def run_round(federation: Federation, curve: Curve, state: State) -> tuple[RoundRecord, State]:
    """One round: draw, propose, vote or aggregate, step, record."""
    started = time.perf_counter()
    current = _Round(federation, curve, state)
    decision, admitted, gamma, radius = current.decide()
    next_state = current.step(decision, radius, admitted)
    record = _record(current, decision, admitted, gamma, next_state)
    record, next_state = _evaluate(federation, record, next_state)
    return replace(record, seconds=round(time.perf_counter() - started, 6)), next_state


class _Round:
    """The steps of one round, with what they share."""

    def __init__(self, federation: Federation, curve: Curve, state: State) -> None:
        config = federation.config
        self.federation, self.curve, self.state = federation, curve, state
        self.number = RoundNumber(state.round + 1)
        self.byzantine = federation.byzantine
        training = config.training
        self.learning_rate = training.learning_rate / (
            self.number if training.schedule == "inverse" else 1
        )
        settings = config.federation
        self.committee: Committee = draw_committee(
            workers=settings.workers,
            proposers=settings.proposers,
            voters=settings.voters,
            disjoint=settings.disjoint,
            seed=federation.seed,
            round_number=self.number,
            redraw_until_honest=self.byzantine if settings.redraw_until_honest_majority else None,
        )
        proposers = enumerate(self.committee.proposers)
        self.coalition = frozenset(ProposalId(i) for i, w in proposers if w in self.byzantine)

    @property
    def terms(self) -> Terms | None:
        return self.curve.method if isinstance(self.curve.method, Terms) else None

    @property
    def voters(self) -> tuple[WorkerId, ...]:
        return self.committee.voters if self.terms else ()

    def decide(self) -> tuple[Decision, AdmittedProposals, float | None, float | None]:
        """From proposals to a decision; also what was admitted, the attack's gamma, the radius."""
        received = self._honest_proposals()
        dimension = len(self.state.weights)
        honest = admit_proposals(received, dimension=dimension).valid
        judges = self._judges(self.committee.voters)
        gamma = None
        if self.coalition and self.curve.act is not None:
            sent, gamma = self._lie(honest, judges)
            for place, update in zip(sorted(self.coalition), sent, strict=False):
                received[place] = update
        admitted = admit_proposals(received, dimension=dimension)
        if self.terms is None:
            return self._apply_rule(admitted), admitted, gamma, self.state.radius
        bounded, radius = admitted, self.state.radius
        if self.terms.bound:
            bounded, radius = bound_updates(admitted, previous_radius=radius)
        return self._vote(self.terms, bounded, judges), admitted, gamma, radius

    def step(self, decision: Decision, radius: float | None, admitted: AdmittedProposals) -> State:
        """w_{t+1} = w_t - eta_t * v_t, with the server's momentum if it has one."""
        weights, velocity = self.state.weights, self.state.velocity
        momentum = self.federation.config.training.momentum
        if decision.update is not None:
            direction = decision.update
            if momentum:
                velocity = direction if velocity is None else momentum * velocity + direction
                direction = velocity
            weights = weights - self.learning_rate * direction
        last_honest = None
        if self.federation.config.attack.knowledge == "last-round":
            honest = [u for p, u in admitted.valid.items() if p not in self.coalition]
            last_honest = torch.stack(honest) if honest else self.state.last_honest
        return State(
            round=self.number,
            weights=weights,
            velocity=velocity,
            radius=radius,
            last_honest=last_honest,
            diverged=not bool(weights.isfinite().all()),
        )

    def _honest_proposals(self) -> list[object]:
        """What honest proposers send, by place; None for Byzantine ones and those that crash."""
        received: list[object] = [None] * len(self.committee.proposers)
        honest = {
            place: self.federation.workers[worker]
            for place, worker in enumerate(self.committee.proposers)
            if worker not in self.byzantine
        }
        together = {p: w for p, w in honest.items() if isinstance(w, HonestWorker)}
        updates = _attempt(lambda: self._propose(list(together.values())))
        # If the common computation fails, each is asked alone, to see who it is.
        for place, update in zip(together, () if updates is None else updates, strict=False):
            received[place] = update
        for place, worker in honest.items():
            if received[place] is None:
                received[place] = _attempt(
                    partial(
                        worker.propose,
                        self.state.weights,
                        round_number=self.number,
                        learning_rate=self.learning_rate,
                    )
                )
        return received

    def _propose(self, workers: Sequence[HonestWorker]) -> Tensor:
        return propose_together(
            workers,
            self.state.weights,
            round_number=self.number,
            learning_rate=self.learning_rate,
        )

    def _lie(
        self, honest: Mapping[ProposalId, Tensor], judges: Judges
    ) -> tuple[list[object], float | None]:
        """What the coalition's proposers send, and the strength of it if it has one."""
        own: list[Tensor] = []

        def own_updates() -> Tensor:
            if not own:
                drawn = [self.committee.proposers[p] for p in sorted(self.coalition)]
                own.append(self._propose(_as_honest(self.federation, drawn)))
            return own[0]

        guessed, known, judges = self._knowledge(honest, judges, own_updates)
        f = len(guessed) + len(self.coalition)
        f -= approve_count(f, self.federation.config.federation.f)
        standing = torch.stack(list(guessed.values())) if guessed else known[:0]
        deployed: Deployed = DeployedRule(self.curve.rule, standing, len(self.coalition), f)
        if self.terms is not None:
            deployed = DeployedVote(
                booth=self._booth(self.terms),
                judges=judges,
                honest=guessed,
                copies=tuple(sorted(self.coalition)),
                previous_radius=self.state.radius,
                passing=self.federation.config.attack.passing,
            )
        view = View(
            round_number=self.number,
            weights=self.state.weights,
            learning_rate=self.learning_rate,
            model=self.federation.model,
            count=len(self.coalition),
            known=known,
            own_updates=own_updates,
            deployed=deployed,
            krum=DeployedRule("krum", standing, len(self.coalition), f),
            source=stream(self.federation.seed, "attack", self.number),
        )
        act = self.curve.act
        assert act is not None  # noqa: S101
        name = f"attack {self.curve.attack!r}"
        made = _guard(name, lambda: act(view))
        lie = made if isinstance(made, Lie) else Lie(made)
        return _sent(name, lie, view.count), lie.gamma

    def _knowledge(
        self,
        honest: Mapping[ProposalId, Tensor],
        judges: Judges,
        own_updates: Callable[[], Tensor],
    ) -> tuple[Mapping[ProposalId, Tensor], Tensor, Judges]:
        """What the coalition takes for the honest proposals, knows of them, and rehearses with.

        An omniscient one sees this round's proposals and the voters' data. A weaker one has its own
        members' gradients, or last round's, and its own members' data to try them on.
        """
        knowledge = self.federation.config.attack.knowledge
        if knowledge == "omniscient":
            known = torch.stack(list(honest.values())) if honest else own_updates()
            return honest, known, judges
        members = _as_honest(self.federation, sorted(self.byzantine))
        if knowledge == "last-round" and self.state.last_honest is not None:
            known = self.state.last_honest
        else:
            # In round 1 there is no last round yet.
            known = self._propose(members)
        guessed = {p: known[i % len(known)] for i, p in enumerate(honest)}
        stand_ins = {
            voter: members[i % len(members)] for i, voter in enumerate(self.committee.voters)
        }
        return guessed, known, self._judges(self.committee.voters, stand_ins)

    def _apply_rule(self, admitted: AdmittedProposals) -> Decision:
        rule = self.curve.method
        assert not isinstance(rule, Terms)  # noqa: S101
        n = len(admitted.valid)
        f = n - approve_count(n, self.federation.config.federation.f)
        name = f"rule {self.curve.rule!r}"
        decision: Decision = _guard(
            name, lambda: apply_rule(admitted, rule, name=self.curve.rule, f=f)
        )
        if decision.update is not None and (
            not isinstance(decision.update, Tensor)
            or decision.update.shape != self.state.weights.shape
        ):
            raise PluginError(
                f"{name} must return a tensor of shape {tuple(self.state.weights.shape)}; "
                f"got {_describe(decision.update)}"
            )
        if decision.update is not None:
            decision = replace(decision, update=decision.update.detach().float())
        return decision

    def _vote(self, terms: Terms, admitted: AdmittedProposals, judges: Judges) -> Decision:
        if not admitted.valid:
            return Decision(Outcome.NO_PROPOSALS)
        ids, updates = tuple(admitted.valid), admitted.stacked()
        own_ballots = {
            voter: _attempt(
                partial(
                    _own_ballot,
                    worker,
                    self.state.weights,
                    admitted.valid,
                    round_number=self.number,
                    learning_rate=self.learning_rate,
                    terms=terms,
                )
            )
            for voter in self.committee.voters
            if voter not in self.byzantine
            and not isinstance(worker := self.federation.workers[voter], HonestWorker)
        }
        sent = self._booth(terms).collect_ballots(
            ids,
            self.coalition,
            judges.sheet(ids, lambda scores: scores.losses(updates)),
            others=own_ballots,
        )
        return conclude_vote(admitted, sent, voters=self.committee.voters, terms=terms)

    def _booth(self, terms: Terms) -> Booth:
        return Booth(
            terms=terms,
            voters=self.committee.voters,
            byzantine=self.byzantine,
            ballot_attack=partial(_guarded_ballot, self.curve.ballot_attack),
            seed=self.federation.seed,
            round_number=self.number,
        )

    def _judges(
        self,
        voters: Sequence[WorkerId],
        stand_ins: Mapping[WorkerId, HonestWorker] | None = None,
    ) -> Judges:
        honest: dict[WorkerId, HonestWorker] = {}
        byzantine: dict[WorkerId, HonestWorker] = {}
        for voter in voters:
            worker = self.federation.workers[voter]
            if stand_ins is not None:
                worker = stand_ins[voter]
            if isinstance(worker, HonestWorker):
                (byzantine if voter in self.byzantine else honest)[voter] = worker
        first_order = self.terms is not None and self.terms.first_order
        return Judges(
            honest,
            byzantine,
            lambda workers: HoldoutScores(
                workers,
                self.state.weights,
                round_number=self.number,
                learning_rate=self.learning_rate,
                first_order=first_order,
            ),
        )


def _record(
    current: _Round,
    decision: Decision,
    admitted: AdmittedProposals,
    gamma: float | None,
    state: State,
) -> RoundRecord:
    committee, byzantine, voters = current.committee, current.byzantine, current.voters
    ballots = [
        list(decision.ballots[v].approved) if v in decision.ballots else None for v in voters
    ]
    return RoundRecord(
        rule=current.curve.rule,
        attack=current.curve.attack,
        seed=current.federation.seed,
        round=current.number,
        accuracy=None,
        loss=None,
        worst_class_recall=None,
        gamma=gamma,
        proposers=committee.proposers,
        voters=voters,
        byzantine_workers=sorted(byzantine.intersection({*committee.proposers, *voters})),
        byzantine_proposers=len(current.coalition),
        byzantine_voters=len(byzantine.intersection(voters)),
        byzantine_selected=None
        if decision.selection is None
        else len(current.coalition.intersection(decision.selection)),
        ballots=ballots if current.terms else None,
        selection=decision.selection,
        approve_count=decision.approve_count,
        quorum=decision.quorum,
        radius=state.radius if current.terms and current.terms.bound else None,
        outcome=Outcome.DIVERGED if state.diverged else decision.outcome,
        rejected_proposals=count(fault.value for fault in admitted.faults.values()),
        rejected_ballots=count(decision.ballot_faults),
        seconds=0.0,
    )


def _evaluate(
    federation: Federation, record: RoundRecord, state: State
) -> tuple[RoundRecord, State]:
    """Test accuracy where it is due; a loss that is not finite ends the curve."""
    experiment = federation.config.experiment
    due = state.round % experiment.evaluate_every == 0 or state.round == experiment.rounds
    if not (due or state.diverged):
        return record, state
    result = evaluate(federation.model, state.weights, federation.x_test, federation.y_test)
    recall = [share for share in result.class_recall if math.isfinite(share)]
    finite = math.isfinite(result.loss)
    return (
        replace(
            record,
            accuracy=result.accuracy,
            loss=result.loss,
            worst_class_recall=min(recall, default=None),
            outcome=record.outcome if finite else Outcome.DIVERGED,
        ),
        replace(state, diverged=state.diverged or not finite),
    )


def _sent(attack: str, lie: Lie, count: int) -> list[object]:
    """What each Byzantine proposer sends: its own row, or the vector that all send."""
    if not isinstance(lie.updates, Tensor | Sequence):
        raise PluginError(
            f"{attack} must return a tensor, or one tensor or None for each of the {count} "
            f"proposers; got {_describe(lie.updates)}"
        )
    if isinstance(lie.updates, Tensor) and lie.updates.ndim < 2:  # noqa: PLR2004
        return [lie.updates] * count
    return list(lie.updates)


def _as_honest(federation: Federation, workers: Sequence[WorkerId]) -> list[HonestWorker]:
    """Byzantine workers as they would work if they were honest."""
    chosen = [federation.workers[worker] for worker in workers]
    return [worker for worker in chosen if isinstance(worker, HonestWorker)]


def _own_ballot(worker: Worker, *task: Any, **settings: Any) -> list[ProposalId]:
    """What a worker of the user's own kind votes."""
    return list(worker.vote(*task, **settings).approved)


def _attempt(action: Callable[[], Any]) -> Any:
    """What a worker answers; None if it raises, since a worker's crash is not the round's."""
    try:
        return action()
    except Exception:  # noqa: BLE001
        return None


def _guarded_ballot(ballot_attack: BallotAttack, view: BallotView) -> Sequence[ProposalId]:
    ballot: Sequence[ProposalId] = _guard("the attack on ballots", lambda: ballot_attack(view))
    return ballot


def _guard(what: str, action: Callable[[], Any]) -> Any:
    """Run a plug-in; what it raises is reported as its own."""
    try:
        return action()
    except HoldoutError:
        raise
    except Exception as error:
        raise PluginError(f"{what} raised {type(error).__name__}: {error}") from error


def _describe(value: object) -> str:
    return f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(type(value))
