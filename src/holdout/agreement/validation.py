"""Which blocks are valid here: what a worker re-checks before it supports one.

A check waits for what it needs (payloads, then the recomputed model) and goes on when that comes.
Its outcome is final: `valid` and `invalid` never change, `open` means that something is missing.

A worker without a vote in a period (mode `shuffle`) checks nothing there: `active` is off, and it
only keeps the bodies of blocks. Blocks are forgotten two periods after they came, unless a quorum
or one of the worker's votes rests on them, so that a liar that leads period after period cannot
fill anybody's memory.
"""

from collections.abc import Callable, Container
from dataclasses import dataclass, field
from enum import Enum

from holdout.agreement.blocks import Block, Draft, inspect, read_block
from holdout.agreement.draws import Draws
from holdout.agreement.events import Action, BlobKind, Combine, Combined, Compute, Want
from holdout.agreement.headers import Header, Tip
from holdout.agreement.keys import Verifier
from holdout.agreement.params import Genesis
from holdout.errors import InvalidMessage
from holdout.ids import Digest


class Validity(Enum):
    """What is known about a block."""

    OPEN = "open"
    VALID = "valid"
    INVALID = "invalid"


@dataclass(frozen=True, slots=True)
class Tools:
    """Pure functions on blocks; a simulator may pass versions that remember their answers."""

    read_block: Callable[[bytes], Block] = read_block
    inspect: Callable[[Block, Tip, Genesis, Draws, Verifier], Draft | str] = inspect


@dataclass(slots=True)
class _Check:
    header: Header
    verdict: Validity
    period: int
    """The period in which the block came."""
    block: Block | None = None
    draft: Draft | None = None
    job: Combine | None = None
    reason: str = ""


@dataclass(slots=True)
class Validation:
    """The blocks of one round and what is known about each."""

    genesis: Genesis
    tip: Tip
    draws: Draws
    verifier: Verifier
    payloads: dict[Digest, bool]
    """Shared with the learning half: the payloads in hand, and whether each is valid."""
    emit: Callable[[Action], None]
    tools: Tools = field(default_factory=Tools)
    active: bool = True
    """Whether this worker needs to know which blocks are valid."""
    _period: int = 0
    _checks: dict[Digest, _Check] = field(default_factory=dict)
    _results: dict[Combine, Combined] = field(default_factory=dict)
    _asked: dict[Combine, None] = field(default_factory=dict)
    _wanted: dict[Digest, None] = field(default_factory=dict)

    # -- questions ------------------------------------------------------------------------------

    def verdict(self, value: Digest) -> Validity:
        """What is known about the block of this digest."""
        check = self._checks.get(value)
        return Validity.OPEN if check is None else check.verdict

    def header(self, value: Digest) -> Header | None:
        """The header of this digest, if it is in hand."""
        check = self._checks.get(value)
        return None if check is None else check.header

    def block(self, value: Digest) -> Block | None:
        """The block of this digest, if it is in hand."""
        check = self._checks.get(value)
        return None if check is None else check.block

    def reason(self, value: Digest) -> str:
        """Why the block of this digest is invalid; empty if it is not known to be."""
        check = self._checks.get(value)
        return "" if check is None else check.reason

    def size(self) -> int:
        """How many blocks, payloads, results and open requests are held."""
        jobs = len(self._results) + len(self._asked)
        return len(self._checks) + len(self.payloads) + len(self._wanted) + jobs

    # -- periods --------------------------------------------------------------------------------

    def enter(
        self,
        period: int,
        *,
        active: bool,
        needed: Container[Digest] = (),
        announced: Container[Digest] = (),
    ) -> None:
        """A period begins: drop what belongs only to periods long over.

        Args:
            period: The period that begins.
            active: Whether this worker may have to vote in it.
            needed: Blocks that stay, however old: quorums and this worker's votes rest on them.
            announced: Payloads that stay: updates in hand name them.
        """
        self._period, self.active = period, active
        self._checks = {
            value: check
            for value, check in self._checks.items()
            if check.period >= period - 1 or value in needed
        }
        checks = list(self._checks.values())
        jobs = {check.job for check in checks}
        self._results = {job: result for job, result in self._results.items() if job in jobs}
        self._asked = {job: None for job in self._asked if job in jobs}
        payloads = {p for check in checks if check.draft for p in check.draft.needs}
        for gone in [p for p in self.payloads if p not in payloads and p not in announced]:
            del self.payloads[gone]  # In place: it is shared.
        self._wanted = {p: None for p in self._wanted if p in payloads or p in announced}
        if active:
            for check in checks:
                self._begin(check)

    # -- what comes in --------------------------------------------------------------------------

    def hold(self, header: Header) -> None:
        """Take up again a block that was found valid before a crash; its model is on disk."""
        self._checks[header.digest] = _Check(header, Validity.VALID, self._period)

    def add_own(self, block: Block) -> None:
        """Take a block that was made here, of parts that were all checked."""
        check = _Check(block.header, Validity.VALID, self._period, block)
        self._checks[block.header.digest] = check

    def add(self, value: Digest, data: bytes) -> None:
        """Take a block that has come; its validity may be known at once or later."""
        if value in self._checks and self._checks[value].block is not None:
            return
        try:
            block = self.tools.read_block(data)
        except InvalidMessage:
            return
        if block.header.digest != value:
            return
        known = self._checks.get(value)
        if known is not None:
            known.block = block
            return
        check = self._checks[value] = _Check(block.header, Validity.OPEN, self._period, block)
        if self.active:
            self._begin(check)

    def _begin(self, check: _Check) -> None:
        block = check.block
        if block is None or check.draft is not None or check.verdict is not Validity.OPEN:
            return
        draft = self.tools.inspect(block, self.tip, self.genesis, self.draws, self.verifier)
        if isinstance(draft, str):
            check.verdict, check.reason = Validity.INVALID, draft
            return
        check.draft = draft
        self.want(draft.needs, block.header.leader)
        self._go_on(check)

    def want(self, payloads: tuple[Digest, ...], *hints: int) -> None:
        """Have the payloads fetched that are not in hand, each once."""
        for payload in payloads:
            if payload not in self.payloads and payload not in self._wanted:
                self._wanted[payload] = None
                self.emit(Want(BlobKind.PAYLOAD, payload, hints))

    def payload_ready(self) -> None:
        """Payloads have come: go on with the checks that waited for them."""
        for check in list(self._checks.values()):
            if check.verdict is Validity.OPEN and check.job is None:
                self._go_on(check)

    def combined(self, result: Combined) -> None:
        """A model was recomputed: go on with the checks that waited for it."""
        self._results[result.job] = result
        for check in list(self._checks.values()):
            if check.verdict is Validity.OPEN and check.job == result.job:
                self._go_on(check)

    # -- a draft: of this worker's own block, or of one that is checked ---------------------------

    def finish(self, draft: Draft) -> Block | None:
        """The block that a draft leads to; None while something is missing.

        Missing payloads must have been asked for (`want`); the computation is asked for here.
        """
        if any(payload not in self.payloads for payload in draft.needs):
            return None
        job = draft.job(self.payloads)
        if job is None:
            return draft.block(self.payloads, None)
        if job not in self._results:
            if job not in self._asked:
                self._asked[job] = None
                self.emit(Compute(job))
            return None
        return draft.block(self.payloads, self._results[job])

    def _go_on(self, check: _Check) -> None:
        if check.draft is None or any(p not in self.payloads for p in check.draft.needs):
            return
        check.job = check.draft.job(self.payloads)
        rebuilt = self.finish(check.draft)
        if rebuilt is None:
            return
        block = check.block
        assert block is not None  # noqa: S101  # Only blocks in hand have drafts.
        same = rebuilt.header.digest == block.header.digest
        if same and rebuilt.selection == block.selection:
            check.verdict = Validity.VALID
        else:
            check.verdict = Validity.INVALID
            check.reason = "the outcome in the header does not follow from the body"
