"""The terms of a vote: one machinery, several rules.

`Terms.paper(f)` is HoldOut SGD to the letter. `Terms(f)` is the same vote made safe: updates are
bounded, ballots are gated (so a draw with too many liars forces nobody to endorse one), and the
quorum is a majority of the voters drawn. `Terms.joint(f)` has voters send an update of their own
instead of names; what follows from those is in `holdout.joint_vote`.

A vote on single updates is safe only if one update cannot dominate the average. An update that
leads to a function-identical network (ReLU units rescaled by 1000) has a perfect loss of its own
and still ruins the mean. So each update is scaled down to a radius that follows the median norm,
but moves by at most RATE a round, whatever a lucky draw of liars sends.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from types import MappingProxyType
from typing import Self

from holdout.ids import ProposalId, WorkerId
from holdout.voting.approvals import Gate, Selection, admit_approvals, cast_approvals, tally
from holdout.voting.ballot import AdmittedBallots, Approvals, BallotKind
from holdout.voting.committee import approve_count


class Quorum(StrEnum):
    """How many approvals make a proposal part of the union-consensus.

    Example:
        >>> terms = Terms(Fraction(1, 3), quorum_kind=Quorum.PAPER)
        >>> terms.quorum(drawn=30, valid=28)
        19
    """

    MAJORITY = "majority"
    """floor(N_c / 2) + 1 of the voters drawn, whether or not they voted."""
    PAPER = "paper"
    """ceil((1 - f) N_c) of the valid ballots."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What a ballot must look like and what it takes to be selected.

    Example:
        >>> terms = Terms(Fraction(1, 3))
        >>> terms.approve_count(30), terms.quorum(drawn=30, valid=28)
        (20, 16)
    """

    f: Fraction
    """The share of liars to withstand."""
    gate: Gate | None = Gate.MEDIAN
    """None: every ballot is full, as in the paper."""
    quorum_kind: Quorum = Quorum.MAJORITY
    """How many approvals select a proposal."""
    bound: bool = True
    """Whether updates are scaled down to the radius before anybody scores or averages them."""
    kind: BallotKind = BallotKind.APPROVALS
    """What voters send."""
    first_order: bool = False
    """Score update g by -<g, gradient of the voter's loss> instead of its loss (Proposition 1)."""
    screen: bool = True
    """Joint ballots only: whether lies that agree with each other too much lose weight."""
    memory: float = 0.9
    """Joint ballots only: the share of the last holdout direction in the next."""
    softness: float | None = 0.1
    """Joint ballots only: a cosine with the direction that is below the median by less than this
    costs a proposal little weight, one that is lower costs more. None: it costs none."""
    margin: float = 0.0
    """Joint ballots only: a proposal may be out whose cosine with the direction is below this share
    of the median cosine."""
    gap: float = 0.0
    """Joint ballots only: it must also be below the median cosine by so much, if that is not 0."""
    reach: float = 1.0
    """Joint ballots only: how many radii an update may be long."""

    @classmethod
    def paper(cls, f: Fraction) -> Self:
        """HoldOut SGD as published: full ballots, quorum N_c (1 - f), updates taken as they are."""
        return cls(f, gate=None, quorum_kind=Quorum.PAPER, bound=False)

    @classmethod
    def joint(cls, f: Fraction) -> Self:
        """Voters send updates of their own, and one direction made of all of them judges."""
        return cls(f, gate=None, kind=BallotKind.JOINT)

    @property
    def is_joint(self) -> bool:
        """Whether voters send updates of their own instead of names."""
        return self.kind is BallotKind.JOINT

    @property
    def needs_current_loss(self) -> bool:
        """Whether a ballot depends on how good the current model is."""
        return self.gate is not None and self.gate.needs_current_loss

    def approve_count(self, proposal_count: int) -> int:
        """How many proposals a ballot may name."""
        return approve_count(proposal_count, self.f)

    def forced(self, proposals: Sequence[ProposalId]) -> Approvals | None:
        """The only approvals that an honest voter can cast, if there is no need for the losses."""
        count = len(proposals)
        full = self.gate is None and self.approve_count(count) == count
        return Approvals(tuple(proposals)) if full else None

    def cast(self, losses: Mapping[ProposalId, float], *, current_loss: float) -> Approvals:
        """An honest voter's approvals."""
        return cast_approvals(
            losses,
            approve_count=self.approve_count(len(losses)),
            gate=self.gate,
            current_loss=current_loss,
        )

    def admit(
        self,
        sent: Iterable[tuple[WorkerId, object]],
        *,
        voters: Iterable[WorkerId],
        proposals: Iterable[ProposalId],
    ) -> AdmittedBallots[Approvals]:
        """The valid approvals among those sent, and what was wrong with the others."""
        known = frozenset(proposals)
        return admit_approvals(
            sent,
            voters=voters,
            proposals=known,
            approve_count=self.approve_count(len(known)),
            full=self.gate is None,
        )

    def quorum(self, *, drawn: int, valid: int) -> int:
        """The approvals needed, given how many voters were drawn and how many ballots are valid."""
        match self.quorum_kind:
            case Quorum.MAJORITY:
                return drawn // 2 + 1
            case Quorum.PAPER:
                return max(1, math.ceil((1 - self.f) * valid))

    def select(self, ballots: Mapping[WorkerId, Approvals], *, drawn: int) -> Selection:
        """The union-consensus of the valid approvals, given how many voters were drawn."""
        return tally(ballots, quorum=self.quorum(drawn=drawn, valid=len(ballots)))


RATE = 1.5
"""How far the radius may move in a round; without a server, every member computes the same."""


def bound_radius(norms: Sequence[float], *, previous: float | None) -> float | None:
    """The radius r_t of this round, from the norms of the admitted updates and r_{t-1}.

    Where nothing was admitted the radius stays. A radius of zero (a first round in which most
    updates were zero) counts as none: it could never grow again.

    Args:
        norms: The L2 norms of the updates, in any order.
        previous: r_{t-1}; None in the first round.

    Example:
        >>> bound_radius([1.0, 2.0, 900.0], previous=None)
        2.0
        >>> bound_radius([900.0, 900.0, 900.0], previous=2.0)
        3.0
    """
    if not norms:
        return previous
    median = sorted(norms)[(len(norms) + 1) // 2 - 1]
    if not previous:
        return median
    return min(max(median, previous / RATE), RATE * previous)


@dataclass(frozen=True, slots=True)
class VoteRule:
    """A rule that is a vote: what people call it, and its terms for a share f of liars.

    Example:
        >>> VOTES["holdout-paper"].label, VOTES["holdout-paper"].terms(Fraction(1, 3)).bound
        ('HoldOut (paper)', False)
    """

    label: str
    """What people call it."""
    terms: Callable[[Fraction], Terms]
    """f -> the terms of the vote."""
    prominence: int = 2
    """0 for what a reader looks for first, then 1; 2 for all the others."""
    is_fixed: bool = False
    """Whether its terms are the same whatever the config's `[vote]` says."""
    has_server: bool = False
    """Only in mode `decentralized`: the same vote with a truthful server, for comparison."""
    about: str = ""
    """What it is, in a line."""


VOTES: Mapping[str, VoteRule] = MappingProxyType(
    {
        "holdout-paper": VoteRule(
            "HoldOut (paper)",
            Terms.paper,
            prominence=1,
            is_fixed=True,
            about="HoldOut SGD as published: full ballots, quorum N_c (1 - f), no bound.",
        ),
        "holdout-1": VoteRule(
            "HoldOut (first vote)",
            Terms,
            about="Voters name the bounded updates that do best on their data and pass a gate.",
        ),
        "holdout": VoteRule(
            "HoldOut",
            Terms.joint,
            prominence=0,
            about="Voters send updates of their own, and one direction made of all of them judges.",
        ),
        "holdout-central": VoteRule(
            "HoldOut (server)",
            Terms.joint,
            has_server=True,
            about="The vote `holdout` with a truthful server, to compare with one without.",
        ),
    }
)
"""Every vote by its name in a config; nothing else lists them."""
