"""The joint vote: voters' own updates make one holdout direction, and it judges every proposal.

In the paper a voter c tries each proposal u_j and ranks it by L_c(w - eta u_j). Proposition 1 rests
on what that loss is to first order, L_c(w) - eta <u_j, g_c> with g_c the gradient of L_c at w: by
convexity and smoothness the two differ by at most eta^2 beta G^2 / 2, so the proposals that a voter
prefers are, up to this term, those with the largest <u_j, g_c>. Hence g_c holds all that voter c
could say about any proposal, and it does not depend on the proposals. A joint ballot is g_c itself
(with local steps, the update that a proposer would send), computed on the voter's holdout rows. A
voter needs the current model and nothing else; it costs what proposing costs, however many
proposals there are; and it sees nobody's update.

Since the server holds all voters' messages, it need not ask each voter for a verdict. Voters whose
data are skewed cannot judge a single update well, but their gradients can be averaged. So:

    screen     lies that agree with each other more than honest updates do lose weight
               (`rules.covariance.screen`): among the messages, and among the proposals
    direction  h_t = the weighted mean of the messages; H_t = memory * H_{t-1} + (1 - memory) * h_t
    judge      the at most N_p - k proposals of lowest <u_j, H_t> are out, and only where that is
               negative: so a draw of mostly lying voters can never leave the lies alone
    step       the mean of the rest under the screen's weights

Nobody's vector counts for more than a radius that follows the median length, as in `voting.terms`:
one for the proposals, one for the messages. All decisions follow from inner products alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from holdout import device
from holdout.learning.vector import norm, shrink
from holdout.parallel import map_runs
from holdout.rules.covariance import screen
from holdout.rules.distance import Matrix
from holdout.voting import RATE, Terms

_WIDTH = 1 << 12
"""Coordinates in one product of the vectors with each other: such a block stays in the cache."""

LONGEST, TINY = 1e18, 1e-18
"""What is longer is shrunk to this at once, and what is shorter counts as zero: so that nothing
overflows or underflows in float32. No gradient that anybody can learn from is near either."""

NEGLIGIBLE = 0.2
"""A proposal whose weight is below this share of an equal weight is out."""


@dataclass(frozen=True, slots=True, eq=False)
class JointMemory:
    """What a joint vote hands to the next round.

    Args:
        radius: How long a proposal may be; None before the first round.
        message_radius: The same for a voter's message.
        direction: H, the holdout direction so far; None before the first round.

    Example:
        >>> JointMemory().direction is None
        True
    """

    radius: float | None = None
    message_radius: float | None = None
    direction: Tensor | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Products:
    """How long the vectors of a vote are, and the cosines between them; or many votes at once.

    Args:
        lengths: Of the proposals, (..., n).
        message_lengths: Of the voters' messages, (..., m).
        proposals: Cosines between proposals, (..., n, n).
        messages: Cosines between messages, (..., m, m).
        across: Cosines between proposals and messages, (..., n, m).
        recalled: Cosines between proposals and the remembered direction, (..., n).
        recalled_length: The length of that direction, (...); 0 if there is none.
    """

    lengths: Matrix
    message_lengths: Matrix
    proposals: Matrix
    messages: Matrix
    across: Matrix
    recalled: Matrix
    recalled_length: Matrix


@dataclass(frozen=True, slots=True, eq=False)
class JointVerdict:
    """What follows from the inner products; or of many votes at once.

    Args:
        weights: Of each proposal in the step, (..., n); they sum to 1, and 0 means that it is out.
        scale: The factor that bounds each proposal, (..., n).
        judges: The weight of each message in h_t, (..., m).
        message_scale: The factor that bounds each message, (..., m).
        scores: <u_j, H_t> of the bounded proposals, (..., n).
        memory: The share of H_{t-1} in H_t.
        radius: How long a proposal may be, (...).
        message_radius: How long a message may be, (...).
    """

    weights: Matrix
    scale: Matrix
    judges: Matrix
    message_scale: Matrix
    scores: Matrix
    memory: float
    radius: Matrix
    message_radius: Matrix


@dataclass(frozen=True, slots=True, eq=False)
class JointDecision:
    """What a joint vote came to.

    Args:
        update: v_t.
        weights: The weight of each proposal in it; 0 means that it is out.
        judges: The weight of each message in h_t.
        support: What each message says of each proposal, (messages, proposals): the cosine.
        memory: What the next round needs.
    """

    update: Tensor
    weights: Sequence[float]
    judges: Sequence[float]
    support: Matrix
    memory: JointMemory


def decide_jointly(
    proposals: Sequence[Tensor], messages: Sequence[Tensor], *, terms: Terms, memory: JointMemory
) -> JointDecision:
    """Judge the proposals by the messages, and average those that stand.

    Without any message the remembered direction judges, and without that only the screen does.

    Args:
        proposals: Finite float32 vectors, at least one.
        messages: The same from voters; any number.
        terms: How the vote is held.
        memory: What the last round handed on.

    Example:
        >>> from fractions import Fraction
        >>> good, bad = torch.tensor([1.0, 0.1]), torch.tensor([-1.0, 0.0])
        >>> decision = decide_jointly(
        ...     [good, good, bad], [good, good], terms=Terms.joint(Fraction(1, 3)),
        ...     memory=JointMemory(),
        ... )
        >>> decision.update, decision.weights
        (tensor([1.0000, 0.1000]), [0.5, 0.5, 0.0])
    """
    # As a block of rows, so that all inner products are one computation.
    rows = [*proposals, *messages, *([] if memory.direction is None else [memory.direction])]
    vectors = Vectors.of(rows)
    n, m = len(proposals), len(messages)
    products = products_of(vectors.lengths, cosines(vectors), proposals=n, messages=m)
    verdict = judge(products, terms=terms, memory=memory)
    return JointDecision(
        update=combine(vectors.rows[:n], verdict.weights * verdict.scale),
        weights=verdict.weights.tolist(),
        judges=verdict.judges.tolist(),
        support=products.across.T,
        memory=_remember(vectors.rows[n : n + m], verdict, memory),
    )


def judge(products: Products, *, terms: Terms, memory: JointMemory) -> JointVerdict:
    """Who stands and with what weight, from inner products alone; of many votes at once too.

    Args:
        products: Of one vote, or of many with as many proposals and messages each.
        terms: How the vote is held.
        memory: What the last round handed on.
    """
    n, m = products.lengths.shape[-1], products.message_lengths.shape[-1]
    tolerated = n - terms.approve_count(n)
    radius, message_radius = _radii(products, memory)
    scale, lengths = _bounded(products.lengths, radius)
    message_scale, message_lengths = _bounded(products.message_lengths, message_radius)
    # h_t, and what it makes of the proposals.
    share = terms.memory if memory.direction is not None else 0.0
    scores = share * products.recalled_length[..., None] * lengths * products.recalled
    judges = np.zeros_like(message_lengths)
    if m:
        judges = _screened(products.messages, message_lengths, m - terms.approve_count(m), terms)
        heard = products.across @ (judges * message_lengths)[..., None]
        scores = scores + (1 - share) * lengths * heard[..., 0]
    # The lowest are out, at most N_p - k, and only where they are negative.
    places = np.argsort(np.argsort(scores, axis=-1, kind="stable"), axis=-1, kind="stable")
    stands = (places >= tolerated) | (scores >= 0)
    weights = _screened(products.proposals, lengths, tolerated, terms)
    heavy = stands & (weights >= NEGLIGIBLE / n)
    # The screen alone may not empty what the judges left.
    chosen = np.where(heavy.any(axis=-1, keepdims=True), heavy, stands)
    kept = np.where(chosen, weights, 0.0)
    total = kept.sum(axis=-1, keepdims=True)
    equal = chosen / chosen.sum(axis=-1, keepdims=True)
    weights = np.where(total > 0, kept / np.where(total > 0, total, 1.0), equal)
    return JointVerdict(
        weights, scale, judges, message_scale, scores, share, radius, message_radius
    )


def _radii(products: Products, memory: JointMemory) -> tuple[Matrix, Matrix]:
    """How long proposals and messages may be.

    Each follows its median. Before the first round there is nothing to compare with, so both start
    from the median of all: liars may be half of one draw, but hardly of two at once.
    """
    first = _median(np.concatenate([products.lengths, products.message_lengths], axis=-1))
    return (
        _follow(products.lengths, memory.radius, first),
        _follow(products.message_lengths, memory.message_radius, first),
    )


def _follow(lengths: Matrix, previous: float | None, first: Matrix) -> Matrix:
    """`voting.bound_radius` of many votes at once."""
    before = np.where(np.asarray(previous or 0.0) > 0, previous or 0.0, first)
    if not lengths.shape[-1]:
        return before
    median = _median(lengths)
    return np.where(before > 0, np.clip(median, before / RATE, before * RATE), median)


def _median(lengths: Matrix) -> Matrix:
    count = lengths.shape[-1]
    return np.sort(lengths, axis=-1)[..., (count + 1) // 2 - 1]


def _bounded(lengths: Matrix, radius: Matrix) -> tuple[Matrix, Matrix]:
    """The factors that scale vectors of these lengths down to the radius, and the new lengths."""
    limit = radius[..., None]
    short = np.minimum(lengths, limit)
    return np.where(lengths > limit, limit / np.where(lengths > 0, lengths, 1.0), 1.0), short


def _screened(cosines: Matrix, lengths: Matrix, tolerated: int, terms: Terms) -> Matrix:
    """The screen's weights; equal ones where the terms have none."""
    if not terms.screen:
        return np.full_like(lengths, 1 / lengths.shape[-1])
    return screen(cosines * lengths[..., :, None] * lengths[..., None, :], f=tolerated)


def _remember(
    messages: Sequence[Tensor], verdict: JointVerdict, memory: JointMemory
) -> JointMemory:
    """H_t = memory * H_{t-1} + (1 - memory) * h_t, and the radii."""
    direction, share = memory.direction, verdict.memory
    if messages:
        factors = (1 - share) * verdict.judges * verdict.message_scale
        fresh = combine(messages, factors)
        direction = fresh if direction is None else fresh.add_(direction, alpha=share)
    return JointMemory(
        radius=float(verdict.radius) or None,
        message_radius=float(verdict.message_radius) or None,
        direction=direction,
    )


# -------------------------------------------------------------------------------- vectors, products


@dataclass(frozen=True, slots=True, eq=False)
class Vectors:
    """Vectors of one length d and their norms.

    Args:
        rows: The vectors, none of which is so long that products overflow.
        lengths: Their norms.
    """

    rows: Sequence[Tensor]
    lengths: Matrix

    @classmethod
    def of(cls, rows: Sequence[Tensor]) -> Self:
        """These vectors; those longer than anything sensible are shrunk, in their direction."""
        norms = [norm(row) for row in rows]
        ordinary = [
            row if length <= LONGEST else shrink(row, length, LONGEST)
            for row, length in zip(rows, norms, strict=True)
        ]
        return cls(ordinary, np.minimum(np.array(norms, dtype=np.float64), LONGEST))


def cosines(vectors: Vectors, others: Vectors | None = None) -> Matrix:
    """The cosines between all vectors, or with others, (n, m) of float64; 0 for zero vectors.

    Products are float32 within a block of coordinates and summed in float64. No copy of all the
    vectors is made, and the number of threads changes no bit.

    Example:
        >>> cosines(Vectors.of([torch.tensor([3.0, 4.0]), torch.tensor([2.0, 0.0])])).round(6)
        array([[1. , 0.6],
               [0.6, 1. ]])
    """
    right = vectors if others is None else others
    shape = len(vectors.rows), len(right.rows)
    if 0 in shape:
        return np.zeros(shape)
    left_rows, right_rows = ([device.to_numpy(row) for row in v.rows] for v in (vectors, right))

    def work(starts: range) -> Matrix:
        total = np.zeros(shape)
        for start in starts:
            block = _block(left_rows, start)
            total += block @ (block if others is None else _block(right_rows, start)).T
        return total

    total: Matrix = np.sum(map_runs(work, len(left_rows[0]), _WIDTH), axis=0)
    lengths = np.outer(vectors.lengths, right.lengths)
    return np.divide(total, lengths, out=np.zeros(shape), where=lengths > TINY**2)


def _block(arrays: Sequence[npt.NDArray[np.float32]], start: int) -> npt.NDArray[np.float32]:
    return np.stack([array[start : start + _WIDTH] for array in arrays])


def products_of(lengths: Matrix, table: Matrix, *, proposals: int, messages: int) -> Products:
    """The parts of a table of cosines: proposals, then messages, then a direction if there is one.

    Args:
        lengths: The norms of all, (..., n + m) or (..., n + m + 1).
        table: All cosines, square.
        proposals: How many proposals there are, n.
        messages: How many messages there are, m.
    """
    p, v = slice(0, proposals), slice(proposals, proposals + messages)
    last = proposals + messages
    recalls = table.shape[-1] > last
    return Products(
        lengths=lengths[..., p],
        message_lengths=lengths[..., v],
        proposals=table[..., p, p],
        messages=table[..., v, v],
        across=table[..., p, v],
        recalled=table[..., p, last] if recalls else np.zeros_like(lengths[..., p]),
        recalled_length=lengths[..., last] if recalls else np.zeros_like(lengths[..., 0]),
    )


def combine(rows: Sequence[Tensor], factors: Matrix) -> Tensor:
    """The sum of the vectors, each times its factor."""
    total = torch.zeros_like(rows[0])
    for row, factor in zip(rows, factors.tolist(), strict=True):
        if factor:
            total.add_(row, alpha=factor)
    return total
