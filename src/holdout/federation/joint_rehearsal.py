"""The joint vote as an attacker rehearses it: what would come of these lies and these messages.

The vote decides by inner products alone (`holdout.joint_vote`). Those between honest vectors are
computed once a round, those with a lie when it is tried, and many lies are judged at once.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from torch import Tensor

from holdout.attacks import Tried
from holdout.federation.joint_ballots import JointVoters
from holdout.ids import ProposalId
from holdout.joint_vote import JointMemory, Vectors, combine, cosines, judge, products_of
from holdout.rounds import admit_proposals
from holdout.rules.distance import Matrix
from holdout.voting import Terms

BATCH = 8  # Lies judged together.


@dataclass(frozen=True, eq=False)
class DeployedJointVote:
    """HoldOut with joint ballots as the attacker runs it on what it knows."""

    voters: JointVoters
    """What it takes for the voters."""
    honest: Mapping[ProposalId, Tensor]
    """The honest updates that it knows or guesses, by proposal id."""
    copies: tuple[ProposalId, ...]
    """The ids under which its lies are sent."""
    passing: str
    """`any` copy with a weight is enough, or `all` must have one."""
    terms: Terms
    memory: JointMemory

    @property
    def leaves_nobody_out(self) -> bool:
        """Never: that is what the vote is for."""
        return False

    def selects(
        self, base: Tensor, direction: Tensor, strengths: Sequence[float]
    ) -> Iterator[bool]:
        """For each strength: whether the lie would be part of the step."""
        count = len(self.copies)
        for start in range(0, len(strengths), BATCH):
            lies = [base + s * direction for s in strengths[start : start + BATCH]]
            for weights, _ in self._judged([Tried([lie] * count) for lie in lies]):
                chosen = weights[len(self.honest) :] > 0
                yield bool(chosen.all() if self.passing == "all" else chosen.any())

    def outcome(self, lies: Sequence[Tensor | None]) -> Tensor | None:
        """The step that would be made of these lies; None: none."""
        return next(self.outcomes([Tried(lies)]))

    def outcomes(self, tried: Sequence[Tried]) -> Iterator[Tensor | None]:
        """The step that would be made of each; lying voters send what it says, or the usual."""
        for start in range(0, len(tried), BATCH):
            for factors, rows in self._judged(tried[start : start + BATCH], bounded=True):
                yield combine(rows, factors) if rows else None

    @cached_property
    def _fixed(self) -> tuple[Vectors, Matrix]:
        """What no lie changes: honest updates, honest messages, the remembered direction."""
        kept = [] if self.memory.direction is None else [self.memory.direction]
        vectors = Vectors.of([*self.honest.values(), *self.voters.known, *kept])
        return vectors, cosines(vectors)

    def _judged(
        self, tried: Sequence[Tried], *, bounded: bool = False
    ) -> Iterator[tuple[Matrix, Sequence[Tensor]]]:
        """For each: the weights of honest updates and valid lies, and these updates.

        With `bounded`, the weights include the factors that bound the updates.
        """
        read = [self._read(one) for one in tried]
        fixed, known = self._fixed
        # Copies of a lie are one vector, and so are messages that several voters send.
        places: dict[int, int] = {}
        fresh: list[Tensor] = []
        for vector in (v for lies, messages in read for v in (*lies, *messages)):
            if id(vector) not in places:
                places[id(vector)] = len(fixed.rows) + len(fresh)
                fresh.append(vector)
        new = Vectors.of(fresh)
        across = cosines(new, fixed)
        table = np.block([[known, across.T], [across, cosines(new)]])
        lengths = np.concatenate([fixed.lengths, new.lengths])
        everything = [*fixed.rows, *new.rows]
        n, m = len(self.honest), len(self.voters.known)
        for lies, messages in read:
            proposals = [*range(n), *(places[id(lie)] for lie in lies)]
            ballots = [*range(n, n + m), *(places[id(message)] for message in messages)]
            chosen = [*proposals, *ballots, *range(n + m, len(fixed.rows))]
            rows = [everything[place] for place in proposals]
            if not rows:
                yield np.zeros(0), []
                continue
            products = products_of(
                lengths[chosen],
                table[np.ix_(chosen, chosen)],
                proposals=len(proposals),
                messages=len(ballots),
            )
            verdict = judge(products, terms=self.terms, memory=self.memory)
            yield verdict.weights * (verdict.scale if bounded else 1.0), rows

    def _read(self, one: Tried) -> tuple[list[Tensor], list[Tensor]]:
        """The valid lies and messages, as the server would admit them."""
        dimension = len(self.voters.setup.state.weights)
        lies = _valid(one.lies, dimension)
        sent = self.voters.lies(lies) if one.messages is None else one.messages
        return lies, _valid(sent, dimension)


def _valid(sent: Sequence[object], dimension: int) -> list[Tensor]:
    # By identity, so that what is sent several times is read once.
    distinct = {id(vector): vector for vector in sent}
    read = admit_proposals(list(distinct.values()), dimension=dimension).valid
    admitted = {key: read.get(ProposalId(place)) for place, key in enumerate(distinct)}
    return [vector for v in sent if (vector := admitted[id(v)]) is not None]
