"""The vote of a round, as the simulation runs it and as the omniscient attacker rehearses it.

Both go through `collect_ballots`, so that what the attacker foresees is what will happen.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

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

Sheet = Callable[[WorkerId], tuple[Mapping[ProposalId, float], float]]
"""A voter -> the loss of each proposal on its holdout data, and that of the current model."""


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
                sent.append((voter, self._honest_ballot(voter, sheet).approved))
        return sent

    def _honest_ballot(self, voter: WorkerId, sheet: Sheet) -> Ballot:
        losses, current = sheet(voter)
        return self.terms.cast(losses, current_loss=current)

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
                honest_ballot=lambda: self._honest_ballot(voter, sheet).approved,
                ranking=lambda: rank(sheet(voter)[0]),
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

    def sheet(self, ids: Sequence[ProposalId], losses: Callable[[HoldoutScores], Tensor]) -> Sheet:
        """Look-up of the proposals' losses, computed for a group of voters on first use."""
        tables: dict[int, list[list[float]]] = {}

        def look_up(voter: WorkerId) -> tuple[Mapping[ProposalId, float], float]:
            group = next(group for group in self._groups if voter in group.places)
            if id(group) not in tables:
                tables[id(group)] = losses(group.scores).tolist()
            place = group.places[voter]
            row = tables[id(group)][place]
            return dict(zip(ids, row, strict=True)), group.scores.current[place]

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
        if not self.booth.terms.bound and self.booth.terms.gate is None:
            # Full ballots look at ranks alone, so a lie that passes when ranked last by every
            # honest voter passes at any strength. In most draws there are liars enough for that.
            # (Not if a Byzantine voter's ballot depends on the loss too: then nothing is certain.)
            sheet = self._sheet(
                torch.stack(list(self.honest.values())),
                lambda scores: torch.full((len(scores.current), 1), torch.inf),
            )
            liars_asked: list[WorkerId] = []

            def worst(voter: WorkerId) -> tuple[Mapping[ProposalId, float], float]:
                if voter in self.booth.byzantine:
                    liars_asked.append(voter)
                return sheet(voter)

            if self._passes(worst) and not liars_asked:
                yield from [True] * len(strengths)
                return
        lengths = _lengths(base, direction, strengths)
        norms = [norm(update) for update in self.honest.values()]
        radii = [self._radius(norms, length) for length in lengths]
        scales = [
            1.0 if radius is None or length <= radius else radius / length
            for length, radius in zip(lengths, radii, strict=True)
        ]
        line = torch.stack([base, direction])
        coefficients = torch.tensor(
            [[scale, scale * s] for scale, s in zip(scales, strengths, strict=True)]
        )
        lies: dict[tuple[int, int], Tensor] = {}

        def lie_losses(scores: HoldoutScores, place: int) -> Tensor:
            batch, within = divmod(place, BATCH)
            key = (id(scores), batch)
            if key not in lies:
                tried = coefficients[batch * BATCH : (batch + 1) * BATCH]
                lies[key] = scores.combination_losses(line, tried)
            return lies[key][:, within : within + 1]

        for place, radius in enumerate(radii):
            honest = torch.stack(
                [
                    shrink(update, length, radius)
                    for update, length in zip(self.honest.values(), norms, strict=True)
                ]
            )
            yield self._passes(self._sheet(honest, partial(lie_losses, place=place)))

    def _radius(self, norms: list[float], length: float) -> float | None:
        if not self.booth.terms.bound:
            return None
        return bound_radius([*norms, *[length] * len(self.copies)], previous=self.previous_radius)

    def _sheet(self, honest: Tensor, lie: Callable[[HoldoutScores], Tensor]) -> Sheet:
        ids = [*self.honest, *self.copies]
        return self.judges.sheet(
            ids,
            lambda scores: torch.cat(
                [scores.losses(honest), lie(scores).expand(-1, len(self.copies))], dim=1
            ),
        )

    def _passes(self, sheet: Sheet) -> bool:
        terms, voters = self.booth.terms, self.booth.voters
        ids = tuple(sorted([*self.honest, *self.copies]))
        sent = self.booth.collect_ballots(ids, frozenset(self.copies), sheet)
        ballots = terms.admit(sent, voters=voters, proposals=ids)
        quorum = terms.quorum(drawn=len(voters), valid=len(ballots.valid))
        selected = set(tally(ballots.valid, quorum=quorum)).intersection(self.copies)
        return len(selected) == len(self.copies) if self.passing == "all" else bool(selected)


def _lengths(base: Tensor, direction: Tensor, strengths: Sequence[float]) -> list[float]:
    """The norms of base + s * direction."""
    base, direction = base.double(), direction.double()
    bb, bd, dd = (
        float(base @ base),
        float(base @ direction),
        float(direction @ direction),
    )
    return [max(0.0, bb + 2 * s * bd + s * s * dd) ** 0.5 for s in strengths]
