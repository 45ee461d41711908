"""Which updates pass, by the ballots of a block; an exact count.

The paper's threshold, (1 - f) of the ballots, works if all voters approve equally many of the same
updates. Without a server voters see different sets, and nobody knows what a voter saw. A ballot
that names few updates would raise the threshold for all the others. So a short ballot is completed
neutrally first: the approvals that it lacks are spread evenly over the updates that it does not
name. Full ballots on one set are left as they are, and for them this is the paper's rule.

All of it is integer arithmetic over one common denominator: every worker must get the same answer.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from holdout.agreement.params import Params, TallyRule


@dataclass(frozen=True, slots=True)
class Count:
    """What the ballots say about one update."""

    proposer: int
    approvals: int
    """Ballots that name it."""
    score: Fraction
    """Its approvals, and its share of the approvals that short ballots lack."""
    passes: bool
    """Whether it reaches both thresholds; its payload may still be invalid, or a copy."""


def tally(
    ballots: Iterable[Sequence[int]], *, updates: Sequence[int], params: Params
) -> tuple[Count, ...]:
    """Count the ballots of a block.

    Args:
        ballots: For each ballot the proposers that it names, each once, all among `updates`.
        updates: The proposers of the updates in the block, ascending.
        params: The rule, f, and b_max. An update passes only with more than b_max approvals, hence
            with an honest supporter; this floor holds under the paper's literal rule too.

    Returns:
        One count for each update, in the order of `updates`.
    """
    by_length: dict[int, list[Sequence[int]]] = {}
    for ballot in ballots:
        by_length.setdefault(len(ballot), []).append(ballot)
    ballot_count = sum(len(group) for group in by_length.values())
    lacking = _lacking(by_length, len(updates), params)
    denominator = math.lcm(*(spread for _, spread in lacking.values()))

    # An update's score is what all ballots would give it if none named it, plus, for each ballot
    # that does name it, what is missing to one whole approval.
    unnamed = 0
    approvals = Counter[int]()
    named = Counter[int]()
    for length, group in by_length.items():
        missing, spread = lacking[length]
        fill = missing * (denominator // spread)
        unnamed += fill * len(group)
        for proposer, count in Counter(p for ballot in group for p in ballot).items():
            approvals[proposer] += count
            named[proposer] += count * (denominator - fill)

    f = params.f
    threshold = (f.denominator - f.numerator) * ballot_count * denominator
    return tuple(
        Count(
            proposer,
            approvals[proposer],
            Fraction(unnamed + named[proposer], denominator),
            passes=(unnamed + named[proposer]) * f.denominator >= threshold
            and approvals[proposer] > params.byzantine_voters_max,
        )
        for proposer in updates
    )


def _lacking(
    lengths: Iterable[int], update_count: int, params: Params
) -> dict[int, tuple[int, int]]:
    """For each ballot length: the approvals lacking, and over how many updates they are spread."""
    if params.tally is TallyRule.PAPER:
        return dict.fromkeys(lengths, (0, 1))
    full = params.approve_count(update_count)
    return {
        length: (full - length, update_count - length) if length < full else (0, 1)
        for length in lengths
    }
