"""Asking custom workers: one that crashes is silent, and what it keeps is kept."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import Tensor

from holdout.custom_code import Kept, attempt, checked_copy, private_copy, takes
from holdout.federation.round_setup import MOMENTUM, RoundSetup
from holdout.ids import ProposalId, WorkerId
from holdout.rounds import admit_proposals
from holdout.voting import Terms
from holdout.workers import Worker


def ask_to_propose(
    setup: RoundSetup, number: WorkerId, worker: Worker, states: dict[WorkerId, Kept]
) -> object:
    """A custom worker's update, None if it crashes; what it keeps goes into `states`."""
    asked = partial(
        worker.propose,
        setup.state.weights.clone(),
        round_number=setup.number,
        learning_rate=setup.learning_rate,
    )
    update = _attempt_with_state(setup, number, asked, states)
    valid = admit_proposals([update], dimension=len(setup.state.weights)).valid
    return setup.with_momentum(number, valid[ProposalId(0)], states) if valid else update


def _attempt_with_state(
    setup: RoundSetup,
    number: WorkerId,
    asked: Callable[..., object],
    states: dict[WorkerId, Kept],
) -> object:
    """A custom worker's answer, None if it crashes; if it takes a state, that is kept in `states`.

    What a worker has written before it crashes is kept too.
    """
    if not takes(asked, "state"):
        return attempt(asked)
    kept = private_copy(states.get(number, setup.state.worker_states.get(number, {})))
    momentum = {MOMENTUM: kept.pop(MOMENTUM)} if MOMENTUM in kept else {}
    answer = attempt(partial(asked, state=kept))
    states[number] = checked_copy(f"worker {number}", kept) | momentum
    return answer


def ask_to_vote(
    setup: RoundSetup,
    voter: WorkerId,
    terms: Terms,
    proposals: Mapping[ProposalId, Tensor],
    states: dict[WorkerId, Kept],
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
    ballot: Any = _attempt_with_state(setup, voter, asked, states)
    return attempt(lambda: ballot.message)
