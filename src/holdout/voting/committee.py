"""Drawing the proposers P_t and the voting committee C_t of a round."""

import math
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from fractions import Fraction

from holdout.errors import InfeasibleError
from holdout.ids import RoundNumber, WorkerId
from holdout.seeds import stream

REDRAWS_MAX = 10_000  # Past this, an honest majority is so unlikely that waiting is pointless.


@dataclass(frozen=True, slots=True)
class Committee:
    """The workers drawn for one round.

    Example:
        >>> committee = Committee(proposers=(4, 0, 7), voters=(2, 5, 1))
        >>> committee.proposers[2]  # Who sent proposal 2.
        7
    """

    proposers: tuple[WorkerId, ...]
    """P_t; a proposer's place is the id of its proposal."""
    voters: tuple[WorkerId, ...]
    """C_t."""


def approve_count(proposal_count: int, f: Fraction) -> int:
    """The paper's N_p (1 - f), rounded up: how many proposals a full ballot names.

    Args:
        proposal_count: N_p, how many proposals there are.
        f: The share of liars to withstand.

    >>> approve_count(30, Fraction(33, 100))
    21
    """
    return math.ceil((1 - f) * proposal_count)


def tolerated_count(proposal_count: int, f: Fraction) -> int:
    """How many lies among the proposals a rule must withstand: those that a full ballot leaves out.

    Args:
        proposal_count: N_p, how many proposals there are.
        f: The share of liars to withstand.

    >>> tolerated_count(30, Fraction(33, 100))
    9
    """
    return proposal_count - approve_count(proposal_count, f)


def draw_byzantine(workers: int, count: int, seed: int) -> frozenset[WorkerId]:
    """Who lies: drawn once per seed, the same for every rule that is compared.

    Args:
        workers: How many workers there are.
        count: How many of them lie.
        seed: Decides the draw.

    Example:
        >>> sorted(draw_byzantine(10, 3, seed=0))
        [0, 5, 7]
    """
    return frozenset(WorkerId(w) for w in stream(seed, "byzantine").sample(range(workers), count))


def draw_committee(
    *,
    workers: int,
    proposers: int,
    voters: int,
    disjoint: bool,
    seed: int,
    round_number: RoundNumber,
    redraw_until_honest: AbstractSet[WorkerId] | None = None,
) -> Committee:
    """Proposers and voters of a round, uniformly at random without repetition.

    Args:
        workers: How many workers there are.
        proposers: How many of them propose.
        voters: How many of them vote.
        disjoint: Nobody both proposes and votes, so nobody scores its own proposal.
        seed: With the round, decides the draw.
        round_number: The round, counted from 1.
        redraw_until_honest: The Byzantine workers; draws are thrown away until both groups have an
            honest majority. The authors' experiments do so; no real server can.

    Example:
        >>> draw_committee(
        ...     workers=10, proposers=3, voters=3, disjoint=True, seed=0, round_number=1
        ... )
        Committee(proposers=(6, 4, 9), voters=(2, 1, 0))
    """
    everybody = [WorkerId(w) for w in range(workers)]
    source = stream(seed, "committee", round_number)
    for _ in range(REDRAWS_MAX):
        if disjoint:
            drawn = source.sample(everybody, proposers + voters)
            committee = Committee(tuple(drawn[:proposers]), tuple(drawn[proposers:]))
        else:
            committee = Committee(
                tuple(source.sample(everybody, proposers)), tuple(source.sample(everybody, voters))
            )
        if redraw_until_honest is None or all(
            has_honest_majority(group, redraw_until_honest)
            for group in (committee.proposers, committee.voters)
        ):
            return committee
    raise InfeasibleError(
        f"no draw with an honest majority of proposers and voters in {REDRAWS_MAX} tries; got "
        f"workers={workers}, byzantine={len(redraw_until_honest or ())}, "
        f"proposers={proposers}, voters={voters}"
    )


def has_honest_majority(group: tuple[WorkerId, ...], byzantine: AbstractSet[WorkerId]) -> bool:
    """Whether fewer than half are Byzantine (the Lemma calls X >= N/2 a Byzantine majority).

    Args:
        group: The workers drawn.
        byzantine: All workers that lie, drawn or not.

    Example:
        >>> has_honest_majority((3, 4, 5), {4, 9}), has_honest_majority((3, 4), {4, 9})
        (True, False)
    """
    return 2 * sum(worker in byzantine for worker in group) < len(group)
