"""Ballots -> the union-consensus UC_t (the vote-counting half of the paper's A_Consensus).

Ballots come from liars too. Whatever a voter sends is either a valid ballot or void for a stated,
counted reason; nothing raises.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import StrEnum

from holdout.ids import ProposalId, WorkerId
from holdout.voting.ballot import Ballot

Selection = tuple[ProposalId, ...]
"""The union-consensus: proposals that reached the quorum, in id order; may be empty."""


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
    proposals: AbstractSet[ProposalId],
    approve_count: int,
    full: bool,
) -> AdmittedBallots:
    """Check what voters sent, in order of arrival.

    A ballot names at most `approve_count` of the `proposals`, each once; exactly as many where
    `full` is asked for.
    """
    drawn = tuple(voters)
    valid: dict[WorkerId, Ballot] = {}
    void: list[tuple[WorkerId, BallotFault]] = []
    heard: set[WorkerId] = set()
    for voter, names in sent:
        if voter not in drawn:
            void.append((voter, BallotFault.NOT_DRAWN))
            continue
        if voter in heard:
            void.append((voter, BallotFault.SECOND))
            continue
        heard.add(voter)
        ballot = _read(names, proposals, approve_count, full=full)
        if isinstance(ballot, Ballot):
            valid[voter] = ballot
        else:
            void.append((voter, ballot))
    void.extend((voter, BallotFault.MISSING) for voter in drawn if voter not in heard)
    return AdmittedBallots(valid, tuple(void))


def _read(
    names: object, proposals: AbstractSet[ProposalId], approve_count: int, *, full: bool
) -> Ballot | BallotFault:
    # The type is compared exactly: True is an int too, but no proposal's name.
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
    return Ballot(tuple(sorted(names)))


def tally(ballots: Mapping[WorkerId, Ballot], *, quorum: int) -> Selection:
    """Proposals approved by at least `quorum` voters, in id order; may be empty."""
    approvals = Counter(p for ballot in ballots.values() for p in ballot.approved)
    return tuple(sorted(p for p, count in approvals.items() if count >= quorum))
