"""Ballots: the kinds that voters send, what can be wrong with them, and how they are admitted.

Ballots come from liars too. Whatever a voter sends is either a valid ballot or void for a stated,
counted reason; nothing raises.

A ballot has a kind: what it says. Approvals name proposals; a joint ballot is an update of the
voter's own, by which the server judges all proposals (`holdout.joint_vote`). A further kind is a
class here with a `message`, a module that reads and counts it, and its cases in `Terms`; then what
an honest worker answers (`Worker.vote`), what follows from the count (`rounds.conclude_vote`), and
one place each in `federation`, in `flower.vote_messages` and in the node's learner process, where
ballots are made and read. Everybody else handles messages.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, TypeVar

from holdout.ids import ProposalId, WorkerId


class BallotKind(StrEnum):
    """What a voter's message says.

    Example:
        >>> BallotKind("joint") is BallotKind.JOINT
        True
    """

    APPROVALS = "approvals"
    """Which proposals did best on the voter's data (the paper's ballot)."""
    JOINT = "joint"
    """An update of the voter's own, from its holdout data; the server judges by all of them."""


@dataclass(frozen=True, slots=True)
class Approvals:
    """The proposals that did best on one voter's holdout data, in id order.

    Example:
        >>> Approvals((0, 3)).approved
        (0, 3)
    """

    approved: tuple[ProposalId, ...]
    """Their ids."""

    @property
    def message(self) -> tuple[ProposalId, ...]:
        """What the voter sends, and what the record says: only `Terms.admit` reads it."""
        return tuple(self.approved)


@dataclass(frozen=True, slots=True, eq=False)
class JointBallot:
    """What one voter would itself propose, from its holdout data.

    Example:
        >>> JointBallot([0.5, -1.0]).message
        [0.5, -1.0]
    """

    update: Any
    """The update, a vector; this package never looks inside."""

    @property
    def message(self) -> Any:
        """What the voter sends."""
        return self.update


Ballot = Approvals | JointBallot
"""What one voter sends, of whatever kind."""

B = TypeVar("B", Approvals, JointBallot)


class BallotFault(StrEnum):
    """Why a ballot is void.

    Example:
        >>> from fractions import Fraction
        >>> from holdout.voting import Terms
        >>> found = Terms(Fraction(1, 3)).admit([(7, [0, 0])], voters=[7, 8], proposals=[0, 1, 2])
        >>> [(voter, str(fault)) for voter, fault in found.void]
        [(7, 'repeated-id'), (8, 'missing')]
    """

    MISSING = "missing"
    """The voter was drawn and sent nothing."""
    NOT_DRAWN = "not-drawn"
    """The sender was not drawn as a voter."""
    SECOND = "second"
    """The voter had already sent one, which is judged on its own."""
    MALFORMED = "malformed"
    """Not a list or tuple of integers; for a joint ballot, not a vector of d floats."""
    TOO_LONG = "too-long"
    """More names than a ballot may hold."""
    REPEATED_ID = "repeated-id"
    """A proposal is named twice."""
    UNKNOWN_ID = "unknown-id"
    """A name that no proposal has."""
    TOO_SHORT = "too-short"
    """Fewer names than a full ballot has, where only full ballots count."""
    NOT_FINITE = "not-finite"
    """A joint ballot with numbers that are not finite."""


@dataclass(frozen=True, slots=True)
class AdmittedBallots(Generic[B]):
    """The ballots that count, and why the others do not.

    Example:
        >>> found = AdmittedBallots({7: Approvals((0, 3))}, ((8, BallotFault.MISSING),))
        >>> len(found.valid), len(found.void)
        (1, 1)
    """

    valid: Mapping[WorkerId, B]
    """What counts, by voter, so that nobody is counted twice."""
    void: tuple[tuple[WorkerId, BallotFault], ...]
    """Who sent each ballot that does not count, and what was wrong with it."""


def admit_ballots(
    sent: Iterable[tuple[WorkerId, object]],
    *,
    voters: Iterable[WorkerId],
    read: Callable[[object], B | BallotFault],
) -> AdmittedBallots[B]:
    """Check what voters sent, in order of arrival; `read` knows the kind of ballot.

    Args:
        sent: Who sent what; None is nothing.
        voters: Who was drawn.
        read: The ballot that a message is, or what is wrong with it.

    Example:
        >>> def read(message):
        ...     return Approvals(message) if message else BallotFault.MALFORMED
        >>> found = admit_ballots([(3, (0, 1)), (3, (2,)), (4, ())], voters=[3, 4], read=read)
        >>> found.valid
        {3: Approvals(approved=(0, 1))}
        >>> [(voter, fault.value) for voter, fault in found.void]
        [(3, 'second'), (4, 'malformed')]
    """
    drawn = tuple(voters)
    valid: dict[WorkerId, B] = {}
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
