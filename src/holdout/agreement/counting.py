"""Ballots of a block -> which updates pass (CONSENSUS 3.3), exactly.

The paper's threshold, (1 - f) of the ballots, works if every voter approves as many of the same
updates. Without a server voters see different sets, and nobody knows what a voter saw; a ballot
that names little would count in the threshold and give nothing to anybody. So a short ballot is
completed neutrally first: the approvals that it lacks are spread evenly over what it does not name.
Full ballots on one set are left as they are, and then this is the paper's rule.

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
    """Approvals, and its share of what short ballots lack."""
    passes: bool
    """Whether it reaches both thresholds; its payload may still be invalid, or a copy."""


def tally(
    ballots: Iterable[Sequence[int]], *, updates: Sequence[int], params: Params
) -> tuple[Count, ...]:
    """Count the ballots of a block.

    Args:
        ballots: For each ballot the proposers that it names, each once, all among `updates`.
        updates: The proposers of the updates in the block, ascending.
        params: The rule, f, and b_max: nobody passes without one approval more than that, hence
            without an honest supporter. The floor holds under the paper's literal rule too.

    Returns:
        One count for each update, in their order.
    """
    by_length: dict[int, list[Sequence[int]]] = {}
    for ballot in ballots:
        by_length.setdefault(len(ballot), []).append(ballot)
    ballot_count = sum(len(group) for group in by_length.values())
    lacking = _lacking(by_length, len(updates), params)
    denominator = math.lcm(*(spread for _, spread in lacking.values()))

    # An update's score is what all ballots would give it without naming it, and on top of that,
    # for each ballot that does, the difference to one whole approval.
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
    """For each length: approvals that such a ballot lacks, and over how many they are spread."""
    if params.tally is TallyRule.PAPER:
        return dict.fromkeys(lengths, (0, 1))
    full = params.approve_count(update_count)
    return {
        length: (full - length, update_count - length) if length < full else (0, 1)
        for length in lengths
    }
