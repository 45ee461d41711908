"""What a voter sends, whatever it says: its kinds, its faults, and how ballots are admitted.

Ballots come from liars too. Whatever a voter sends is either a valid ballot or void for a stated,
counted reason; nothing raises.

A ballot has a kind: what it says. Today there is one. A second kind is a class here, a
module beside `approvals` that reads and counts it, and a case in `Terms`; then what an honest
worker answers (`Worker.vote`), and one place each in `federation.electorate`, in
`flower.vote_messages` and in the node's learner process, where ballots are made and read.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from holdout.ids import ProposalId, WorkerId


class BallotKind(StrEnum):
    """What a voter's message says."""

    APPROVALS = "approvals"
    """Which proposals did best on the voter's data (the paper's ballot)."""


@dataclass(frozen=True, slots=True)
class Approvals:
    """The proposals that did best on one voter's holdout data, in id order.

    Example:
        >>> Approvals((ProposalId(0), ProposalId(3))).approved
        (0, 3)
    """

    approved: tuple[ProposalId, ...]


Ballot = Approvals
"""What one voter sends, of whatever kind: a union once there is a second class."""


class BallotFault(StrEnum):
    """Why a ballot is void."""

    MISSING = "missing"
    """The voter was drawn and sent nothing."""
    NOT_DRAWN = "not-drawn"
    SECOND = "second"
    """The voter had sent one already; the first stands or falls by itself."""
    MALFORMED = "malformed"
    """Not a list or tuple of integers."""
    TOO_LONG = "too-long"
    REPEATED_ID = "repeated-id"
    UNKNOWN_ID = "unknown-id"
    TOO_SHORT = "too-short"
    """Fewer names than a full ballot has, where only full ballots count."""


@dataclass(frozen=True, slots=True)
class AdmittedBallots:
    """What counts, keyed by voter so that nobody is counted twice, and what does not."""

    valid: Mapping[WorkerId, Ballot]
    void: tuple[tuple[WorkerId, BallotFault], ...]


def admit_ballots(
    sent: Iterable[tuple[WorkerId, object]],
    *,
    voters: Iterable[WorkerId],
    read: Callable[[object], Ballot | BallotFault],
) -> AdmittedBallots:
    """Check what voters sent, in order of arrival; `read` knows the kind of ballot."""
    drawn = tuple(voters)
    valid: dict[WorkerId, Ballot] = {}
    void: list[tuple[WorkerId, BallotFault]] = []
    heard: set[WorkerId] = set()
    for voter, message in sent:
        if voter not in drawn:
            void.append((voter, BallotFault.NOT_DRAWN))
            continue
        if voter in heard:
            void.append((voter, BallotFault.SECOND))
            continue
        heard.add(voter)
        ballot = read(message)
        if isinstance(ballot, BallotFault):
            void.append((voter, ballot))
        else:
            valid[voter] = ballot
    void.extend((voter, BallotFault.MISSING) for voter in drawn if voter not in heard)
    return AdmittedBallots(valid, tuple(void))
