"""The vote of a round, as the simulation runs it and as the omniscient attacker rehearses it.

Both go through `collect_ballots`, so that what the attacker foresees is what will happen.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial

import torch
from torch import Tensor

from holdout.attacks import BallotAttack, BallotView
from holdout.ids import ProposalId, RoundNumber, WorkerId
from holdout.rounds import norm, shrink
from holdout.seeds import stream
from holdout.voting import Ballot, Terms, bound_radius, tally
from holdout.voting.ballot import rank
from holdout.workers import HoldoutScores, HonestWorker

BATCH = 8  # Strengths of a lie tried together: they share most of the work.


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
                sent.append((voter, self._byzantine_ballot(voter, proposals, coalition, sheet)))
            else:
                sent.append((voter, self._honest_ballot(voter, proposals, sheet).approved))
        return sent

    def _honest_ballot(
        self, voter: WorkerId, proposals: tuple[ProposalId, ...], sheet: Sheet
    ) -> Ballot:
        if self.terms.forces(len(proposals)):
            return Ballot(proposals)
        marks = sheet(voter)
        current = marks.current_loss() if self.terms.needs_current_loss else math.inf
        return self.terms.cast(marks.losses, current_loss=current)

    def _byzantine_ballot(
        self,
        voter: WorkerId,
        proposals: tuple[ProposalId, ...],
        coalition: frozenset[ProposalId],
        sheet: Sheet,
    ) -> object:
        ballot = self.ballot_attack(
            BallotView(
                voter=voter,
                proposals=proposals,
                coalition=coalition,
                approve_count=self.terms.approve_count(len(proposals)),
                honest_ballot=lambda: self._honest_ballot(voter, proposals, sheet).approved,
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
        self._groups = [_Group(workers, score) for workers in (honest, byzantine) if workers]

    def __contains__(self, voter: WorkerId) -> bool:
        return any(voter in group.places for group in self._groups)

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


@dataclass(frozen=True, eq=False)
class DeployedVote:
    """HoldOut as the attacker runs it: would the lie be in the union-consensus?"""

    booth: Booth
    judges: Judges
    honest: Mapping[ProposalId, Tensor]
    """The honest updates that the attacker knows or guesses, by proposal id."""
    copies: tuple[ProposalId, ...]
    """The ids under which the lie is sent."""
    previous_radius: float | None
    passing: str
    """`any` copy in the union-consensus is enough, or `all` must be."""

    @property
    def leaves_nobody_out(self) -> bool:
        """Never: that is what the vote is for."""
        return False

    def selects(
        self, base: Tensor, direction: Tensor, strengths: Sequence[float]
    ) -> Iterator[bool]:
        """For each strength: whether the vote would select the lie."""
        if self._passes_at_any_strength():
            yield from [True] * len(strengths)
            return
        lengths = _lengths(base, direction, strengths)
        radii = [self._radius(length) for length in lengths]
        scales = [
            1.0 if radius is None or length <= radius else radius / length
            for length, radius in zip(lengths, radii, strict=True)
        ]
        line = torch.stack([base, direction])
        coefficients = torch.tensor(
            [[scale, scale * s] for scale, s in zip(scales, strengths, strict=True)]
        )

        @cache
        def lie_losses(scores: HoldoutScores, batch: int) -> Tensor:
            tried = coefficients[batch * BATCH : (batch + 1) * BATCH]
            return scores.combination_losses(line, tried)

        honest_losses = cache(self._honest_losses)
        for place, radius in enumerate(radii):
            batch, within = divmod(place, BATCH)
            yield self._passes(
                self._sheet(
                    partial(honest_losses, radius=radius),
                    partial(_column, losses=partial(lie_losses, batch=batch), place=within),
                )
            )

    def _passes_at_any_strength(self) -> bool:
        """Whether full ballots select the lie even if every honest voter ranks it last.

        They look at ranks alone, so the lie then passes at any strength; most draws hold liars
        enough for that. (If a Byzantine voter's ballot depends on losses, nothing is certain.)
        """
        if self.booth.terms.bound or self.booth.terms.gate is not None:
            return False
        sheet = self._sheet(
            lambda scores: self._honest_losses(scores, None),
            lambda scores: torch.full((scores.voter_count, 1), torch.inf),
        )
        liars_asked: list[WorkerId] = []

        def worst(voter: WorkerId) -> Marks:
            if voter in self.booth.byzantine:
                liars_asked.append(voter)
            return sheet(voter)

        return self._passes(worst) and not liars_asked

    @cached_property
    def _norms(self) -> list[float]:
        return [norm(update) for update in self.honest.values()]

    def _radius(self, length: float) -> float | None:
        if not self.booth.terms.bound:
            return None
        lengths = [*self._norms, *[length] * len(self.copies)]
        return bound_radius(lengths, previous=self.previous_radius)

    def _honest_losses(self, scores: HoldoutScores, radius: float | None) -> Tensor:
        if not self.honest:
            return torch.empty(scores.voter_count, 0, dtype=torch.float64)
        updates = zip(self.honest.values(), self._norms, strict=True)
        return scores.losses(torch.stack([shrink(u, length, radius) for u, length in updates]))

    def _sheet(
        self, honest: Callable[[HoldoutScores], Tensor], lie: Callable[[HoldoutScores], Tensor]
    ) -> Sheet:
        return self.judges.sheet(
            [*self.honest, *self.copies],
            lambda scores: torch.cat(
                [honest(scores), lie(scores).expand(-1, len(self.copies))], dim=1
            ),
        )

    def _passes(self, sheet: Sheet) -> bool:
        terms, voters = self.booth.terms, self.booth.voters
        ids = tuple(sorted([*self.honest, *self.copies]))
        # Workers of the user's own kind do not tell their losses: they are taken for silent.
        silent = {voter: None for voter in voters if voter not in self.judges}
        sent = self.booth.collect_ballots(ids, frozenset(self.copies), sheet, others=silent)
        ballots = terms.admit(sent, voters=voters, proposals=ids)
        quorum = terms.quorum(drawn=len(voters), valid=len(ballots.valid))
        selected = set(tally(ballots.valid, quorum=quorum)).intersection(self.copies)
        return len(selected) == len(self.copies) if self.passing == "all" else bool(selected)


def _column(
    scores: HoldoutScores, *, losses: Callable[[HoldoutScores], Tensor], place: int
) -> Tensor:
    return losses(scores)[:, place : place + 1]


def _lengths(base: Tensor, direction: Tensor, strengths: Sequence[float]) -> list[float]:
    """The norms of base + s * direction."""
    base, direction = base.double(), direction.double()
    bb, bd, dd = (
        float(base @ base),
        float(base @ direction),
        float(direction @ direction),
    )
    return [max(0.0, bb + 2 * s * bd + s * s * dd) ** 0.5 for s in strengths]
