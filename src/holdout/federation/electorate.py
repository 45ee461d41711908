"""Where a round's vote is held: who votes, on what scores, and how those who lie do."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from holdout.attacks import BallotAttack, BallotView
from holdout.ids import ProposalId, RoundNumber, WorkerId
from holdout.seeds import stream
from holdout.voting import Ballot, Terms
from holdout.voting.ballot import rank
from holdout.workers import HoldoutScores, HonestWorker


@dataclass(frozen=True, slots=True)
class Marks:
    """How proposals did on one voter's holdout data."""

    losses: Mapping[ProposalId, float]
    current_loss: Callable[[], float]
    """Of the current model; computed only if asked for."""


Sheet = Callable[[WorkerId], Marks]
"""A voter -> its marks."""


@dataclass(frozen=True, eq=False)
class Booth:
    """Who votes in a round, by what terms, and how those who lie do."""

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
        sheet: Sheet,
        *,
        others: Mapping[WorkerId, object] | None = None,
    ) -> list[tuple[WorkerId, object]]:
        """What every voter sends; `others` are ballots that came from elsewhere."""
        sent: list[tuple[WorkerId, object]] = []
        for voter in self.voters:
            if others is not None and voter in others:
                ballot = others[voter]
                if ballot is not None:
                    sent.append((voter, ballot))
            elif voter in self.byzantine:
                sent.append((voter, self.byzantine_ballot(voter, proposals, coalition, sheet)))
            else:
                sent.append((voter, self.honest_ballot(voter, proposals, sheet).approved))
        return sent

    def honest_ballot(
        self, voter: WorkerId, proposals: tuple[ProposalId, ...], sheet: Sheet
    ) -> Ballot:
        """What an honest voter approves."""
        if self.terms.forces(len(proposals)):
            return Ballot(proposals)
        marks = sheet(voter)
        current = marks.current_loss() if self.terms.needs_current_loss else math.inf
        return self.terms.cast(marks.losses, current_loss=current)

    def byzantine_ballot(
        self,
        voter: WorkerId,
        proposals: tuple[ProposalId, ...],
        coalition: frozenset[ProposalId],
        sheet: Sheet,
    ) -> object:
        """What a Byzantine voter sends."""
        ballot = self.ballot_attack(
            BallotView(
                voter=voter,
                proposals=proposals,
                coalition=coalition,
                approve_count=self.terms.approve_count(len(proposals)),
                honest_ballot=lambda: self.honest_ballot(voter, proposals, sheet).approved,
                ranking=lambda: rank(sheet(voter).losses),
                source=stream(self.seed, "ballot", self.round_number, voter),
            )
        )
        return list(ballot) if isinstance(ballot, Sequence) else ballot


class Judges:
    """The holdout scores of a round's voters: honest ones at once, Byzantine ones if asked for."""

    def __init__(
        self,
        honest: Mapping[WorkerId, HonestWorker],
        byzantine: Mapping[WorkerId, HonestWorker],
        score: Callable[[Sequence[HonestWorker]], HoldoutScores],
    ) -> None:
        self.honest = tuple(honest)
        """The honest voters who can be asked: not those of the user's own kind."""
        self._groups = [_Group(workers, score) for workers in (honest, byzantine) if workers]

    def __contains__(self, voter: WorkerId) -> bool:
        return any(voter in group.places for group in self._groups)

    def ask(self, voters: Sequence[WorkerId]) -> tuple[HoldoutScores, list[int]]:
        """The scores of some honest voters, and their numbers there."""
        group = self._groups[0]
        return group.scores, [group.places[voter] for voter in voters]

    def sheet(self, ids: Sequence[ProposalId], losses: Callable[[HoldoutScores], Tensor]) -> Sheet:
        """Look-up of the proposals' losses, computed for a group of voters on first use."""
        tables: dict[int, list[list[float]]] = {}

        def look_up(voter: WorkerId) -> Marks:
            group = next(group for group in self._groups if voter in group.places)
            if id(group) not in tables:
                tables[id(group)] = losses(group.scores).tolist()
            place = group.places[voter]
            row = tables[id(group)][place]
            return Marks(dict(zip(ids, row, strict=True)), lambda: group.scores.current[place])

        return look_up


class _Group:
    def __init__(
        self,
        workers: Mapping[WorkerId, HonestWorker],
        score: Callable[[Sequence[HonestWorker]], HoldoutScores],
    ) -> None:
        self.places = {worker: place for place, worker in enumerate(workers)}
        self._workers = tuple(workers.values())
        self._score = score

    @cached_property
    def scores(self) -> HoldoutScores:
        return self._score(self._workers)
