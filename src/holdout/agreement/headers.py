"""The header of a block, which is hashed, voted on and kept, and the chain that headers form.

A header links to the block before it, carries the lottery's seed on, names the new model and
commits to a body that it does not contain. It commits to every item of the body, envelopes with
their signatures and proofs: if those could be exchanged, a good header could be served with a bad
body, and the block would be taken for invalid.

A certificate proves that a quorum stood behind a header. Headers and certificates are enough to
follow the chain (`Ledger`): every certificate contains the vote of an honest worker that recomputed
the block. What makes a block valid is in `docs/protocol.md`.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import TypeAlias

from holdout.agreement.codec import Reader, blob, decode, digest, f64, items, u8, u32, u64
from holdout.agreement.keys import Verifier
from holdout.agreement.messages import (
    HEADER_BYTES_MAX,
    PROOF_BYTES_MAX,
    BallotMessage,
    Evidence,
    Update,
)
from holdout.agreement.params import PROTOCOL_VERSION, Genesis
from holdout.agreement.sortition import genesis_seeds, needs_old_block, next_seed, seed_alpha
from holdout.errors import InvalidMessage
from holdout.ids import Digest


class BlockKind(IntEnum):
    """What a block does to the model."""

    NOOP = 1
    """No update was accepted: the model stays as it is. The seed moves on all the same."""
    STEP = 2
    """The model takes one step along the mean of the selected updates."""


@dataclass(frozen=True, slots=True)
class Tip:
    """What round r builds on."""

    round: int
    """The round r itself."""
    previous: Digest
    """The digest of the block before; in round 1, the network's identity."""
    model: Digest
    radius: float
    steps: int
    """STEP blocks so far."""
    seed_in: Digest
    """Q[r - L], by which the round is drawn and from which the next seed is made."""
    old_block: Digest | None
    """The block that refreshes the seed, in the rounds where one does."""


@dataclass(frozen=True)
class Header:
    """A block in brief: with its certificate, all that a worker needs to go on."""

    version: int
    chain: Digest
    round: int
    previous: Digest
    kind: BlockKind
    leader: int
    original_period: int
    """The period in which the block was first announced."""
    seed: Digest
    seed_proof: bytes
    updates_root: Digest
    ballots_root: Digest
    selection_root: Digest
    evidence_root: Digest
    steps: int
    """STEP blocks up to and including this one; the learning rate depends on it."""
    model_previous: Digest
    model: Digest
    radius: float
    """The norm bound of the next step."""

    def encode(self) -> bytes:
        """The header's canonical bytes."""
        return b"".join(
            [
                u32(self.version),
                blob(self.chain),
                u64(self.round),
                blob(self.previous),
                u8(self.kind),
                u32(self.leader),
                u32(self.original_period),
                blob(self.seed),
                blob(self.seed_proof),
                blob(self.updates_root),
                blob(self.ballots_root),
                blob(self.selection_root),
                blob(self.evidence_root),
                u64(self.steps),
                blob(self.model_previous),
                blob(self.model),
                f64(self.radius),
            ]
        )

    @cached_property
    def digest(self) -> Digest:
        """The value that is voted on."""
        return digest("block", blob(self.encode()))


def read_header(data: bytes) -> Header:
    """The header that these bytes hold; raises `InvalidMessage`."""
    if len(data) > HEADER_BYTES_MAX:
        raise InvalidMessage(f"a header holds at most {HEADER_BYTES_MAX} bytes; got {len(data)}")
    return decode(data, _read_header)


def _read_header(reader: Reader) -> Header:
    header = Header(
        reader.u32(),
        reader.digest(),
        reader.u64(),
        reader.digest(),
        _read_kind(reader),
        reader.u32(),
        reader.u32(),
        reader.digest(),
        reader.blob(PROOF_BYTES_MAX),
        reader.digest(),
        reader.digest(),
        reader.digest(),
        reader.digest(),
        reader.u64(),
        reader.digest(),
        reader.digest(),
        reader.f64(),
    )
    # One value has one encoding: NaN, which has many, and -0.0 are refused.
    if not (header.radius >= 0 and math.isfinite(header.radius)) or f64(header.radius) == f64(-0.0):
        raise InvalidMessage("a radius must be finite and not negative")
    return header


def _read_kind(reader: Reader) -> BlockKind:
    code = reader.u8()
    if code not in (BlockKind.NOOP, BlockKind.STEP):
        raise InvalidMessage(f"there is no block of kind {code}")
    return BlockKind(code)


def link_fault(header: Header, tip: Tip, genesis: Genesis, verifier: Verifier) -> str | None:
    """Why this header cannot follow the tip, whatever its body; None if it can."""
    if (header.version, header.chain) != (PROTOCOL_VERSION, genesis.chain):
        return "the block belongs to another network or protocol version"
    if (header.round, header.previous) != (tip.round, tip.previous):
        return "the block does not follow the last decided one"
    if header.model_previous != tip.model:
        return "the block builds on a different model"
    if header.steps != tip.steps + (header.kind is BlockKind.STEP):
        return "the block has a wrong count of steps"
    if header.kind is BlockKind.NOOP and (header.model, header.radius) != (tip.model, tip.radius):
        return "a block without a step must not change the model or the radius"
    if header.leader >= genesis.params.workers:
        return "the leader is not a worker of this network"
    return _seed_fault(header, tip, genesis, verifier)


def _seed_fault(header: Header, tip: Tip, genesis: Genesis, verifier: Verifier) -> str | None:
    out = None
    if header.original_period == 0:
        key = genesis.roster[header.leader].vrf
        question = seed_alpha(genesis.chain, tip.round, tip.seed_in)
        out = verifier.vrf(key, question, header.seed_proof)
        if out is None:
            return "the seed's proof does not hold"
    elif header.seed_proof:
        return "a block of a later period must not carry a seed proof"
    seed = next_seed(tip.round, tip.seed_in, header.leader, out, tip.old_block)
    return None if header.seed == seed else "the seed does not follow from the earlier ones"


BodyRoots: TypeAlias = tuple[Digest, Digest, Digest]
"""The roots of updates, ballots and evidence: those that are fixed before the outcome is known."""


def said_roots(header: Header) -> BodyRoots:
    """The roots that a header claims for its body."""
    return header.updates_root, header.ballots_root, header.evidence_root


def body_roots(
    updates: Iterable[Update], ballots: Iterable[BallotMessage], evidence: Iterable[Evidence]
) -> BodyRoots:
    """The roots that a body really has."""
    return (
        _root("updates", (update.envelope.encode() for update in updates)),
        _root("ballots", (ballot.envelope.encode() for ballot in ballots)),
        _root("evidence", (item.encode_bare() for item in evidence)),
    )


def selection_root(selection: Iterable[tuple[int, int]]) -> Digest:
    """The root of a selection, given as (proposer, approvals) pairs."""
    return _root("selection", (u32(proposer) + u32(count) for proposer, count in selection))


def _root(tag: str, encoded: Iterable[bytes]) -> Digest:
    return digest(f"{tag}-root", items(blob(digest("item", blob(item))) for item in encoded))


class Ledger:
    """Where the chain stands: the round to be decided and what it builds on."""

    def __init__(self, genesis: Genesis) -> None:
        self._params = genesis.params
        before, zero = genesis_seeds(genesis.chain)
        self._seeds: dict[int, Digest] = {-1: before, 0: zero}
        self._digests: dict[int, Digest] = {0: genesis.chain}
        self.round = 1
        """The round to be decided next."""
        self.model = self._params.model_first
        self.radius = self._params.radius_first
        self.steps = 0

    def seed(self, round_number: int) -> Digest | None:
        """The seed that draws the roles of a round; None if it is not decided yet."""
        return self._seeds.get(round_number - self._params.lookback)

    def tip(self) -> Tip:
        """What the next round builds on."""
        seed_in = self.seed(self.round)
        assert seed_in is not None  # noqa: S101  # Rounds up to this one are decided.
        old = needs_old_block(self.round, self._params.lookback, self._params.refresh)
        return Tip(
            round=self.round,
            previous=self._digests[self.round - 1],
            model=self.model,
            radius=self.radius,
            steps=self.steps,
            seed_in=seed_in,
            old_block=None if old is None else self._digests[old],
        )

    def append(self, header: Header) -> None:
        """Take the header of the round that was just decided, and go on to the next."""
        self._seeds[header.round] = header.seed
        self._digests[header.round] = header.digest
        self.round = header.round + 1
        self.model = header.model
        self.radius = header.radius
        self.steps = header.steps
        # Kept: the seeds of one round more than the look-back, and the blocks that a refresh of
        # the seed may still ask for.
        oldest_seed = self.round - self._params.lookback - 1
        oldest_block = self.round - self._params.lookback * self._params.refresh - 1
        self._seeds.pop(oldest_seed - 1, None)
        self._digests.pop(oldest_block - 1, None)
