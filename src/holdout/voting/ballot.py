"""Holdout losses -> the proposals that one voter approves (the paper's A_Holdout)."""

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from holdout.ids import ProposalId


class Gate(StrEnum):
    """What an approved proposal's loss must pass, besides its rank."""

    MEDIAN = "median"
    """At most the larger of the current model's loss and the voter's median loss."""
    ZERO = "zero"
    """Below the current model's loss: the proposal must help this voter."""
    NONE = "none"
    """Any finite loss."""


@dataclass(frozen=True, slots=True)
class Ballot:
    """The proposals that did best on one voter's holdout data, in id order."""

    approved: tuple[ProposalId, ...]


def cast_ballot(
    losses: Mapping[ProposalId, float],
    *,
    approve_count: int,
    gate: Gate | None = None,
    current_loss: float = math.inf,
) -> Ballot:
    """The `approve_count` proposals of smallest loss, less those that the gate stops.

    Without a gate this is the paper's ballot: exactly `approve_count` names, however bad, with
    proposals whose loss is not finite coming last. With one, no proposal has to be endorsed.
    """
    best = rank(losses)[:approve_count]
    if gate is not None:
        limit = _limit(losses, gate, current_loss)
        best = [p for p in best if _passes(losses[p], gate, limit)]
    return Ballot(tuple(sorted(best)))


def rank(losses: Mapping[ProposalId, float]) -> list[ProposalId]:
    """Best first; equal losses by id; losses that are not finite last, by id."""
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
