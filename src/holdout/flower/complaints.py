"""Saying so, loudly, when nothing that comes back can be used.

A mistake in everybody's client, such as a record of another name, is no attack: each reply is
refused, the model is kept, and round after round goes by. After `TOLD_AFTER` such rounds in a row
the log says what the first client said and what was expected; after a number that the user chose
the run ends.
"""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from flwr.app import ArrayRecord, RecordDict

from holdout.flower.answers import RejectedReply

LOG = logging.getLogger("flwr")

TOLD_AFTER = 2
"""Rounds in a row without one usable reply after which the log explains."""
_ARRAYS_SHOWN = 4


@dataclass(slots=True)
class Complaints:
    """How many rounds in a row nothing could be used: of proposals, of ballots."""

    limit: int
    counts: dict[str, int] = field(default_factory=dict)

    def note_round(
        self,
        *,
        proposal_faults: Sequence[RejectedReply],
        ballot_faults: Sequence[RejectedReply],
        proposals: int,
        ballots: int,
        expected: str,
        expected_ballot: str,
        came: Mapping[int, str],
    ) -> str | None:
        """Note a round; why the run must end, if it must.

        Args:
            proposal_faults: The proposals that could not be used.
            ballot_faults: The ballots that could not be used.
            proposals: How many proposals could.
            ballots: How many ballots could.
            expected: The record that a proposal is.
            expected_ballot: What a ballot is.
            came: Node -> what its reply was, for those that had content.
        """
        wanted = f"one ArrayRecord, such as {expected}"
        ends = self._note("proposal", proposal_faults, proposals, wanted, came)
        if proposals:
            # Otherwise nobody had anything to vote on.
            ends = self._note("ballot", ballot_faults, ballots, expected_ballot, {})
        return ends

    def _note(
        self,
        what: str,
        faults: Sequence[RejectedReply],
        accepted: int,
        expected: str,
        came: Mapping[int, str],
    ) -> str | None:
        if accepted or not faults:
            self.counts[what] = 0
            return None
        count = self.counts[what] = self.counts.get(what, 0) + 1
        if count < min(TOLD_AFTER, self.limit):
            return None
        reason = Counter(fault.reason for fault in faults).most_common(1)[0][0]
        first = next(fault for fault in faults if fault.reason == reason)
        detail = first.detail or came.get(first.node, "")
        said = f"{reason}: {detail}" if detail else reason
        text = (
            f"no {what} could be used in the last {count} rounds; most failed alike, the first "
            f"of them, of node {first.node}: {said}. Expected: {expected}"
        )
        LOG.error("%s", text)
        return text if count >= self.limit else None


def describe(contents: Mapping[int, RecordDict]) -> dict[int, str]:
    """What each reply holds, in a few words."""
    return {node: f"it holds {_records(content)}" for node, content in contents.items()}


def describe_arrays(arrays: ArrayRecord) -> str:
    """Names, dtypes and shapes, in a few words."""
    shown = [f"{name} {a.dtype} {a.shape}" for name, a in list(arrays.items())[:_ARRAYS_SHOWN]]
    more = len(arrays) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def _records(content: RecordDict) -> str:
    parts = [
        f"{name[:40]!r} ({describe_arrays(record)[:200]})"
        if isinstance(record, ArrayRecord)
        else f"{name[:40]!r} (a {type(record).__name__})"
        for name, record in list(content.items())[:_ARRAYS_SHOWN]
    ]
    return ascii("; ".join(parts) or "no record")[1:-1]
