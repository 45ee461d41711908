"""Asking custom workers: one that crashes is silent, and counted; what it keeps is kept."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from holdout.custom_code import (
    Kept,
    attempt,
    checked_copy,
    describe,
    own_copies,
    private_copy,
    takes,
    untouched,
)
from holdout.federation.round_setup import MOMENTUM, PROPOSE, VOTE, RoundSetup
from holdout.ids import ProposalId, WorkerId
from holdout.learning.vector import ProposalFault
from holdout.rounds import admit_proposals
from holdout.tracebacks import Failure, definition_of
from holdout.voting import Approvals, JointBallot, Terms
from holdout.workers import Worker, is_plain


@dataclass(frozen=True, slots=True, eq=False)
class Heard:
    """What comes of asking custom workers in a round, besides their answers."""

    states: dict[WorkerId, Kept]
    """What they keep."""
    failures: list[Failure]
    """What they raise."""


def ask_to_propose(
    setup: RoundSetup,
    number: WorkerId,
    worker: Worker,
    heard: Heard,
) -> object:
    """A custom worker's update, None if it crashes."""
    asked = partial(
        worker.propose,
        setup.state.weights.clone(),
        round_number=setup.number,
        learning_rate=setup.learning_rate,
    )
    before = len(heard.failures)
    update = own_copies(_attempt_with_state(setup, number, PROPOSE, asked, heard))
    dimension = len(setup.state.weights)
    valid = admit_proposals([update], dimension=dimension).valid
    if valid:
        return setup.with_momentum(number, valid[ProposalId(0)], heard.states)
    if len(heard.failures) == before:
        # Nothing was raised, but the proposal is missing: without a reason nobody would know why.
        right = isinstance(update, Tensor) and update.shape == (dimension,)
        got = "some that are not finite" if right else describe(update)
        wrong = f"must return {dimension} finite floats, one for each weight; got {got}"
        where = definition_of(worker.propose)
        owner = f"worker {number}, asked to {PROPOSE},"
        heard.failures.append(Failure(PROPOSE, owner, wrong, where))
    return update


def _attempt_with_state(
    setup: RoundSetup,
    number: WorkerId,
    kind: str,
    asked: Callable[..., object],
    heard: Heard,
) -> object:
    """A custom worker's answer, None if it crashes; if it takes a state, that is kept.

    What a worker has written before it crashes is kept too.
    """
    owner = f"worker {number}"
    ask = partial(
        attempt,
        kind=kind,
        owner=f"{owner}, asked to {kind},",
        failures=heard.failures,
        code=asked,
    )
    with untouched(owner, setup.federation.pool, asked):
        if not takes(asked, "state"):
            return ask(asked)
        kept = private_copy(heard.states.get(number, setup.state.worker_states.get(number, {})))
        momentum = {MOMENTUM: kept.pop(MOMENTUM)} if MOMENTUM in kept else {}
        answer = ask(partial(asked, state=kept))
        heard.states[number] = checked_copy(owner, kept, asked) | momentum
        return answer


def ask_to_vote(
    setup: RoundSetup,
    voter: WorkerId,
    terms: Terms,
    proposals: Mapping[ProposalId, Tensor],
    heard: Heard,
) -> object:
    """What a custom worker sends as its ballot; None if it crashes."""
    asked = partial(
        setup.federation.workers[voter].vote,
        setup.state.weights.clone(),
        {proposal: update.clone() for proposal, update in proposals.items()},
        round_number=setup.number,
        learning_rate=setup.learning_rate,
        terms=terms,
    )
    before = len(heard.failures)
    ballot: Any = _attempt_with_state(setup, voter, VOTE, asked, heard)
    if len(heard.failures) > before:
        return None
    owner = f"worker {voter}, asked to {VOTE},"
    if not hasattr(type(ballot), "message"):
        kind = JointBallot if terms.is_joint else Approvals
        wrong = f"must return a ballot ({kind.__name__}); got {describe(ballot)}"
        heard.failures.append(Failure(VOTE, owner, wrong, definition_of(asked)))
        return None
    # A ballot made of something else may raise here.
    return own_copies(
        attempt(lambda: ballot.message, kind=VOTE, owner=owner, failures=heard.failures, code=asked)
    )


def count_missing(setup: RoundSetup, rejected: Mapping[ProposalId, ProposalFault]) -> int:
    """How many of the rejected proposals are honest ones that custom code kept from being sent.

    A built-in worker is silent only if custom code raised; what is not finite it may well send.
    """
    proposers = setup.committee.proposers
    return sum(
        proposers[place] not in setup.byzantine
        and (
            fault is ProposalFault.MISSING
            or not is_plain(setup.federation.workers[proposers[place]])
        )
        for place, fault in rejected.items()
    )
