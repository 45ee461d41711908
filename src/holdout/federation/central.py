"""Many workers and one truthful server in one process (Algorithms 1 and 2, under attack).

`run_round` takes the state after round t - 1 to that after round t; nothing else changes, so a run
can stop and go on after any round.
"""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from holdout.errors import PluginError
from holdout.federation.coalition import send_lies
from holdout.federation.electorate import Judges
from holdout.federation.plugin_calls import attempt, describe, guard
from holdout.federation.round_setup import Curve, Federation, RoundSetup, State
from holdout.ids import ProposalId, WorkerId
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
from holdout.voting import Terms, approve_count
from holdout.workers import Worker, is_plain


@dataclass(frozen=True, slots=True, eq=False)
class _Ending:
    """What came out of a round: the decision, and what it was made from."""

    decision: Decision
    admitted: AdmittedProposals
    gamma: float | None
    radius: float | None


def run_round(federation: Federation, curve: Curve, state: State) -> tuple[RoundRecord, State]:
    """One round: draw, propose, vote or aggregate, step, record."""
    started = time.perf_counter()
    stage = RoundSetup(federation, curve, state)
    ending = _decide(stage)
    next_state = _step(stage, ending)
    record = _record(stage, ending, next_state)
    record, next_state = evaluate_round(federation, record, next_state)
    return replace(record, seconds=round(time.perf_counter() - started, 6)), next_state


def _decide(stage: RoundSetup) -> _Ending:
    """From proposals to a decision."""
    dimension = len(stage.state.weights)
    received = honest_proposals(stage)
    judges = stage.judges()
    gamma = None
    if stage.coalition:
        honest = admit_proposals(received, dimension=dimension).valid
        sent, gamma = send_lies(stage, honest, judges)
        for place, update in zip(sorted(stage.coalition), sent, strict=True):
            received[place] = update
    admitted = admit_proposals(received, dimension=dimension)
    method, radius = stage.curve.method, stage.state.radius
    if not isinstance(method, Terms):
        return _Ending(_apply_rule(stage, method, admitted), admitted, gamma, radius)
    bounded = admitted
    if method.bound:
        bounded, radius = bound_updates(admitted, previous_radius=radius)
    return _Ending(_vote(stage, method, bounded, judges), admitted, gamma, radius)


def honest_proposals(stage: RoundSetup) -> list[object]:
    """What honest proposers send, by place; None for Byzantine ones and those that crash."""
    received: list[object] = [None] * len(stage.committee.proposers)
    honest = {
        place: stage.federation.workers[worker]
        for place, worker in enumerate(stage.committee.proposers)
        if worker not in stage.byzantine
    }
    together = {p: w for p, w in honest.items() if is_plain(w)}
    for place, update in zip(together, stage.propose(list(together.values())), strict=True):
        received[place] = update
    for place, worker in honest.items():
        if place not in together:
            received[place] = attempt(
                partial(
                    worker.propose,
                    stage.state.weights.clone(),
                    round_number=stage.number,
                    learning_rate=stage.learning_rate,
                )
            )
    return received


def _apply_rule(stage: RoundSetup, rule: Rule, admitted: AdmittedProposals) -> Decision:
    n = len(admitted.valid)
    f = n - approve_count(n, stage.federation.config.federation.f)
    name = f"rule {stage.curve.rule!r}"
    decision: Decision = guard(name, lambda: apply_rule(admitted, rule, name=stage.curve.rule, f=f))
    update, wanted = decision.update, stage.state.weights.shape
    if decision.outcome is not Outcome.STEP:
        return decision
    if not isinstance(update, Tensor) or update.shape != wanted or not update.is_floating_point():
        raise PluginError(
            f"{name} must return floats of shape {tuple(wanted)}; got {describe(update)}"
        )
    return replace(decision, update=update.detach().float())


def _vote(stage: RoundSetup, terms: Terms, admitted: AdmittedProposals, judges: Judges) -> Decision:
    if not admitted.valid:
        return Decision(Outcome.NO_PROPOSALS)
    ids, updates = tuple(admitted.valid), admitted.stacked()
    sent = stage.booth(terms).collect_ballots(
        ids,
        stage.coalition,
        judges.sheet(ids, lambda scores: scores.losses(updates)),
        others=_own_ballots(stage, terms, admitted.valid),
    )
    return conclude_vote(admitted, sent, voters=stage.committee.voters, terms=terms)


def _own_ballots(
    stage: RoundSetup, terms: Terms, proposals: Mapping[ProposalId, Tensor]
) -> dict[WorkerId, object]:
    """What voters of the user's own kind send; None if they crash."""

    def ask(worker: Worker) -> list[ProposalId]:
        ballot = worker.vote(
            stage.state.weights.clone(),
            {proposal: update.clone() for proposal, update in proposals.items()},
            round_number=stage.number,
            learning_rate=stage.learning_rate,
            terms=terms,
        )
        return list(ballot.approved)

    return {
        voter: attempt(partial(ask, worker))
        for voter in stage.committee.voters
        if voter not in stage.byzantine and not is_plain(worker := stage.federation.workers[voter])
    }


def _step(stage: RoundSetup, ending: _Ending) -> State:
    """w_{t+1} = w_t - eta_t * v_t, with the server's momentum if it has one."""
    config, state = stage.federation.config, stage.state
    weights, velocity = state.weights, state.velocity
    direction = ending.decision.update
    if direction is not None:
        if momentum := config.training.momentum:
            velocity = direction if velocity is None else momentum * velocity + direction
            direction = velocity
        weights = weights - stage.learning_rate * direction
    last_honest = None
    if config.attack.knowledge == "last-round":
        honest = [u for p, u in ending.admitted.valid.items() if p not in stage.coalition]
        last_honest = torch.stack(honest) if honest else state.last_honest
    return State(
        round=stage.number,
        weights=weights,
        velocity=velocity,
        radius=ending.radius,
        last_honest=last_honest,
        diverged=not bool(weights.isfinite().all()),
    )


def _record(stage: RoundSetup, ending: _Ending, state: State) -> RoundRecord:
    committee, byzantine, decision = stage.committee, stage.byzantine, ending.decision
    terms = stage.terms
    voters = committee.voters if terms else ()
    ballots = [
        list(decision.ballots[v].approved) if v in decision.ballots else None for v in voters
    ]
    selected: Any = decision.selection
    return RoundRecord(
        rule=stage.curve.rule,
        attack=stage.curve.attack,
        seed=stage.federation.seed,
        round=stage.number,
        accuracy=None,
        loss=None,
        worst_class_recall=None,
        gamma=ending.gamma,
        proposers=committee.proposers,
        voters=voters,
        byzantine_workers=sorted(byzantine.intersection({*committee.proposers, *voters})),
        byzantine_proposers=len(stage.coalition),
        byzantine_voters=len(byzantine.intersection(voters)),
        byzantine_selected=None
        if selected is None
        else len(stage.coalition.intersection(selected)),
        ballots=ballots if terms else None,
        selection=selected,
        approve_count=decision.approve_count,
        quorum=decision.quorum,
        radius=state.radius if terms and terms.bound else None,
        outcome=Outcome.DIVERGED if state.diverged else decision.outcome,
        rejected_proposals=count(fault.value for fault in ending.admitted.faults.values()),
        rejected_ballots=count(decision.ballot_faults),
        seconds=0.0,
    )


def evaluate_round(
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
