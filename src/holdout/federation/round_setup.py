"""What a round starts from: who takes part, what they hold, who was drawn.

A `Federation` is what a seed decides: shards, liars, initial weights. A `Curve` is what is compared
on it: a rule under an attack. A `State` is all that one round hands to the next. `RoundSetup`
brings the three together with the draw of one round.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from torch import Tensor, nn

from holdout.attacks import Attack, BallotAttack, BallotView
from holdout.config import Config
from holdout.federation.electorate import Booth, Judges
from holdout.federation.plugin_calls import guard
from holdout.ids import ProposalId, RoundNumber, WorkerId
from holdout.rules import Rule
from holdout.voting import Committee, Terms, draw_committee
from holdout.workers import HoldoutScores, HonestWorker, Worker, is_plain, propose_together


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


class RoundSetup:
    """One round before anybody acts, and the tools that both sides work with."""

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
        """The terms of the vote, if the rule is one."""
        return self.curve.method if isinstance(self.curve.method, Terms) else None

    def propose(self, workers: Sequence[HonestWorker]) -> Tensor:
        """The updates of several workers in this round, (n, d)."""
        updates: Tensor = guard(
            "a worker's model or data",
            lambda: propose_together(
                workers,
                self.state.weights,
                round_number=self.number,
                learning_rate=self.learning_rate,
            ),
        )
        return updates

    def as_honest(self, workers: Sequence[WorkerId]) -> list[HonestWorker]:
        """Byzantine workers as they would work if they were honest."""
        chosen = [self.federation.workers[worker] for worker in workers]
        return [worker for worker in chosen if is_plain(worker)]

    def booth(self, terms: Terms) -> Booth:
        """Where this round's voters vote."""
        return Booth(
            terms=terms,
            voters=self.committee.voters,
            byzantine=self.byzantine,
            ballot_attack=partial(_guarded_ballot, self.curve.ballot_attack),
            seed=self.federation.seed,
            round_number=self.number,
        )

    def judges(self, stand_ins: Mapping[WorkerId, HonestWorker] | None = None) -> Judges:
        """The voters' holdout scores; with `stand_ins`, those that others would give."""
        honest: dict[WorkerId, HonestWorker] = {}
        byzantine: dict[WorkerId, HonestWorker] = {}
        for voter in self.committee.voters:
            worker = self.federation.workers[voter]
            if stand_ins is not None:
                worker = stand_ins[voter]
            if is_plain(worker):
                (byzantine if voter in self.byzantine else honest)[voter] = worker
        terms = self.terms
        return Judges(
            honest,
            byzantine,
            lambda workers: HoldoutScores(
                workers,
                self.state.weights,
                round_number=self.number,
                learning_rate=self.learning_rate,
                first_order=terms is not None and terms.first_order,
                with_current=terms is not None and terms.needs_current_loss,
            ),
        )


def _guarded_ballot(ballot_attack: BallotAttack, view: BallotView) -> Sequence[ProposalId]:
    ballot: Sequence[ProposalId] = guard("the attack on ballots", lambda: ballot_attack(view))
    return ballot
