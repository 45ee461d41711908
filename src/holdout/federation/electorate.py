"""The voters of a round: what they think of proposals, and what each of them sends."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

from torch import Tensor

from holdout.attacks import BallotAttack, BallotView
from holdout.custom_code import counted, guard, spare
from holdout.errors import PluginError
from holdout.federation.round_setup import BALLOT, VOTE, RoundSetup
from holdout.holdout_scores import HoldoutScores
from holdout.ids import ProposalId, RoundNumber, WorkerId
from holdout.seeds import stream
from holdout.tracebacks import Failure
from holdout.voting import Ballot, Terms, rank
from holdout.workers import HonestWorker, is_plain


@dataclass(frozen=True, slots=True)
class Marks:
    """How proposals did on one voter's holdout data."""

    losses: Mapping[ProposalId, float]
    current_loss: Callable[[], float]
    """The loss of the current model; computed only if asked for."""


MarksOf = Callable[[WorkerId], Marks]
"""A voter -> its marks."""


class VoterScores:
    """The holdout scores of a round's voters: honest ones at once, Byzantine ones if asked for."""

    def __init__(
        self,
        honest: Mapping[WorkerId, HonestWorker],
        byzantine: Mapping[WorkerId, HonestWorker],
        score: Callable[[Sequence[HonestWorker]], HoldoutScores],
    ) -> None:
        self.honest = tuple(honest)
        """The honest voters who can be asked: not the custom ones."""
        self._groups = [_Group(workers, score) for workers in (honest, byzantine) if workers]
        self.raised: list[Failure] = []
        """What custom code raised when voters were scored together."""

    def __contains__(self, voter: WorkerId) -> bool:
        return any(voter in group.places for group in self._groups)

    def ask(self, voters: Sequence[WorkerId]) -> tuple[HoldoutScores, list[int]]:
        """The scores of the honest voters, and the places of these voters in them."""
        group = self._groups[0]
        return group.scores, [group.places[voter] for voter in voters]

    def marks(
        self, ids: Sequence[ProposalId], losses: Callable[[HoldoutScores], Tensor]
    ) -> MarksOf:
        """Look-up of the proposals' losses, computed for a group of voters on first use.

        If custom code raises in that, each voter is asked alone, and the look-up of whoever it
        raises with then, too, is a PluginError.
        """
        tables: dict[int, list[list[float]]] = {}

        def look_up(voter: WorkerId) -> Marks:
            group = next(group for group in self._groups if voter in group.places)
            if id(group) not in tables and not group.is_apart:
                try:
                    tables[id(group)] = losses(group.scores).tolist()
                except PluginError as error:
                    self.raised.append(counted(VOTE, error))
                    group.is_apart = True
            scores, place = group.scores_of(voter)
            table = losses(scores).tolist() if group.is_apart else tables[id(group)]
            return Marks(dict(zip(ids, table[place], strict=True)), lambda: scores.current[place])

        return look_up


class _Group:
    """Voters whose scores are computed together."""

    def __init__(
        self,
        workers: Mapping[WorkerId, HonestWorker],
        score: Callable[[Sequence[HonestWorker]], HoldoutScores],
    ) -> None:
        self.places = {worker: place for place, worker in enumerate(workers)}
        self._workers = tuple(workers.values())
        self._score = score
        self.is_apart = False
        """Whether each is scored alone, since custom code raised when all were together."""

    @cached_property
    def scores(self) -> HoldoutScores:
        return self._score(self._workers)

    def scores_of(self, voter: WorkerId) -> tuple[HoldoutScores, int]:
        """The scores that hold this voter's, and its place in them."""
        place = self.places[voter]
        return (self._score([self._workers[place]]), 0) if self.is_apart else (self.scores, place)


def score_voters(
    setup: RoundSetup, stand_ins: Mapping[WorkerId, HonestWorker] | None = None
) -> VoterScores:
    """The voters' holdout scores; with `stand_ins`, those of the workers in their places."""
    honest: dict[WorkerId, HonestWorker] = {}
    byzantine: dict[WorkerId, HonestWorker] = {}
    for voter in setup.committee.voters:
        worker = setup.federation.workers[voter] if stand_ins is None else stand_ins[voter]
        if not is_plain(worker):
            continue
        if voter in setup.byzantine and not setup.lie_share:
            (worker,) = setup.with_true_labels([worker])
        (byzantine if voter in setup.byzantine else honest)[voter] = worker
    terms = setup.curve.terms
    score = partial(
        HoldoutScores,
        weights=setup.state.weights,
        round_number=setup.number,
        learning_rate=setup.learning_rate,
        first_order=terms is not None and terms.first_order,
        with_current=terms is not None and terms.needs_current_loss,
    )
    return VoterScores(honest, byzantine, score)


@dataclass(frozen=True, eq=False)
class Electorate:
    """Who votes in a round, by what terms, and how the liars among them vote."""

    terms: Terms
    voters: tuple[WorkerId, ...]
    byzantine: frozenset[WorkerId]
    ballot_attack: BallotAttack
    seed: int
    round_number: RoundNumber

    def collect_ballots(
        self,
        proposals: tuple[ProposalId, ...],
        coalition: frozenset[ProposalId],
        marks_of: MarksOf,
        *,
        others: Mapping[WorkerId, object],
        failures: list[Failure] | None = None,
    ) -> list[tuple[WorkerId, object]]:
        """What every voter sends; `others` are ballots that came from custom workers.

        Whom custom code keeps from voting, by raising, is silent; `failures` tells of it.
        """
        failures = [] if failures is None else failures
        sent: list[tuple[WorkerId, object]] = []
        for voter in self.voters:
            if voter in others:
                ballot = others[voter]
            elif voter in self.byzantine:
                ballot = self.byzantine_ballot(voter, proposals, coalition, marks_of, failures)
            else:
                ballot = self.honest_names(voter, proposals, marks_of, failures)
            if ballot is not None:
                sent.append((voter, ballot))
        return sent

    def honest_names(
        self,
        voter: WorkerId,
        proposals: tuple[ProposalId, ...],
        marks_of: MarksOf,
        failures: list[Failure],
    ) -> object:
        """What an honest voter sends; None if custom code raises, of which `failures` tells."""
        return spare(
            lambda: self.honest_ballot(voter, proposals, marks_of).message,
            kind=VOTE,
            failures=failures,
            who=f"worker {voter}, asked to {VOTE}: ",
        )

    def honest_ballot(
        self, voter: WorkerId, proposals: tuple[ProposalId, ...], marks_of: MarksOf
    ) -> Ballot:
        """What an honest voter sends (A_Holdout)."""
        if (forced := self.terms.forced(proposals)) is not None:
            return forced
        marks = marks_of(voter)
        current = marks.current_loss() if self.terms.needs_current_loss else math.inf
        return self.terms.cast(marks.losses, current_loss=current)

    def byzantine_ballot(
        self,
        voter: WorkerId,
        proposals: tuple[ProposalId, ...],
        coalition: frozenset[ProposalId],
        marks_of: MarksOf,
        failures: list[Failure] | None = None,
    ) -> object:
        """What a Byzantine voter sends; None if the attack on ballots raises: it is silent."""
        view = BallotView(
            voter=voter,
            proposals=proposals,
            coalition=coalition,
            approve_count=self.terms.approve_count(len(proposals)),
            honest_ballot=lambda: list(self.honest_ballot(voter, proposals, marks_of).message),
            ranking=lambda: list(rank(marks_of(voter).losses)),
            source=stream(self.seed, "ballot", self.round_number, voter),
        )
        ballot: object = spare(
            lambda: guard(
                "the attack on ballots", lambda: self.ballot_attack(view), self.ballot_attack
            ),
            kind=BALLOT,
            failures=[] if failures is None else failures,
        )
        return list(ballot) if isinstance(ballot, Sequence) else ballot


def electorate_of(setup: RoundSetup, terms: Terms) -> Electorate:
    """This round's voters."""
    return Electorate(
        terms=terms,
        voters=setup.committee.voters,
        byzantine=setup.byzantine,
        ballot_attack=setup.ballot_attack,
        seed=setup.federation.seed,
        round_number=setup.number,
    )
