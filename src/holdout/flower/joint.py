"""Joint ballots on Flower: a voter gets the same `train` message as a proposer.

Its answer, taken as an update g_c = w - w_c, is never averaged: it is the voter's ballot, part of
the direction that judges the proposals (`holdout.joint_vote`). No client can tell whether it is to
propose or to judge, so none needs any code for it.

Replies on Flower are the outcome of whatever training a client likes: epochs, optimisers, proximal
terms. Such updates are about as long as each other, and a length of several medians is a lie or a
mistake. So before the vote of the simulator three things are done that it does not do:

    far      updates longer than FAR times the median of all (proposals and messages) are out
    fewer    each update that is out is a liar who is known: the vote is told of as many fewer
    margin   a proposal that agrees with the direction much less than the median may be out
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TypeVar

from torch import Tensor

from holdout.ids import ProposalId, WorkerId
from holdout.joint_vote import JointMemory, norms_of
from holdout.rounds import AdmittedProposals, Decision, Outcome, conclude_joint
from holdout.voting import Terms, tolerated_count

Name = TypeVar("Name", bound=int)

FAR = 3.0
"""How many times the median length an update may have."""

MARGIN = 0.3
"""What agrees with the direction less than this share of the median may be out."""

TOO_FAR = "too-far"
"""Why an update that is too long does not count."""


@dataclass(frozen=True, slots=True, eq=False)
class JointOutcome:
    """What a joint vote on Flower came to."""

    decision: Decision
    memory: JointMemory
    """What the next round's vote must know."""
    far_proposals: Sequence[ProposalId]
    far_voters: Sequence[WorkerId]


def joint_terms(f: Fraction) -> Terms:
    """The terms of a vote among results of local training.

    >>> joint_terms(Fraction(1, 3)).margin
    0.3
    """
    return replace(Terms.joint(f), margin=MARGIN)


def hold_joint_vote(
    admitted: AdmittedProposals,
    messages: Mapping[WorkerId, Tensor],
    *,
    voters: Sequence[WorkerId],
    f: Fraction,
    memory: JointMemory,
    invalid: int = 0,
    ballots_min: int = 0,
) -> JointOutcome:
    """Judge the proposals by the voters' updates.

    Args:
        admitted: The valid updates of the proposers.
        messages: The valid updates of the voters.
        voters: Who was drawn to vote.
        f: The share of liars to withstand.
        memory: What the last round handed on.
        invalid: How many replies were malformed: their senders are known to be at fault.
        ballots_min: With fewer messages the model is kept.
    """
    lengths = dict(zip(admitted.valid, norms_of(list(admitted.valid.values())), strict=True))
    message_lengths = dict(zip(messages, norms_of(list(messages.values())), strict=True))
    limit = FAR * _median([*lengths.values(), *message_lengths.values()])
    far = _longest(lengths, limit, tolerated_count(len(lengths) + len(admitted.faults), f))
    far_voters = _longest(message_lengths, limit, tolerated_count(len(voters), f))
    near = {p: update for p, update in admitted.valid.items() if p not in far}
    sent = [(voter, update) for voter, update in messages.items() if voter not in far_voters]
    decision, after = conclude_joint(
        AdmittedProposals(near, admitted.faults),
        sent,
        voters=voters,
        terms=joint_terms(
            _left(f, valid=len(near) + len(sent), out=len(far) + len(far_voters) + invalid)
        ),
        memory=memory,
    )
    if decision.outcome is Outcome.STEP and len(decision.ballots) < ballots_min:
        decision = replace(
            decision, outcome=Outcome.TOO_FEW_BALLOTS, update=None, selection=(), weights=None
        )
        after = memory
    return JointOutcome(decision, after, far, far_voters)


def _left(f: Fraction, *, valid: int, out: int) -> Fraction:
    """The share of liars among what is left, once `out` of them are known.

    >>> _left(Fraction(1, 4), valid=16, out=4), _left(Fraction(1, 4), valid=20, out=0)
    (Fraction(1, 16), Fraction(1, 4))
    """
    return max(Fraction(0), f * (valid + out) - out) / max(valid, 1)


def _median(lengths: Sequence[float]) -> float:
    return sorted(lengths)[(len(lengths) - 1) // 2] if lengths else 0.0


def _longest(lengths: Mapping[Name, float], limit: float, most: int) -> tuple[Name, ...]:
    """Who is beyond the limit, the longest first; so many at most."""
    beyond = [name for name, length in lengths.items() if length > limit]
    return tuple(sorted(beyond, key=lambda name: (-lengths[name], name))[:most])
