"""Roots: how a header commits to a body that it does not hold.

Item by item, envelopes with their signatures and proofs: if those could be exchanged, a good header
could be served with a bad body, and the block would be taken for invalid.
"""

from collections.abc import Iterable
from typing import TypeAlias

from holdout.agreement.codec import blob, digest, items, u32
from holdout.agreement.headers import Header
from holdout.agreement.messages import BallotMessage, Evidence, Update
from holdout.ids import Digest

BodyRoots: TypeAlias = tuple[Digest, Digest, Digest]
"""Of updates, ballots and evidence: what a block holds before its outcome is known."""


def said_roots(header: Header) -> BodyRoots:
    """Those in a header."""
    return header.updates_root, header.ballots_root, header.evidence_root


def body_roots(
    updates: Iterable[Update], ballots: Iterable[BallotMessage], evidence: Iterable[Evidence]
) -> BodyRoots:
    """Those of a body."""
    return (
        _root("updates", (update.envelope.encode() for update in updates)),
        _root("ballots", (ballot.envelope.encode() for ballot in ballots)),
        _root("evidence", (item.encode_bare() for item in evidence)),
    )


def selection_root(selection: Iterable[tuple[int, int]]) -> Digest:
    """That of (proposer, approvals) pairs."""
    return _root("selection", (u32(proposer) + u32(count) for proposer, count in selection))


def _root(tag: str, encoded: Iterable[bytes]) -> Digest:
    return digest(f"{tag}-root", items(blob(digest("item", blob(item))) for item in encoded))
