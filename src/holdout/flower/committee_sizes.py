"""How large a committee is drawn when fewer nodes are there than were asked for.

It shrinks in proportion, as long as `holdout plan` would still accept so few voters: the chance
that half of them or more lie (`majority_failure_round`) stays within `RISK_MAX`, or within what the
user accepted for the whole federation if that is more. Liars are the assumed share of the nodes
that are there, and at least one if the whole federation could have one. Proposers have no such
limit, since it is the voters who tell lies from honest proposals.
"""

from fractions import Fraction

from holdout.flower.open_round import DrawSizes
from holdout.shares import byzantine_count
from holdout.voting.odds import majority_failure

RISK_MAX = 0.05


def risk(voters: int, *, nodes: int, most: int, f: Fraction) -> float:
    """The chance that a draw of so many voters has no honest majority."""
    liars = max(byzantine_count(f, nodes), min(1, byzantine_count(f, most)))
    return majority_failure(workers=nodes, byzantine=liars, drawn=voters)


def shrink(
    asked: DrawSizes, *, nodes: int, most: int, f: Fraction, least: DrawSizes
) -> DrawSizes | None:
    """The committee for so many nodes; None if they are too few for any.

    Args:
        asked: How large it should be.
        nodes: How many nodes there are.
        most: The most that there have been.
        f: The share of liars to withstand.
        least: The smallest committee that the user accepts.

    >>> third = Fraction(1, 3)
    >>> for nodes in (6, 5, 4):
    ...     shrink(DrawSizes(3, 3), nodes=nodes, most=6, f=third, least=DrawSizes(2, 1))
    DrawSizes(proposers=3, voters=3)
    DrawSizes(proposers=2, voters=3)
    """
    if sum(asked) <= nodes:
        return asked
    if not asked.voters:
        return DrawSizes(nodes, 0) if nodes >= least.proposers else None
    whole = max(most, sum(asked))
    accepted = max(RISK_MAX, risk(asked.voters, nodes=whole, most=whole, f=f))
    fitting = [
        DrawSizes(nodes - voters, voters)
        for voters in range(least.voters, min(asked.voters, nodes - least.proposers) + 1)
        if nodes - voters <= asked.proposers
        and risk(voters, nodes=nodes, most=whole, f=f) <= accepted
    ]
    # Nearest to the proportion that was asked for; of two, the one with more voters.
    return min(
        fitting,
        key=lambda s: (abs(s.proposers * asked.voters - s.voters * asked.proposers), -s.voters),
        default=None,
    )
