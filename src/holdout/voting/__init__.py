"""The heart of HoldOut SGD: who is drawn, what a voter approves, what the votes select.

Only ids, integers and floats live here; gradients and data do not. The steps of a round:

    draw_committee    P_t and C_t, the proposers and the voters         (committee)
    bound_radius      how long an update may be before it is scored     (terms)
    cast_approvals    holdout losses -> the proposals a voter approves  (approvals)
    admit_approvals   what voters sent -> valid ballots, counted faults (approvals)
    tally             ballots -> the union-consensus UC_t               (approvals)

`Terms` tells one vote from another, `VOTES` lists them; `ballot` says what kinds of ballots there
are; `odds` computes how likely a draw is bad.
"""

from holdout.voting.approvals import Gate, Selection, admit_approvals, cast_approvals, rank, tally
from holdout.voting.ballot import (
    AdmittedBallots,
    Approvals,
    Ballot,
    BallotFault,
    BallotKind,
    JointBallot,
    admit_ballots,
)
from holdout.voting.committee import (
    Committee,
    approve_count,
    draw_byzantine,
    draw_committee,
    has_honest_majority,
    tolerated_count,
)
from holdout.voting.terms import RATE, VOTES, Quorum, Terms, VoteRule, bound_radius

__all__ = [
    "RATE",
    "VOTES",
    "AdmittedBallots",
    "Approvals",
    "Ballot",
    "BallotFault",
    "BallotKind",
    "Committee",
    "Gate",
    "JointBallot",
    "Quorum",
    "Selection",
    "Terms",
    "VoteRule",
    "admit_approvals",
    "admit_ballots",
    "approve_count",
    "bound_radius",
    "cast_approvals",
    "draw_byzantine",
    "draw_committee",
    "has_honest_majority",
    "rank",
    "tally",
    "tolerated_count",
]
