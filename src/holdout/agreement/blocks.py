"""Blocks: what a round agrees on, how a leader assembles one, how everybody re-checks it.

The value agreed on is the digest of a header. Its roots commit to the body, envelope by envelope,
so a digest has one body, and a body is valid or invalid for good; the digests of the model before
and after say what the round did to it ("What a block is" in `docs/protocol.md`).

A leader and a validator do the same computation. Both make a `Draft`, the body and its tally: the
leader from what it holds (`assemble`), the validator from the block (`inspect`). The draft tells
which payloads it needs and, once it is known which of them are valid, what is to be combined. Then
`Draft.block` is the only block that can follow: a leader sends it, a validator compares it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import TypeVar

from holdout.agreement import messages as msg
from holdout.agreement.codec import Reader, blob, decode, items, u32
from holdout.agreement.counting import Count, tally
from holdout.agreement.draws import Draws
from holdout.agreement.events import Combine, Combined, MessageFault
from holdout.agreement.headers import (
    BlockKind,
    BodyRoots,
    Header,
    Tip,
    body_roots,
    link_fault,
    read_header,
    said_roots,
    selection_root,
)
from holdout.agreement.keys import SIGNATURE_BYTES, Verifier
from holdout.agreement.params import PROTOCOL_VERSION, Genesis, Params
from holdout.agreement.wire import decode_envelope, open_envelope, read_evidence
from holdout.errors import InvalidMessage, MisuseError
from holdout.ids import Digest

M = TypeVar("M", msg.Update, msg.BallotMessage)


@dataclass(frozen=True, slots=True)
class Block:
    """A header and what it commits to."""

    header: Header
    updates: tuple[msg.Update, ...]
    """Exactly the updates that the ballots name, ascending by proposer."""
    ballots: tuple[msg.BallotMessage, ...]
    """Ascending by voter."""
    selection: tuple[tuple[int, int], ...]
    """The union-consensus: (proposer, approvals), ascending; empty in a NOOP."""
    evidence: tuple[msg.Evidence, ...]
    """Ascending by (kind, worker)."""

    def encode(self) -> bytes:
        """The block's canonical bytes."""
        return b"".join(
            [
                blob(self.header.encode()),
                items(blob(update.envelope.encode()) for update in self.updates),
                items(blob(ballot.envelope.encode()) for ballot in self.ballots),
                items(u32(proposer) + u32(approvals) for proposer, approvals in self.selection),
                items(evidence.encode_bare() for evidence in self.evidence),
            ]
        )


# ---------------------------------------------------------------------------------------- reading

_NESTED_BYTES_MAX = msg.ENVELOPE_BYTES_MAX + SIGNATURE_BYTES + msg.PROOF_BYTES_MAX + 16


def read_block(data: bytes) -> Block:
    """The well-formed block that these bytes hold; raises `InvalidMessage`."""
    block = decode(data, _read_block)
    fault = _form_fault(block)
    if fault is not None:
        raise InvalidMessage(fault)
    return block


def block_bytes_max(params: Params) -> int:
    """The size limit for fetching a block: no valid block of this network is larger."""
    envelope = 512 + msg.PROOF_BYTES_MAX + SIGNATURE_BYTES
    ballot = envelope + 40 * params.workers
    # Updates and ballots of everybody, and two pieces of evidence against everybody.
    return msg.HEADER_BYTES_MAX + params.workers * (envelope + ballot + 2 * 2 * ballot + 8)


def _read_block(reader: Reader) -> Block:
    return Block(
        read_header(reader.blob(msg.HEADER_BYTES_MAX)),
        reader.items(lambda r: _read_nested(r, msg.Update), msg.WORKERS_MAX),
        reader.items(lambda r: _read_nested(r, msg.BallotMessage), msg.WORKERS_MAX),
        reader.items(lambda r: (r.u32(), r.u32()), msg.WORKERS_MAX),
        reader.items(read_evidence, 2 * msg.WORKERS_MAX),
    )


def _read_nested(reader: Reader, kind: type[M]) -> M:
    message = open_envelope(decode_envelope(reader.blob(_NESTED_BYTES_MAX)))
    if not isinstance(message, kind):
        raise InvalidMessage("a block must list updates, then ballots")
    return message


# ------------------------------------------------------------------------------------------- form


def _form_fault(block: Block) -> str | None:
    """What is wrong with order, uniqueness or roots, which needs no knowledge of the round."""
    for name, listed in (
        ("updates", [update.worker for update in block.updates]),
        ("ballots", [ballot.worker for ballot in block.ballots]),
        ("selection", [proposer for proposer, _ in block.selection]),
    ):
        if any(a >= b for a, b in pairwise(listed)):
            return f"the {name} must be in ascending order, each worker once"
    try:
        accused = [_accused(evidence) for evidence in block.evidence]
    except InvalidMessage as error:
        return f"the evidence cannot be read: {error}"
    if any(a >= b for a, b in pairwise(accused)):
        return "the evidence must be in ascending order, each kind and worker once"
    header = block.header
    right = header.selection_root == selection_root(block.selection)
    if right and said_roots(header) == body_roots(block.updates, block.ballots, block.evidence):
        return None
    return "the roots in the header are not those of the body"


def _accused(evidence: msg.Evidence) -> tuple[msg.Kind, int]:
    """The kind of message, and the worker, that evidence accuses."""
    message = open_envelope(evidence.first)
    if isinstance(message, msg.HeadAnswer):
        raise InvalidMessage("two answers about the head are not evidence")
    return evidence.first.kind, message.worker


# ----------------------------------------------------------------------------------------- drafts


@dataclass(frozen=True)
class Draft:
    """A block's body, without the outcome, which depends on payloads."""

    tip: Tip
    genesis: Genesis
    leader: int
    original_period: int
    seed: Digest
    seed_proof: bytes
    updates: tuple[msg.Update, ...]
    ballots: tuple[msg.BallotMessage, ...]
    evidence: tuple[msg.Evidence, ...]
    convicted: frozenset[int]
    """The workers that the evidence proves to have equivocated; what they sent does not count."""
    known_roots: BodyRoots | None = field(default=None, compare=False)
    """The roots in the header, if the body came with one; they were found right."""

    @cached_property
    def roots(self) -> BodyRoots:
        """The roots of updates, ballots and evidence."""
        return self.known_roots or body_roots(self.updates, self.ballots, self.evidence)

    @cached_property
    def counts(self) -> tuple[Count, ...]:
        """The tally, one count for each update."""
        return tally(
            _counted(self.ballots, self.convicted),
            updates=[update.worker for update in self.updates],
            params=self.genesis.params,
        )

    @cached_property
    def ballot_count(self) -> int:
        """The number of ballots that count."""
        return sum(ballot.worker not in self.convicted for ballot in self.ballots)

    @cached_property
    def passing(self) -> tuple[tuple[msg.Update, int], ...]:
        """The updates that reach both thresholds, ascending, each with its approvals.

        Empty if there are too few ballots for a step.
        """
        params = self.genesis.params
        if self.ballot_count < params.ballots_min:
            return ()
        return tuple(
            (update, count.approvals)
            for update, count in zip(self.updates, self.counts, strict=True)
            # A payload of another size cannot be valid, so nobody has to fetch it.
            if count.passes and update.size == params.payload_bytes
        )

    @property
    def needs(self) -> tuple[Digest, ...]:
        """The payloads that the outcome depends on."""
        return tuple(dict.fromkeys(update.payload for update, _ in self.passing))

    def job(self, valid: Mapping[Digest, bool]) -> Combine | None:
        """What is to be computed, given which needed payloads are valid; None: nothing, a NOOP."""
        selected = self._selected(valid)
        if not selected:
            return None
        return Combine(
            self.tip.model,
            tuple(update.payload for update, _ in selected),
            self.tip.radius,
            self.genesis.params.rate(self.tip.steps + 1),
        )

    def block(self, valid: Mapping[Digest, bool], combined: Combined | None) -> Block:
        """The one block that follows from the body and its payloads."""
        if (combined.job if combined else None) != self.job(valid):
            raise MisuseError("a block must be made from the result of its own job")
        if combined is None or combined.model is None:
            return self._block(BlockKind.NOOP, (), self.tip.model, self.tip.radius)
        selection = tuple((update.worker, count) for update, count in self._selected(valid))
        return self._block(BlockKind.STEP, selection, combined.model, combined.radius)

    def _selected(self, valid: Mapping[Digest, bool]) -> list[tuple[msg.Update, int]]:
        # A copied gradient counts once, for the proposer with the smallest index.
        first: dict[Digest, tuple[msg.Update, int]] = {}
        for update, approvals in self.passing:
            if valid[update.payload]:
                first.setdefault(update.payload, (update, approvals))
        return list(first.values())

    def _block(
        self, kind: BlockKind, selection: tuple[tuple[int, int], ...], model: Digest, radius: float
    ) -> Block:
        tip = self.tip
        updates_root, ballots_root, evidence_root = self.roots
        header = Header(
            PROTOCOL_VERSION,
            self.genesis.chain,
            tip.round,
            tip.previous,
            kind,
            self.leader,
            self.original_period,
            self.seed,
            self.seed_proof,
            updates_root,
            ballots_root,
            selection_root(selection),
            evidence_root,
            tip.steps + (kind is BlockKind.STEP),
            tip.model,
            model,
            radius,
        )
        return Block(header, self.updates, self.ballots, selection, self.evidence)


def assemble(
    tip: Tip,
    genesis: Genesis,
    *,
    leader: int,
    original_period: int,
    seed: Digest,
    seed_proof: bytes,
    updates: Mapping[int, msg.Update],
    ballots: Mapping[int, msg.BallotMessage],
    evidence: Iterable[msg.Evidence],
) -> Draft:
    """A leader's draft.

    Args:
        tip: What the round builds on.
        genesis: The network.
        leader: The worker that assembles the block.
        original_period: The period in which it is assembled.
        seed: Q[r], by `sortition.next_seed`.
        seed_proof: The proof of the seed; empty in later periods.
        updates: The verified update headers in hand, by proposer.
        ballots: The verified ballots in hand, by voter. Ballots of convicted voters are left out,
            and so are those that name an update which is not in hand: no valid block holds them.
        evidence: Proven equivocation of this round. At most one piece for each kind and worker is
            taken; if there are too many, evidence on updates and ballots goes first.
    """
    proven: dict[tuple[msg.Kind, int], msg.Evidence] = {}
    for item in evidence:
        proven.setdefault(_accused(item), item)
    accused = sorted(proven)[: 2 * genesis.params.workers]
    convicted = frozenset(worker for _, worker in accused)
    ids = {update.update_id for update in updates.values()}
    taken = tuple(
        ballot
        for voter, ballot in sorted(ballots.items())
        if voter not in convicted
        and all(e.proposer in convicted or e.update_id in ids for e in ballot.entries)
    )
    named = {proposer for counted in _counted(taken, convicted) for proposer in counted}
    return Draft(
        tip,
        genesis,
        leader,
        original_period,
        seed,
        seed_proof,
        tuple(update for proposer, update in sorted(updates.items()) if proposer in named),
        taken,
        tuple(proven[key] for key in accused),
        convicted,
    )


def _counted(ballots: Iterable[msg.BallotMessage], convicted: frozenset[int]) -> list[list[int]]:
    """The proposers on each ballot that counts, without the convicted ones."""
    return [
        [entry.proposer for entry in ballot.entries if entry.proposer not in convicted]
        for ballot in ballots
        if ballot.worker not in convicted
    ]


# ------------------------------------------------------------------------------------- inspection


def inspect(
    block: Block, tip: Tip, genesis: Genesis, draws: Draws, verifier: Verifier
) -> Draft | str:
    """The draft behind a block, or why the block is invalid, by all checks that need no payload.

    The caller waits for the draft's payloads, runs its job, and compares `Draft.block` with the
    block: if they differ, the block is invalid for good.

    The leader's credential for the original period is not in the header but in its lead, and is
    checked with the lead. If a block is certified, honest workers that gave it their soft vote had
    a verified lead for it.
    """
    return (
        _form_fault(block)
        or link_fault(block.header, tip, genesis, verifier)
        or _body(block, tip, genesis, draws)
    )


def _body(block: Block, tip: Tip, genesis: Genesis, draws: Draws) -> Draft | str:
    params = genesis.params
    if len(block.evidence) > 2 * params.workers:
        return "there are more than two pieces of evidence for each worker"
    convicted = set[int]()
    for evidence in block.evidence:
        message = draws.convict(evidence)
        if isinstance(message, MessageFault):
            return f"the evidence proves nothing: {message}"
        convicted.add(message.worker)
    draft = Draft(
        tip,
        genesis,
        block.header.leader,
        block.header.original_period,
        block.header.seed,
        block.header.seed_proof,
        block.updates,
        block.ballots,
        block.evidence,
        frozenset(convicted),
        said_roots(block.header),
    )
    return (
        _resolution_fault(draft)
        or _selection_fault(block, draft)
        # Signatures and credentials come last, because they cost the most time.
        or _messages_fault("update", block.updates, tip, draws)
        or _messages_fault("ballot", block.ballots, tip, draws)
        or draft
    )


def _resolution_fault(draft: Draft) -> str | None:
    """What is wrong if an entry that counts has no update here, or an update no entry."""
    ids = {update.worker: update.update_id for update in draft.updates}
    named = set[int]()
    for ballot in draft.ballots:
        if ballot.worker in draft.convicted:
            continue
        for entry in ballot.entries:
            if entry.proposer in draft.convicted:
                continue
            if ids.get(entry.proposer) != entry.update_id:
                return "a ballot names an update that is not in the block"
            named.add(entry.proposer)
    if any(proposer in draft.convicted for proposer in ids):
        return "the block holds an update of a convicted proposer"
    return None if len(named) == len(ids) else "the block holds an update that no ballot names"


def _selection_fault(block: Block, draft: Draft) -> str | None:
    passing = {update.worker: approvals for update, approvals in draft.passing}
    if any(passing.get(proposer) != approvals for proposer, approvals in block.selection):
        return "the selection does not follow from the ballots"
    if (block.header.kind is BlockKind.STEP) != bool(block.selection):
        return "a block must make a step exactly if it selects an update"
    return None


def _messages_fault(
    name: str, messages: Sequence[msg.Update] | Sequence[msg.BallotMessage], tip: Tip, draws: Draws
) -> str | None:
    for message in messages:
        if message.model != tip.model:
            return f"the {name} of worker {message.worker} is for a different model"
        fault = draws.fault(message)
        if fault is not None:
            return f"the {name} of worker {message.worker} is not acceptable: {fault}"
    return None
