"""The vote as the omniscient attacker rehearses it, to see whether a lie would be selected.

The rehearsal counts ballots as the real vote does, so what the attacker foresees is what happens.
But it need not hear every voter. The copies of a lie all have the same loss, so a ballot names
those with the lowest ids: none of them at worst, as many as fit at best. If the lie passes even
when every voter not heard yet casts the worst ballot, it passes whatever they think; if it fails
even with the best ones, it fails. So voters are asked, the kindest to the last strength first, only
until one or the other is certain: usually as many as the coalition falls short of the quorum.
"""

import math
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from typing import Protocol

import torch
from torch import Tensor

from holdout import device
from holdout.attacks import MixedLie
from holdout.attacks.search import reaches_one_by_one
from holdout.custom_code import counted
from holdout.errors import PluginError
from holdout.federation.electorate import Electorate, Marks, VoterScores
from holdout.federation.round_setup import VOTE
from holdout.holdout_scores import HoldoutScores, digest_of
from holdout.ids import ProposalId, WorkerId
from holdout.learning.vector import norm, shrink
from holdout.rounds import admit_proposals
from holdout.rules import mean
from holdout.voting import Terms, bound_radius

BATCH = 8  # Strengths of a lie tried together: they share work, and fill vector registers best.


@dataclass(frozen=True, slots=True, eq=False)
class _Line:
    """The lies that are tried, as they will be scored: scale * (base + strength * direction)."""

    directions: Tensor
    coefficients: Tensor
    radii: Sequence[float | None]
    """For each strength of the lie, the radius to which all updates are scaled down."""


class Tally(Protocol):
    """How the ballots of the vote under attack are counted, and how long an update may be."""

    def selected(
        self, sent: Sequence[tuple[WorkerId, object]], proposals: tuple[ProposalId, ...]
    ) -> Collection[ProposalId]:
        """What these ballots select."""

    def radius(self, lengths: Sequence[float]) -> float | None:
        """The radius to which updates of these lengths are scaled down."""

    def can_stop_early(self, passing: str) -> bool:
        """Whether no ballot can be worse or better for the lie than those that `_Poll` assumes."""


@dataclass(frozen=True, slots=True)
class ServerTally:
    """The count of a truthful server."""

    terms: Terms
    voters: tuple[WorkerId, ...]
    previous_radius: float | None

    def selected(
        self, sent: Sequence[tuple[WorkerId, object]], proposals: tuple[ProposalId, ...]
    ) -> Collection[ProposalId]:
        """The union-consensus of these ballots."""
        ballots = self.terms.admit(sent, voters=self.voters, proposals=proposals)
        return self.terms.select(ballots.valid, drawn=len(self.voters))

    def radius(self, lengths: Sequence[float]) -> float | None:
        """The radius of the bound, if the terms have one."""
        return bound_radius(lengths, previous=self.previous_radius) if self.terms.bound else None

    def can_stop_early(self, passing: str) -> bool:
        """Always: a ballot names the copies with the lowest ids, as many as fit."""
        del passing
        return True


@dataclass(frozen=True, eq=False)
class DeployedVote:
    """HoldOut as the attacker runs it: would the lie be in the union-consensus?"""

    electorate: Electorate
    scores: VoterScores
    honest: Mapping[ProposalId, Tensor]
    """The honest updates that the attacker knows or guesses, by proposal id."""
    copies: tuple[ProposalId, ...]
    """The ids under which the lie is sent."""
    passing: str
    """`any` copy in the union-consensus is enough, or `all` must be."""
    tally: Tally
    _known_digests: dict[int, bytes] = field(default_factory=dict, init=False)
    """Those of the honest updates, by identity."""

    @property
    def leaves_nobody_out(self) -> bool:
        """Never: that is what the vote is for."""
        return False

    def selects(
        self, base: Tensor, direction: Tensor, strengths: Sequence[float]
    ) -> Iterator[bool]:
        """For each strength: whether the vote would select the lie."""
        line = self._line(base, direction, strengths)
        liars = self._settled_ballots() if self.tally.can_stop_early(self.passing) else None
        if liars is None:
            yield from self._hear_everybody(line)
        else:
            yield from self._polled(_Poll(self, line, liars), line)

    def outcome(
        self, lies: Sequence[Tensor | None], messages: Sequence[Tensor | None] | None = None
    ) -> Tensor | None:
        """The mean of what the vote would select: admit, bound, judge, count, as in a round."""
        del messages  # These ballots name proposals, as `attack.voters` says.
        sent: dict[ProposalId, object] = {
            **self.honest,
            **dict(zip(self.copies, lies, strict=True)),
        }
        dimension = next((u.numel() for u in sent.values() if isinstance(u, Tensor)), 0)
        read = admit_proposals([sent[p] for p in self.ids], dimension=dimension).valid
        valid = {self.ids[place]: update for place, update in read.items()}
        if not valid:
            return None
        norms = {p: norm(update) for p, update in valid.items()}
        radius = self.tally.radius(list(norms.values()))
        bounded = {p: shrink(update, norms[p], radius) for p, update in valid.items()}
        ids, stacked = tuple(bounded), torch.stack(list(bounded.values()))
        digests = self._digests(bounded, valid, sent)
        ballots = self.electorate.collect_ballots(
            ids,
            frozenset(self.copies),
            self.scores.marks(ids, lambda scores: scores.losses(stacked, digests=digests)),
            others=self._silent,
        )
        selection = sorted(self.tally.selected(ballots, ids))
        return mean(torch.stack([bounded[p] for p in selection]), f=0) if selection else None

    def _digests(
        self,
        bounded: Mapping[ProposalId, Tensor],
        valid: Mapping[ProposalId, Tensor],
        sent: Mapping[ProposalId, object],
    ) -> list[bytes]:
        """The digests of what is judged; once a round of honest updates, and of copies once."""
        found: dict[int, bytes] = {}

        def digest(p: ProposalId) -> bytes:
            known = self._known_digests if p in self.honest else found
            if bounded[p] is not valid[p]:  # Scaled down, it is another update.
                return digest_of(bounded[p])
            if id(sent[p]) not in known:
                known[id(sent[p])] = digest_of(bounded[p])
            return known[id(sent[p])]

        return [digest(p) for p in bounded]

    def reaches(self, basis: Tensor, trials: Sequence[MixedLie], along: Tensor) -> list[float]:
        """How far the outcome of each trial goes along a direction."""
        return reaches_one_by_one(self, basis, trials, along)

    @cached_property
    def ids(self) -> tuple[ProposalId, ...]:
        """All proposals, in id order."""
        return tuple(sorted([*self.honest, *self.copies]))

    def passes(self, sent: Sequence[tuple[WorkerId, object]]) -> bool:
        """Whether these ballots select the lie."""
        selected = set(self.tally.selected(sent, self.ids)).intersection(self.copies)
        return len(selected) == len(self.copies) if self.passing == "all" else bool(selected)

    def honest_losses(
        self, scores: HoldoutScores, radius: float | None, voters: Sequence[int] | None = None
    ) -> Tensor:
        """What voters think of the honest updates, (voters, updates)."""
        if not self.honest:
            count = scores.voter_count if voters is None else len(voters)
            return device.empty(count, 0, dtype=torch.float64)
        updates = zip(self.honest.values(), self._norms, strict=True)
        shrunk = torch.stack([shrink(u, length, radius) for u, length in updates])
        return scores.losses(shrunk, voters)

    def honest_losses_in_size(
        self, scores: HoldoutScores, radius: float, voters: Sequence[int]
    ) -> Tensor:
        """Like `honest_losses`, for when more radii will follow: those then cost little."""
        lengths = device.tensor(self._norms, dtype=torch.float64)
        scales = torch.where(lengths <= radius, 1.0, radius / lengths).float()
        return scores.scaled_losses(self._stacked, scales[None], voters)[:, 0]

    def _line(self, base: Tensor, direction: Tensor, strengths: Sequence[float]) -> _Line:
        lengths = _lengths(base, direction, strengths)
        copies = len(self.copies)
        radii = [self.tally.radius([*self._norms, *[length] * copies]) for length in lengths]
        scales = [
            1.0 if radius is None or length <= radius else radius / length
            for length, radius in zip(lengths, radii, strict=True)
        ]
        rows = [[scale, scale * s] for scale, s in zip(scales, strengths, strict=True)]
        return _Line(torch.stack([base, direction]), device.tensor(rows), radii)

    def _settled_ballots(self) -> dict[WorkerId, object] | None:
        """What Byzantine voters send; None if one of them looks at losses first."""
        asked: list[WorkerId] = []

        def watched(voter: WorkerId) -> Marks:
            asked.append(voter)
            return Marks(dict.fromkeys(self.ids, 0.0), lambda: 0.0)

        liars = [voter for voter in self.electorate.voters if voter in self.electorate.byzantine]
        coalition = frozenset(self.copies)
        settled = {
            voter: self.electorate.byzantine_ballot(voter, self.ids, coalition, watched)
            for voter in liars
            if voter in self.scores
        }
        return None if asked else settled

    def _polled(self, poll: "_Poll", line: _Line) -> Iterator[bool]:
        """The short way, until custom code raises: whom that silences, only the long way tells."""
        for place in range(len(line.radii)):
            try:
                passes = poll.passes(place)
            except PluginError as error:
                counted(VOTE, error)
                yield from self._hear_everybody(line, start=place)
                return
            yield passes

    def _hear_everybody(self, line: _Line, start: int = 0) -> Iterator[bool]:
        """The long way: ask every voter, since some liars' ballots depend on their losses."""

        @cache
        def lie_losses(scores: HoldoutScores, batch: int) -> Tensor:
            tried = line.coefficients[batch * BATCH : (batch + 1) * BATCH]
            return scores.combination_losses(line.directions, tried)

        def losses(scores: HoldoutScores, place: int, radius: float | None) -> Tensor:
            batch, within = divmod(place, BATCH)
            lie = lie_losses(scores, batch)[:, within : within + 1]
            return torch.cat([honest_losses(scores, radius), lie.expand(-1, len(self.copies))], 1)

        honest_losses = cache(self.honest_losses)
        for place, radius in list(enumerate(line.radii))[start:]:
            marks_of = self.scores.marks(
                [*self.honest, *self.copies], partial(losses, place=place, radius=radius)
            )
            coalition = frozenset(self.copies)
            yield self.passes(
                self.electorate.collect_ballots(self.ids, coalition, marks_of, others=self._silent)
            )

    @property
    def _silent(self) -> dict[WorkerId, object]:
        """Custom workers do not reveal their losses: they are assumed to stay silent."""
        return {voter: None for voter in self.electorate.voters if voter not in self.scores}

    @cached_property
    def _stacked(self) -> Tensor:
        return torch.stack(list(self.honest.values()))

    @cached_property
    def _norms(self) -> list[float]:
        return [norm(update) for update in self.honest.values()]


class _Poll:
    """Asks honest voters, one group after another, until the outcome is certain."""

    def __init__(self, vote: DeployedVote, line: _Line, liars: Mapping[WorkerId, object]) -> None:
        self._vote, self._line, self._liars = vote, line, liars
        self._kindness = dict.fromkeys(vote.scores.honest, 0.0)
        # Losses by radius, or by the number of a batch of strengths, and by voter.
        self._honest: dict[float | None, dict[WorkerId, Marks]] = {}
        self._lies: dict[int, dict[WorkerId, list[float]]] = {}
        self._worst = self._ballot(honest=0.0, lie=math.inf)
        self._best = self._ballot(honest=1.0, lie=0.0)

    def passes(self, place: int) -> bool:
        """Whether the lie in this place of the line would be selected."""
        known: dict[WorkerId, object] = {}
        # Sorting is stable: voters of whom nothing is known yet stay in the order of the draw.
        unheard = sorted(self._kindness, key=lambda voter: -self._kindness[voter])
        while not self._carries(known, self._worst):
            if not unheard or not self._carries(known, self._best):
                return False
            helped = sum(ballot == self._best for ballot in known.values())
            size = max(1, self._needed - helped)
            asked, unheard = unheard[:size], unheard[size:]
            known.update(self._ask(place, asked))
        return True

    def _carries(self, known: Mapping[WorkerId, object], others: object) -> bool:
        """Whether the lie passes if every voter whose ballot is not known sends `others`."""
        sent = {**dict.fromkeys(self._kindness, others), **known, **self._liars}
        return self._vote.passes([(v, sent[v]) for v in self._vote.electorate.voters if v in sent])

    @cached_property
    def _needed(self) -> int:
        """How many of the kindest ballots it takes, if the others are as bad as can be."""
        known: dict[WorkerId, object] = {}
        for voter in self._kindness:
            if self._carries(known, self._worst):
                break
            known[voter] = self._best
        return len(known)

    def _ask(self, place: int, voters: Sequence[WorkerId]) -> dict[WorkerId, object]:
        batch, within = divmod(place, BATCH)
        lies = self._lies.setdefault(batch, {})
        honest = self._honest.setdefault(self._line.radii[place], {})
        self._hear_of_lies(lies, place, [voter for voter in voters if voter not in lies])
        self._hear_of_honest(place, [voter for voter in voters if voter not in honest])
        ballots: dict[WorkerId, object] = {}
        for voter in voters:
            marks, lie = honest[voter], lies[voter][within]
            if marks.losses and math.isfinite(lie):
                self._kindness[voter] = statistics.median(marks.losses.values()) - lie
            losses = {**marks.losses, **dict.fromkeys(self._vote.copies, lie)}
            ballots[voter] = self._cast(Marks(losses, marks.current_loss))
        return ballots

    def _hear_of_lies(
        self, known: dict[WorkerId, list[float]], place: int, voters: Sequence[WorkerId]
    ) -> None:
        """Ask about this strength and the rest of its batch; earlier ones are decided already."""
        if not voters:
            return
        scores, numbers = self._vote.scores.ask(voters)
        passed = place % BATCH
        tried = self._line.coefficients[place : place - passed + BATCH]
        rows = scores.combination_losses(self._line.directions, tried, numbers).tolist()
        known.update(
            (voter, [math.nan] * passed + row) for voter, row in zip(voters, rows, strict=True)
        )

    def _hear_of_honest(self, place: int, voters: Sequence[WorkerId]) -> None:
        """Ask about the honest updates at this strength's radius."""
        if not voters:
            return
        vote, radius = self._vote, self._line.radii[place]
        scores, numbers = vote.scores.ask(voters)
        ahead = self._line.radii[place : place - place % BATCH + BATCH]
        if radius is not None and len(set(ahead)) > 1 and vote.honest and scores.shares_sizes:
            table = vote.honest_losses_in_size(scores, radius, numbers).tolist()
        else:
            table = vote.honest_losses(scores, radius, numbers).tolist()
        for voter, number, row in zip(voters, numbers, table, strict=True):
            losses = dict(zip(vote.honest, row, strict=True))
            marks = Marks(losses, partial(_current_loss, scores, number))
            self._honest.setdefault(radius, {})[voter] = marks

    def _ballot(self, *, honest: float, lie: float) -> object:
        """The ballot of a voter for whom all honest updates do equally well."""
        losses = {
            **dict.fromkeys(self._vote.honest, honest),
            **dict.fromkeys(self._vote.copies, lie),
        }
        # The current model is worse than all of them, so a gate stops only what is not finite.
        return self._cast(Marks(losses, lambda: 2.0))

    def _cast(self, marks: Marks) -> object:
        electorate = self._vote.electorate
        ballot = electorate.honest_ballot(WorkerId(-1), self._vote.ids, lambda _voter: marks)
        return ballot.message


def _current_loss(scores: HoldoutScores, number: int) -> float:
    return scores.current_of([number])[0]


def _lengths(base: Tensor, direction: Tensor, strengths: Sequence[float]) -> list[float]:
    """The norms of base + s * direction."""
    base, direction = base.double(), direction.double()
    bb, bd, dd = (
        float(base @ base),
        float(base @ direction),
        float(direction @ direction),
    )
    return [max(0.0, bb + 2 * s * bd + s * s * dd) ** 0.5 for s in strengths]
