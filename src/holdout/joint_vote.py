"""The joint vote: voters' own updates make one holdout direction, and it judges every proposal.

In the paper a voter c tries each proposal u_j and ranks it by L_c(w - eta u_j). Proposition 1 rests
on the first-order form of that loss, L_c(w) - eta <u_j, g_c>, where g_c is the gradient of L_c at
w: by convexity and smoothness the two differ by at most eta^2 beta G^2 / 2, so up to this term a
voter prefers the proposals with the largest <u_j, g_c>. Hence g_c holds all that voter c could say
about any proposal, and it does not depend on the proposals. A joint ballot is g_c itself (with
local steps, the update that a proposer would send), computed on the voter's holdout rows. A voter
needs only the current model; its ballot costs as much as a proposal, however many proposals there
are; and it sees nobody's update.

Since the server holds all voters' messages, it need not ask each voter for a verdict. Voters with
skewed data cannot judge a single update well, but their gradients can be averaged. So:

    screen     lies that agree with each other more than honest updates do lose weight
               (`rules.covariance.screen`); messages and proposals are screened together, because
               half of one draw may lie, but seldom half of both
    direction  h_t = the weighted mean of the messages, scaled to length 1, so that no single draw
               counts for more than another; H_t = memory * H_{t-1} + (1 - memory) * h_t
    judge      a proposal whose cosine with H_t is below the median loses weight. At most N_p - k
               proposals are out: first the lowest of those with <u_j, H_t> < 0, then those to which
               the screen left next to nothing. So a draw of mostly lying voters can never leave
               only lies. If most vectors of a round point away from H_t, H_t is not used
    step       v_t = the mean of the rest under these weights

No vector counts for more than a radius that follows the median length; proposals have one radius,
messages another. A radius may shrink as fast as in `voting.terms` but grow by only a tenth a round:
if a bad draw has thrown the model off, honest gradients are long and their steps overshoot. All
decisions follow from inner products alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from holdout import device
from holdout.cosines import Vectors, combine, cosines
from holdout.parallel import run_all
from holdout.rules.covariance import screen
from holdout.rules.distance import Matrix
from holdout.voting import RATE, Terms

NEGLIGIBLE, LEAST = 0.2, 0.05
"""A proposal whose weight is below the first share of an equal weight may be dropped; one that is
not keeps at least the second."""

FAINT = 1e-3
"""A mean of messages shorter than this share of their radius says nothing."""

GENTLE = 0.25
"""How much of its weight the furthest vector loses in a pass of the screen. If it lost all at once,
as in CAF, honest vectors would lose so much along with five liars of twelve that the screen would
have to stop at once."""

GROWTH = 1.1
"""How much longer a vector may be than in the last round."""

DIRECTION, MESSAGE_RADIUS, ROUNDS = "direction", "message_radius", "rounds"
"""The names under which a joint vote's memory is kept in the state of its rule."""


@dataclass(frozen=True, slots=True, eq=False)
class JointMemory:
    """What a joint vote hands to the next round.

    Args:
        rounds: How many votes with at least one message there have been.
        radius: How long a proposal may be; None before the first round.
        message_radius: The same for a voter's message.
        direction: H, the holdout direction so far; None before the first round.

    Example:
        >>> JointMemory().direction is None
        True
    """

    rounds: int = 0
    radius: float | None = None
    message_radius: float | None = None
    direction: Tensor | None = None

    @classmethod
    def of(cls, kept: Mapping[str, Tensor], *, radius: float | None) -> Self:
        """The memory in the state of a rule; the proposals' radius is kept separately."""
        message_radius = kept.get(MESSAGE_RADIUS)
        return cls(
            rounds=int(kept.get(ROUNDS, 0)),
            radius=radius,
            message_radius=None if message_radius is None else float(message_radius),
            direction=kept.get(DIRECTION),
        )

    def kept(self) -> dict[str, Tensor]:
        """The inverse of `of`."""
        kept = {ROUNDS: device.tensor(self.rounds)}
        if self.direction is not None:
            kept[DIRECTION] = self.direction
        if self.message_radius is not None:
            kept[MESSAGE_RADIUS] = device.tensor(self.message_radius, dtype=torch.float64)
        return kept


@dataclass(frozen=True, slots=True, eq=False)
class Products:
    """The lengths of a vote's vectors and the cosines between them; or those of many votes at once.

    The vectors are the n proposals, the m messages and, if there is one, the last direction.

    Args:
        lengths: Of all, (..., n + m) or (..., n + m + 1).
        cosines: Between all, square.
        proposals: n.
        messages: m.
    """

    lengths: Matrix
    cosines: Matrix
    proposals: int
    messages: int


@dataclass(frozen=True, slots=True, eq=False)
class JointVerdict:
    """What follows from the inner products; or of many votes at once.

    Args:
        weights: Of each proposal in the mean, (..., n); they sum to 1, and 0 means that it is out.
        judges: The weight of each message in h_t, (..., m).
        step: v_t as factors of all the vectors, in the order of `Products`.
        direction: H_t in the same way.
        radius: How long a proposal may be, (...).
        message_radius: How long a message may be, (...).
    """

    weights: Matrix
    judges: Matrix
    step: Matrix
    direction: Matrix
    radius: Matrix
    message_radius: Matrix

    def one(self, place: int) -> Self:
        """The verdict on one of many votes."""
        return type(self)(*(getattr(self, name)[place] for name in self.__slots__))


@dataclass(frozen=True, slots=True, eq=False)
class JointDecision:
    """The outcome of a joint vote.

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
    kept = [] if memory.direction is None else [memory.direction]
    vectors = Vectors.of([*proposals, *messages, *kept])
    n, m = len(proposals), len(messages)
    products = Products(vectors.lengths, cosines(vectors), proposals=n, messages=m)
    verdict = judge(products, terms=terms, memory=memory)
    sums = [verdict.step, verdict.direction] if messages else [verdict.step]
    # Each on one thread: torch's own would meet after every vector.
    update, *direction = run_all(partial(combine, vectors.rows), sums)
    return JointDecision(
        update=update,
        weights=verdict.weights.tolist(),
        judges=verdict.judges.tolist(),
        support=products.cosines[:n, n : n + m].T,
        memory=JointMemory(
            rounds=memory.rounds + bool(messages),
            radius=float(verdict.radius) or None,
            message_radius=float(verdict.message_radius) or None,
            direction=direction[0] if direction else memory.direction,
        ),
    )


def judge(products: Products, *, terms: Terms, memory: JointMemory) -> JointVerdict:
    """Who stands, with what weight, and what the step is: from inner products alone.

    Args:
        products: Of one vote, or of many with as many proposals and messages each.
        terms: How the vote is held.
        memory: What the last round handed on.
    """
    n, m = products.proposals, products.messages
    proposals, messages = slice(0, n), slice(n, n + m)
    radius, message_radius = _radii(products, memory)
    scale, lengths = np.ones_like(products.lengths), products.lengths.copy()
    for part, limit in ((proposals, radius), (messages, message_radius)):
        scale[..., part], lengths[..., part] = _bounded(lengths[..., part], terms.reach * limit)
    gram = products.cosines * lengths[..., :, None] * lengths[..., None, :]
    # h_t and H_t, as factors of the bounded vectors.
    screened, judges = _screened(gram[..., : n + m, : n + m], n, terms)
    direction = np.zeros_like(lengths)
    direction[..., messages] = judges
    length = _length(direction, gram)
    # Messages that cancel each other have no direction: what is left of them is rounding.
    clear = length > FAINT * message_radius
    direction *= np.where(clear, 1 / np.where(clear, length, 1.0), 0.0)[..., None]
    if memory.direction is not None:
        # The first rounds count alike, so that a bad first draw is soon outvoted.
        share = min(terms.memory, 1 - 1 / (memory.rounds + 1)) if m else 1.0
        direction *= 1 - share
        direction[..., -1] = share
    # How H_t judges the proposals, and which of them stand.
    agreement = (gram @ direction[..., None])[..., 0]
    cosines_ = agreement[..., : n + m] / np.where(lengths > 0, lengths, 1.0)[..., : n + m]
    usual = np.sort(cosines_, axis=-1)[..., (n + m) // 2, None]
    # If at least half of this round's vectors point away from H_t, the gradient has turned, and H_t
    # is out of date.
    scores = np.where(usual > 0, agreement[..., proposals], 0.0)
    if terms.f and terms.softness is not None:
        screened = _softened(screened, cosines_[..., proposals], usual, terms.softness)
    if terms.margin or terms.gap:
        scores = _relative(cosines_[..., proposals], terms)
    weights = _standing(scores, screened, n - terms.approve_count(n))
    step = np.zeros_like(lengths)
    step[..., proposals] = weights
    return JointVerdict(weights, judges, step * scale, direction * scale, radius, message_radius)


def _softened(screened: Matrix, cosines_: Matrix, usual: Matrix, softness: float) -> Matrix:
    """The screen's weights, lowered where the cosine with H_t is below the usual one."""
    factors = (softness + cosines_) / (softness + np.maximum(usual, 0.0))
    return _shares(screened * np.where(usual > 0, np.clip(factors, LEAST, 1.0), 1.0))


def _relative(cosines_: Matrix, terms: Terms) -> Matrix:
    """The cosines with H_t less what they must reach: a share of their median; with a gap, less."""
    median = _median(cosines_)
    least = terms.margin * np.maximum(median, 0.0)
    if terms.gap:
        least = np.minimum(least, median - terms.gap)
    return cosines_ - least[..., None]


def _standing(scores: Matrix, screened: Matrix, tolerated: int) -> Matrix:
    """The weights of the proposals: of the judges' and the screen's, at most N_p - k are out."""
    n = scores.shape[-1]
    judged = (_ranks(scores) < tolerated) & (scores < 0)
    # What the judges drop comes first, then what the screen left with least.
    last = np.where(judged, -1.0, screened)
    dropped = judged | ((_ranks(last) < tolerated) & (screened < NEGLIGIBLE / n))
    weights: Matrix = np.where(dropped, 0.0, np.maximum(screened, LEAST / n))
    weights /= weights.sum(axis=-1, keepdims=True)
    return weights


def _ranks(values: Matrix) -> npt.NDArray[np.intp]:
    """The place of each value among all, from the lowest; equal values by their order."""
    return np.argsort(np.argsort(values, axis=-1, kind="stable"), axis=-1, kind="stable")


def _length(factors: Matrix, gram: Matrix) -> Matrix:
    """The norm of a mixture of vectors with these inner products."""
    square = (factors * (gram @ factors[..., None])[..., 0]).sum(axis=-1)
    root: Matrix = np.sqrt(np.maximum(square, 0.0))
    return root


def _radii(products: Products, memory: JointMemory) -> tuple[Matrix, Matrix]:
    """How long proposals and messages may be.

    Each follows its median. Before the first round there is nothing to compare with, so both start
    from the median of all: liars may be half of one draw, but hardly of both.
    """
    n, m = products.proposals, products.messages
    first = _median(products.lengths[..., : n + m])
    return (
        _follow(products.lengths[..., :n], memory.radius, first),
        _follow(products.lengths[..., n : n + m], memory.message_radius, first),
    )


def _follow(lengths: Matrix, previous: float | None, first: Matrix) -> Matrix:
    """The median length, if the last round's allows it; as `voting.bound_radius`, but growing."""
    before = np.full_like(first, previous) if previous else first
    if not lengths.shape[-1]:
        return before
    median = _median(lengths)
    return np.where(before > 0, np.clip(median, before / RATE, before * GROWTH), median)


def _median(lengths: Matrix) -> Matrix:
    count = lengths.shape[-1]
    return np.sort(lengths, axis=-1)[..., (count + 1) // 2 - 1]


def _bounded(lengths: Matrix, radius: Matrix) -> tuple[Matrix, Matrix]:
    """The factors that scale vectors of these lengths down to the radius, and the new lengths."""
    limit = radius[..., None]
    scale = np.where(lengths > limit, limit / np.where(lengths > 0, lengths, 1.0), 1.0)
    return scale, np.minimum(lengths, limit)


def _screened(gram: Matrix, n: int, terms: Terms) -> tuple[Matrix, Matrix]:
    """The weights of the n proposals, and of the messages after them; equal without a screen."""
    total = gram.shape[-1]
    weights = np.ones(gram.shape[:-1])
    if terms.screen:
        weights = screen(gram, f=total - terms.approve_count(total), step=GENTLE)
    return _shares(weights[..., :n]), _shares(weights[..., n:])


def _shares(weights: Matrix) -> Matrix:
    """The weights brought to a sum of 1; equal ones if none is left."""
    total = weights.sum(axis=-1, keepdims=True)
    equal = 1 / max(weights.shape[-1], 1)
    shares: Matrix = np.where(total > 0, weights / np.where(total > 0, total, 1.0), equal)
    return shares
