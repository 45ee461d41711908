"""One round with a truthful server (Algorithm 2), read from top to bottom.

`run_round` takes the state after round t - 1 to that after round t; nothing else changes, so a run
can stop and go on after any round. What the server does with what it receives is in
`holdout.rounds`; here are many workers in one process, liars included.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from holdout.custom_code import Kept, checked_copy, counted, describe, guard, refused, spare
from holdout.errors import PluginError
from holdout.federation.coalition import Lies, as_liars_see, lie_or_be_silent, lie_to_server
from holdout.federation.custom_workers import Heard, ask_to_propose, ask_to_vote, count_missing
from holdout.federation.electorate import VoterScores, electorate_of, score_voters
from holdout.federation.joint_ballots import JointVoters, joint_voters, memory_of
from holdout.federation.reports import Reporters
from holdout.federation.round_setup import (
    BALLOT,
    Curve,
    Federation,
    RoundSetup,
    State,
    draw_round,
    rule_context,
)
from holdout.ids import ProposalId, WorkerId
from holdout.joint_vote import JointMemory
from holdout.learning.training import evaluate, share_taken_for
from holdout.rounds import (
    AdmittedProposals,
    Decision,
    Outcome,
    RoundRecord,
    admit_proposals,
    apply_rule,
    bound_updates,
    conclude_joint,
    conclude_vote,
    record_round,
    with_dissimilarity,
)
from holdout.rules import Rule
from holdout.rules.rule import checked_update
from holdout.tracebacks import Failure
from holdout.voting import Terms, tolerated_count
from holdout.workers import is_plain

AGGREGATE, EVALUATE = "aggregate", "evaluate"
"""What a rule is asked to do, and what a model is when it is measured, as a round's record counts
what they raise."""


def run_round(federation: Federation, curve: Curve, state: State) -> tuple[RoundRecord, State]:
    """Draw, propose, lie, admit, bound, vote or aggregate, step, record."""
    started = time.perf_counter()
    # The server draws the proposers P_t and the voters C_t.
    setup = draw_round(federation, curve, state)
    # getUpdate: every honest proposer sends an update.
    proposals = propose(setup)
    heard = Heard(dict(proposals.worker_states), list(proposals.failures))
    method = curve.method
    # Where ballots are joint the voters need not wait for the proposals.
    scores = score_voters(setup)
    voters = joint_voters(setup, heard)
    # The coalition, which has seen all that, sends its lies (Algorithm 4).
    lies = Lies((), None)
    if setup.coalition:
        proposals, lies = _lie(setup, proposals, scores, voters)
        heard.states.update(lies.worker_states)
        heard.failures.extend(lies.failures)
    # Proposals that are missing, misshapen or not finite are out.
    admitted = admit_proposals(proposals.received, dimension=len(state.weights))
    # A vote bounds the updates; its voters judge them (getVotes), the server counts (A_Consensus).
    # A baseline rule looks at the updates alone.
    radius, rule_state = state.radius, state.rule_state
    if voters is not None:
        decision, memory = _vote_jointly(voters, admitted, lies, heard)
        radius, rule_state = memory.radius, memory.kept()
    elif isinstance(method, Terms):
        bounded = admitted
        if method.bound:
            bounded, radius = bound_updates(admitted, previous_radius=radius)
        decision = _vote(setup, method, bounded, scores, heard)
    else:
        decision, rule_state = _aggregate(setup, method, admitted, heard.failures)
    # w_{t+1} = w_t - eta_t v_t.
    next_state = replace(
        _step(setup, decision),
        radius=radius,
        last_honest=last_honest(setup, admitted.valid),
        rule_state=rule_state,
        worker_states={**state.worker_states, **heard.states},
    )
    record = _record(setup, decision, admitted, next_state, lies.gamma, failures=heard.failures)
    record, next_state = evaluate_round(federation, record, next_state)
    record = with_dissimilarity(record, honest_of(setup, admitted.valid))
    return replace(record, seconds=round(time.perf_counter() - started, 6)), next_state


@dataclass(frozen=True, slots=True, eq=False)
class Proposals:
    """What proposers send, by place, and the state that workers keep."""

    received: Sequence[object]
    """None: the worker stays silent."""
    worker_states: Mapping[WorkerId, Kept]
    failures: Sequence[Failure] = ()
    """What custom code raised."""


def propose(setup: RoundSetup) -> Proposals:
    """What honest proposers send; None for Byzantine ones and those with whom code raises."""
    received: list[object] = [None] * len(setup.committee.proposers)
    honest = {
        place: setup.federation.workers[worker]
        for place, worker in enumerate(setup.committee.proposers)
        if worker not in setup.byzantine
    }
    together = {place: worker for place, worker in honest.items() if is_plain(worker)}
    failures: list[Failure] = []
    updates, states = setup.propose_each(list(together.values()), failures)
    for place, update in zip(together, updates, strict=True):
        received[place] = update
    heard = Heard(states, failures)
    for place, worker in honest.items():
        if place not in together:
            number = setup.committee.proposers[place]
            received[place] = ask_to_propose(setup, number, worker, heard)
    return Proposals(received, states, heard.failures)


def _lie(
    setup: RoundSetup, proposals: Proposals, scores: VoterScores, voters: JointVoters | None
) -> tuple[Proposals, Lies]:
    """The proposals with the coalition's lies in place, and the lies."""
    honest = admit_proposals(proposals.received, dimension=len(setup.state.weights)).valid
    lies = lie_or_be_silent(setup, lambda: lie_to_server(setup, honest, scores, voters))
    received = list(proposals.received)
    for place, update in zip(sorted(setup.coalition), lies.sent, strict=True):
        received[place] = update
    return replace(proposals, received=received), lies


def _vote_jointly(
    voters: JointVoters, admitted: AdmittedProposals, lies: Lies, heard: Heard
) -> tuple[Decision, JointMemory]:
    """Every voter has sent an update of its own; all together judge the proposals."""
    setup = voters.setup
    told = [update for p, update in admitted.valid.items() if p in setup.coalition]
    messages = lies.messages
    if messages is None:
        seen = as_liars_see(voters)
        messages = spare(
            lambda: seen.lies(told, heard.failures), kind=BALLOT, failures=heard.failures
        ) or [None] * len(voters.liars)
    sent = {**voters.honest, **dict(zip(voters.liars, messages, strict=True))}
    return conclude_joint(
        admitted,
        [(voter, sent[voter]) for voter in setup.committee.voters if sent[voter] is not None],
        voters=setup.committee.voters,
        terms=voters.terms,
        memory=memory_of(setup.state),
    )


def _vote(
    setup: RoundSetup,
    terms: Terms,
    admitted: AdmittedProposals,
    scores: VoterScores,
    heard: Heard,
) -> Decision:
    """Every voter judges the proposals, and the server counts what they send."""
    if not admitted.valid:
        return Decision(Outcome.NO_PROPOSALS)
    ids, updates = tuple(admitted.valid), admitted.stacked()
    before = len(heard.failures)
    sent = electorate_of(setup, terms).collect_ballots(
        ids,
        setup.coalition,
        scores.marks(ids, lambda scores: scores.losses(updates)),
        others={
            voter: ask_to_vote(setup, voter, terms, admitted.valid, heard)
            for voter in setup.committee.voters
            if voter not in setup.byzantine and not is_plain(setup.federation.workers[voter])
        },
        failures=heard.failures,
    )
    if len(heard.failures) == before:
        # With nobody alone: no vote is missing, but custom code has raised.
        heard.failures.extend(scores.raised[:1])
    return conclude_vote(admitted, sent, voters=setup.committee.voters, terms=terms)


def _aggregate(
    setup: RoundSetup, rule: Rule, admitted: AdmittedProposals, failures: list[Failure]
) -> tuple[Decision, Mapping[str, Tensor]]:
    """The rule over all valid updates, and what it keeps for the next round.

    A custom rule that raises makes no step and keeps what it had; `failures` tells of it.
    """
    name = f"rule {setup.curve.rule!r}"
    lies = [row for row, p in enumerate(admitted.valid) if p in setup.coalition]
    voters = Reporters(setup).about(lies, failures)
    context = replace(rule_context(setup), voters=voters)
    f = tolerated_count(len(admitted.valid), setup.federation.config.federation.f)
    try:
        decision: Decision = guard(
            name, lambda: apply_rule(admitted, rule, f=f, context=context), rule.function
        )
    except PluginError as error:
        failures.append(counted(AGGREGATE, error))
        return Decision(Outcome.RAISED), setup.state.rule_state
    decision = replace(decision, void_ballots=tuple(voters.void.items()))
    kept = checked_copy(name, context.state, rule.function)
    if decision.outcome is not Outcome.STEP:
        return decision, kept
    update = checked_update(name, decision.update, setup.state.weights.shape, rule.function)
    # A copy: a custom rule may go on to change what it returned.
    return replace(decision, update=update.float().clone()), kept


def _step(setup: RoundSetup, decision: Decision) -> State:
    """w_{t+1} = w_t - eta_t * v_t, with the server's momentum if it has one."""
    weights, velocity = setup.state.weights, setup.state.velocity
    direction = decision.update
    if direction is not None:
        if momentum := setup.federation.config.training.momentum:
            velocity = direction if velocity is None else momentum * velocity + direction
            direction = velocity
        weights = weights - setup.learning_rate * direction
    return State(
        round=setup.number,
        weights=weights,
        velocity=velocity,
        diverged=not bool(weights.isfinite().all()),
    )


def honest_of(setup: RoundSetup, valid: Mapping[ProposalId, Tensor]) -> list[Tensor]:
    """The valid updates that the coalition did not send."""
    return [update for p, update in valid.items() if p not in setup.coalition]


def last_honest(setup: RoundSetup, valid: Mapping[ProposalId, Tensor]) -> Tensor | None:
    """The honest updates, kept only for an attacker that knows those of the last round."""
    if setup.federation.config.attack.knowledge != "last-round":
        return None
    honest = honest_of(setup, valid)
    return torch.stack(honest) if honest else setup.state.last_honest


def _record(
    setup: RoundSetup,
    decision: Decision,
    admitted: AdmittedProposals,
    state: State,
    gamma: float | None,
    *,
    failures: Sequence[Failure],
) -> RoundRecord:
    terms, method = setup.curve.terms, setup.curve.method
    return record_round(
        rule=setup.curve.rule,
        attack=setup.curve.attack,
        seed=setup.federation.seed,
        round_number=setup.number,
        committee=setup.committee,
        byzantine=setup.byzantine,
        decision=replace(decision, outcome=Outcome.DIVERGED) if state.diverged else decision,
        proposal_faults=[fault.value for fault in admitted.faults.values()],
        ballot_faults=decision.ballot_faults,
        is_vote=terms is not None,
        asks_voters=isinstance(method, Rule) and method.needs_voters,
        gamma=gamma,
        radius=state.radius if terms and terms.bound else None,
        custom_errors=failures,
        honest_missing=count_missing(setup, admitted.faults),
    )


def evaluate_round(
    federation: Federation, record: RoundRecord, state: State
) -> tuple[RoundRecord, State]:
    """Measure the model on test rows when it is due; a loss that is not finite ends the curve."""
    experiment = federation.config.experiment
    raised: list[Failure] = []
    if state.round == 1:
        initial = _measured(federation, federation.initial_weights, raised)
        record = replace(record, initial=initial or None)
    due = state.round % experiment.evaluate_every == 0 or state.round == experiment.rounds
    found: dict[str, Any] = {}
    if due or state.diverged:
        found = _measured(federation, state.weights, raised)
    if raised:
        record = replace(record, custom_errors=[*record.custom_errors, *raised])
    if not found:
        return record, state
    finite = math.isfinite(found["loss"])
    record = replace(record, **found)
    return (
        replace(record, outcome=record.outcome if finite else Outcome.DIVERGED),
        replace(state, diverged=state.diverged or not finite),
    )


def _measured(federation: Federation, weights: Tensor, raised: list[Failure]) -> dict[str, Any]:
    """How good a model is; nothing where custom code raises, of which `raised` tells."""
    found = spare(lambda: measured(federation, weights), kind=EVALUATE, failures=raised)
    if found is None:
        return {}
    success = spare(lambda: _attack_success(federation, weights), kind=EVALUATE, failures=raised)
    return found if success is None else {**found, "attack_success": success}


def measured(federation: Federation, weights: Tensor) -> dict[str, Any]:
    """How good a model is on the test rows: those of `holdout.metrics.MEASURED` that apply."""
    result = evaluate(
        federation.model, weights, federation.x_test, federation.y_test, loss=federation.loss
    )
    recall = [share for share in result.class_recall if math.isfinite(share)]
    found: dict[str, Any] = {
        "accuracy": result.accuracy,
        "loss": result.loss,
        "worst_class_recall": min(recall, default=None),
    }
    if result.mae is not None:
        found |= {"r2": result.r2, "mae": result.mae}
    return found


def _attack_success(federation: Federation, weights: Tensor) -> float | None:
    """The share of the test rows of other classes that are taken for the target once triggered."""
    trigger = federation.trigger
    if trigger is None:
        return None
    others = federation.x_test[federation.y_test != trigger.target]
    if not len(others):
        return None
    name = f"attack {federation.config.attack.name!r}"
    rows = guard(name, lambda: trigger.put_trigger(others.clone()))
    if not isinstance(rows, Tensor) or (rows.shape, rows.dtype) != (others.shape, others.dtype):
        raise refused(
            f"{name}: put_trigger must return float32 rows of shape {tuple(others.shape)}; "
            f"got {describe(rows)}",
            trigger.put_trigger,
        )
    return share_taken_for(federation.model, weights, rows, trigger.target)
