"""The heart of HoldOut SGD: who is drawn, what a voter approves, what the votes select.

Only ids, integers and floats live here; gradients and data do not. The steps of a round:

    draw_committee   P_t and C_t, the proposers and the voters        (committee)
    bound_radius     how long an update may be before it is scored     (bound)
    cast_ballot      holdout losses -> the proposals a voter approves  (ballot)
    admit_ballots    what voters sent -> valid ballots, counted faults (tally)
    tally            ballots -> the union-consensus UC_t               (tally)

`Terms` tells the paper's rule from the hardened one; `odds` computes how likely a draw is bad.
"""

from holdout.voting.ballot import Ballot, Gate, cast_ballot
from holdout.voting.bound import bound_radius
from holdout.voting.committee import (
    Committee,
    approve_count,
    draw_byzantine,
    draw_committee,
    has_honest_majority,
)
from holdout.voting.tally import AdmittedBallots, BallotFault, Selection, admit_ballots, tally
from holdout.voting.terms import Quorum, Terms

__all__ = [
    "AdmittedBallots",
    "Ballot",
    "BallotFault",
    "Committee",
    "Gate",
    "Quorum",
    "Selection",
    "Terms",
    "admit_ballots",
    "approve_count",
    "bound_radius",
    "cast_ballot",
    "draw_byzantine",
    "draw_committee",
    "has_honest_majority",
    "tally",
]
