"""Ballots that name the proposals a voter approves: the paper's A_Holdout, and counting them.

cast_approvals    holdout losses -> the proposals that one voter approves  (A_Holdout)
admit_approvals   what voters sent -> valid ballots, counted faults
tally             ballots -> the union-consensus UC_t                      (A_Consensus)
"""

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from enum import StrEnum
from functools import partial

from holdout.ids import ProposalId, WorkerId
from holdout.voting.ballot import AdmittedBallots, Approvals, BallotFault, admit_ballots

Selection = tuple[ProposalId, ...]
"""The union-consensus: proposals that reached the quorum, in id order; may be empty."""


class Gate(StrEnum):
    """What an approved proposal's loss must pass, besides its rank.

    Whatever the gate, the proposal of smallest loss passes if it beats the current model, and one
    whose loss is not finite never does: the attacker's rehearsal relies on it.

    Example:
        >>> losses = {0: 1.0, 1: 1.5, 2: 3.0}
        >>> for gate in Gate:
        ...     print(gate, cast_approvals(losses, approve_count=3, gate=gate, current_loss=1.2))
        median Approvals(approved=(0, 1))
        zero Approvals(approved=(0,))
        none Approvals(approved=(0, 1, 2))
    """

    MEDIAN = "median"
    """At most the larger of the current model's loss and the voter's median loss."""
    ZERO = "zero"
    """Below the current model's loss: the proposal must help this voter."""
    NONE = "none"
    """Any finite loss."""

    @property
    def needs_current_loss(self) -> bool:
        """Whether it depends on how good the current model is."""
        return self is not Gate.NONE


def cast_approvals(
    losses: Mapping[ProposalId, float],
    *,
    approve_count: int,
    gate: Gate | None = None,
    current_loss: float = math.inf,
) -> Approvals:
    """The `approve_count` proposals of smallest loss, less those that the gate stops.

    Without a gate this is the paper's ballot: exactly `approve_count` names, however bad, with
    proposals whose loss is not finite coming last. With one, no proposal has to be endorsed.

    Args:
        losses: Each proposal's loss on this voter's holdout data.
        approve_count: How many proposals a ballot may name.
        gate: What an approved proposal must pass; None: nothing.
        current_loss: The current model's loss on the same data, where the gate needs it.

    Example:
        >>> cast_approvals({0: 0.5, 1: 9.0, 2: 0.4, 3: float("nan")}, approve_count=2)
        Approvals(approved=(0, 2))
    """
    best = rank(losses)[:approve_count]
    if gate is not None:
        limit = _limit(losses, gate, current_loss)
        best = [p for p in best if _passes(losses[p], gate, limit)]
    return Approvals(tuple(sorted(best)))


def rank(losses: Mapping[ProposalId, float]) -> list[ProposalId]:
    """The proposals, best first; equal losses by id; losses that are not finite last, by id.

    Example:
        >>> rank({0: 0.7, 1: float("inf"), 2: 0.1, 3: 0.7})
        [2, 0, 3, 1]
    """
    return sorted(
        losses, key=lambda p: (losses[p], p) if math.isfinite(losses[p]) else (math.inf, p)
    )


def _limit(losses: Mapping[ProposalId, float], gate: Gate, current_loss: float) -> float:
    # A model whose loss is no longer finite is beaten by any finite one.
    current = current_loss if math.isfinite(current_loss) else math.inf
    # Over the finite losses alone: otherwise proposals that overflow would open the gate.
    finite = [loss for loss in losses.values() if math.isfinite(loss)]
    if gate is Gate.MEDIAN and finite:
        return max(current, statistics.median(finite))
    return current


def _passes(loss: float, gate: Gate, limit: float) -> bool:
    if not math.isfinite(loss):
        return False
    match gate:
        case Gate.MEDIAN:
            return loss <= limit
        case Gate.ZERO:
            return loss < limit
        case Gate.NONE:
            return True


def admit_approvals(
    sent: Iterable[tuple[WorkerId, object]],
    *,
    voters: Iterable[WorkerId],
    proposals: AbstractSet[ProposalId],
    approve_count: int,
    full: bool,
) -> AdmittedBallots[Approvals]:
    """Check what voters sent: a ballot names some of the proposals, each once.

    Args:
        sent: Who sent what, in order of arrival.
        voters: The voters drawn.
        proposals: What a ballot may name.
        approve_count: How many proposals a ballot may name.
        full: Whether a ballot must name as many as that.

    Example:
        >>> sent = [(7, [0, 2]), (8, [0, 99]), (7, [1])]
        >>> found = admit_approvals(
        ...     sent, voters=[7, 8], proposals={0, 1, 2}, approve_count=2, full=False
        ... )
        >>> found.valid, [(voter, str(fault)) for voter, fault in found.void]
        ({7: Approvals(approved=(0, 2))}, [(8, 'unknown-id'), (7, 'second')])
    """
    read = partial(_read, proposals=proposals, approve_count=approve_count, full=full)
    return admit_ballots(sent, voters=voters, read=read)


def _read(
    names: object, *, proposals: AbstractSet[ProposalId], approve_count: int, full: bool
) -> Approvals | BallotFault:
    # The type is compared exactly: True is an int too, but not the id of a proposal.
    if not isinstance(names, list | tuple):
        return BallotFault.MALFORMED
    if len(names) > approve_count:
        return BallotFault.TOO_LONG
    if any(type(name) is not int for name in names):
        return BallotFault.MALFORMED
    if len(set(names)) < len(names):
        return BallotFault.REPEATED_ID
    if any(name not in proposals for name in names):
        return BallotFault.UNKNOWN_ID
    if full and len(names) < approve_count:
        return BallotFault.TOO_SHORT
    return Approvals(tuple(sorted(names)))


def tally(ballots: Mapping[WorkerId, Approvals], *, quorum: int) -> Selection:
    """The union-consensus: proposals that enough voters approve, in id order; may be empty.

    Args:
        ballots: The valid ballots, by voter.
        quorum: How many approvals are enough.

    Example:
        >>> tally({7: Approvals((0, 2)), 8: Approvals((2,)), 9: Approvals((1, 2))}, quorum=2)
        (2,)
    """
    approvals = Counter(p for ballot in ballots.values() for p in ballot.approved)
    return tuple(sorted(p for p, count in approvals.items() if count >= quorum))
