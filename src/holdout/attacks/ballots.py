"""How Byzantine voters vote. Each behaviour is a function of what one voter knows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from holdout.ids import ProposalId, WorkerId
from holdout.seeds import Stream


@dataclass(frozen=True, slots=True)
class BallotView:
    """What a Byzantine voter knows when it votes.

    Example:
        >>> from holdout import stream
        >>> view = BallotView(
        ...     voter=9, proposals=(0, 1, 2, 3), coalition=frozenset({1, 3}), approve_count=3,
        ...     honest_ballot=lambda: [0, 2], ranking=lambda: [2, 0, 1, 3], source=stream(0),
        ... )
        >>> view.own, view.others
        ([1, 3], [0, 2])
    """

    voter: WorkerId
    """Who votes."""
    proposals: tuple[ProposalId, ...]
    """All proposals to be judged, in id order."""
    coalition: frozenset[ProposalId]
    """The proposals that Byzantine workers sent."""
    approve_count: int
    """How many proposals a ballot may name."""
    honest_ballot: Callable[[], Sequence[ProposalId]]
    """What this voter would approve if it were honest."""
    ranking: Callable[[], Sequence[ProposalId]]
    """All proposals by their loss on this voter's own data, best first."""
    source: Stream
    """Random integers that only this voter draws in this round."""

    @property
    def own(self) -> list[ProposalId]:
        """The coalition's proposals, in id order."""
        return [p for p in self.proposals if p in self.coalition]

    @property
    def others(self) -> list[ProposalId]:
        """Everybody else's proposals, in id order."""
        return [p for p in self.proposals if p not in self.coalition]


class BallotAttack(Protocol):
    """What a Byzantine voter sends as its ballot; whatever comes back is checked.

    Example:
        >>> import holdout
        >>> def own_or_nobody(view):
        ...     return view.own[: view.approve_count]
        >>> plugins = holdout.Plugins(ballots=own_or_nobody)
    """

    def __call__(self, view: BallotView) -> Sequence[ProposalId]:
        """Decide which proposals this voter names."""


def honest(view: BallotView) -> Sequence[ProposalId]:
    """What the voter's data says, as an honest voter would vote.

        ballot = the honest ballot

    Source: Azulay, Raz, Globerson, Koren, Afek, 2020, arXiv 2008.04612, A_Holdout.

    Needs: any vote.
    """
    return view.honest_ballot()


def coalition(view: BallotView) -> Sequence[ProposalId]:
    """All Byzantine proposals, then random honest ones to fill the ballot.

        ballot = the coalition's proposals, then honest ones drawn at random, up to k in all

    Source: Azulay, Raz, Globerson, Koren, Afek, 2020, arXiv 2008.04612, the paper's Byzantine
    voters.

    Needs: any vote.
    """
    room = max(0, view.approve_count - len(view.own))
    rest = view.source.sample(view.others, min(room, len(view.others)))
    return [*view.own, *rest][: view.approve_count]


def starve(view: BallotView) -> Sequence[ProposalId]:
    """Byzantine proposals, then the worst honest ones: the good get no help towards the quorum.

        ballot = the coalition's proposals, then the honest ones of largest loss, up to k in all

    Source: this project.

    Needs: any vote.
    """
    worst_first = [p for p in reversed(view.ranking()) if p not in view.coalition]
    return [*view.own, *worst_first][: view.approve_count]


def short(view: BallotView) -> Sequence[ProposalId]:
    """The Byzantine proposals and nobody else.

        ballot = the coalition's proposals, up to k

    Source: this project.

    Needs: ballots that need not be full; elsewhere they are void.
    """
    return view.own[: view.approve_count]


def blank(view: BallotView) -> Sequence[ProposalId]:
    """An empty ballot.

        ballot = nothing

    Source: this project.

    Needs: ballots that need not be full; elsewhere they are void.
    """
    del view
    return []


def random(view: BallotView) -> Sequence[ProposalId]:
    """A full ballot of proposals drawn at random.

        ballot = k proposals, each as likely as any other

    Source: this project.

    Needs: any vote.
    """
    return view.source.sample(view.proposals, view.approve_count)


def inverted(view: BallotView) -> Sequence[ProposalId]:
    """The proposals that did worst on this voter's data.

        ballot = the k proposals of largest loss

    Source: this project.

    Needs: any vote.
    """
    return view.ranking()[-view.approve_count :]
