"""Joint ballots on Flower: a voter gets the same `train` message as a proposer.

Its answer, taken as an update g_c = w - w_c, is never averaged: it is the voter's ballot, part of
the direction that judges the proposals (`holdout.joint_vote`). No client can tell whether it is to
propose or to judge, so none needs any code for it.

On Flower clients train as they like: epochs, optimisers, proximal terms. Their updates are about
equally long, so one of several median lengths is a lie or a mistake. And clients are known by name
from round to round. So some steps come before the simulator's vote. They look at proposers and
voters together, since both have done the same work:

    far       updates longer than FAR times the median of all are out
    opposed   so are clients who, over the rounds, oppose too many others (`flower.pairs`)
    fewer     whoever is out counts as a known liar: the vote has that many fewer to withstand
    margin    a proposal is out only if it agrees with the direction much less than the median;
              otherwise its weight does not depend on that
    screen    only where clients are alike: elsewhere honest updates stand out as lies do
    reach     updates may be somewhat longer than the radius

No more are out before the vote than the share f of all who answered, rounded up.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from torch import Tensor

from holdout.cosines import norms_of
from holdout.flower.pairs import PairMemory, are_alike, opposed
from holdout.ids import WorkerId
from holdout.joint_vote import JointMemory
from holdout.rounds import AdmittedProposals, Decision, Outcome, conclude_joint
from holdout.voting import Terms

FAR = 3.0
"""How many times the median length an update may have."""

MARGIN, GAP = 0.3, 0.3
"""A proposal may be out if it agrees with the direction less than this share of the median, and is
also this much below the median. Where training has come to rest, the direction means little, and
half of the honest proposals are below zero."""

REACH = 1.5
"""How many times the usual length an update may have in the mean. Clients with most to teach, such
as the few who hold some class, send the longest."""

TOO_FAR, OPPOSED_OTHERS = "too-far", "opposed"
"""Why an update does not count: it is too long, or its sender opposes too many others."""


@dataclass(frozen=True, slots=True, eq=False)
class JointOutcome:
    """What a joint vote on Flower came to."""

    decision: Decision
    memory: JointMemory
    """What the next round's vote must know."""
    pairs: PairMemory
    """The same, of who opposes whom."""
    out: Mapping[WorkerId, str]
    """Whose updates do not count, and why."""


def joint_terms(f: Fraction) -> Terms:
    """The terms of a vote among results of local training.

    >>> joint_terms(Fraction(1, 3)).margin
    0.3
    """
    return replace(Terms.joint(f), margin=MARGIN, gap=GAP, reach=REACH, softness=None)


def hold_joint_vote(
    admitted: AdmittedProposals,
    messages: Mapping[WorkerId, Tensor],
    *,
    proposers: Sequence[WorkerId],
    voters: Sequence[WorkerId],
    f: Fraction,
    memory: JointMemory,
    pairs: PairMemory,
    invalid: int = 0,
    ballots_min: int = 0,
) -> JointOutcome:
    """Judge the proposals by the voters' updates.

    Args:
        admitted: The valid updates of the proposers.
        messages: The valid updates of the voters.
        proposers: Who was drawn to propose; the place is the proposal's id.
        voters: Who was drawn to vote.
        f: The share of liars to withstand.
        memory: What the last round handed on.
        pairs: The same, of who opposes whom.
        invalid: How many replies were malformed: their senders are known to be at fault.
        ballots_min: With fewer messages the model is kept.
    """
    sent = {proposers[p]: update for p, update in admitted.valid.items()} | dict(messages)
    most = max(0, math.ceil(f * (len(sent) + invalid)) - invalid)
    far = _too_far(sent, most)
    near = {worker: update for worker, update in sent.items() if worker not in far}
    pairs = pairs.after(near)
    against = opposed(pairs, near, most=most - len(far))
    out = dict.fromkeys(far, TOO_FAR) | dict.fromkeys(against, OPPOSED_OTHERS)
    left = {p: update for p, update in admitted.valid.items() if proposers[p] not in out}
    heard = [(voter, update) for voter, update in messages.items() if voter not in out]
    share = _left(f, valid=len(left) + len(heard), out=len(out) + invalid)
    decision, after = conclude_joint(
        AdmittedProposals(left, admitted.faults),
        heard,
        voters=voters,
        terms=replace(joint_terms(share), screen=are_alike(pairs, near, f=f)),
        memory=memory,
    )
    if decision.outcome is Outcome.STEP and len(decision.ballots) < ballots_min:
        decision = replace(
            decision, outcome=Outcome.TOO_FEW_BALLOTS, update=None, selection=(), weights=None
        )
        after = memory
    return JointOutcome(decision, after, pairs, out)


def _left(f: Fraction, *, valid: int, out: int) -> Fraction:
    """The share of liars among what is left, once `out` of them are known.

    >>> _left(Fraction(1, 4), valid=16, out=4), _left(Fraction(1, 4), valid=20, out=0)
    (Fraction(1, 16), Fraction(1, 4))
    """
    return max(Fraction(0), f * (valid + out) - out) / max(valid, 1)


def _too_far(sent: Mapping[WorkerId, Tensor], most: int) -> list[WorkerId]:
    """Whose updates are too long, the longest first; so many at most."""
    lengths = dict(zip(sent, norms_of(list(sent.values())), strict=True))
    limit = FAR * sorted(lengths.values())[(len(lengths) - 1) // 2] if lengths else 0.0
    beyond = [worker for worker, length in lengths.items() if length > limit]
    return sorted(beyond, key=lambda worker: (-lengths[worker], worker))[:most]
