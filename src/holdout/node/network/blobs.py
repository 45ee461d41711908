"""Blobs (gradients, block bodies, models) by digest: held in memory, fetched from other members.

A question is `KIND/DIGEST/OFFSET`; the answer is the blob's size and the piece that begins there.
Nothing is taken on trust: a blob is accepted if its digest is right, otherwise the next holder is
asked. A piece that is cut short or names another size also ends the attempt, since a holder that
sends a few bytes at a time could stretch it for ever.
"""

import asyncio
import re
import struct
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from holdout.agreement import aggregate
from holdout.agreement.blocks import block_bytes_max
from holdout.agreement.events import BlobKind
from holdout.agreement.params import Params
from holdout.ids import Digest
from holdout.node.network.transport import Transport
from holdout.node.network.zenoh_config import CHUNK_BYTES
from holdout.seeds import Stream

CACHE_BYTES = 64 << 20
"""How much of what was read from disk stays in memory; the newest blob always does."""
BYTES_PER_SECOND_MIN = 1 << 20
"""A holder that is slower than this is given up."""
FETCHES_MAX = 16
"""How many gradients are fetched at the same time."""
RETRIES_MAX = 4
"""How many gradients that somebody did not give are asked for again at the same time."""

_SIZE = struct.Struct("<Q")
_QUESTION = re.compile(r"([123])/([0-9a-f]{64})/([0-9]{1,12})")


class Blobs:
    """Blobs in memory and on disk, by digest; the transport's threads read them too."""

    def __init__(self, on_disk: Callable[[BlobKind, Digest], bytes | None]) -> None:
        self._on_disk = on_disk
        self._held: dict[Digest, tuple[BlobKind, bytes, int]] = {}
        self._read: OrderedDict[Digest, bytes] = OrderedDict()
        """What was read from disk and checked, the newest last."""
        self._lock = threading.Lock()

    def put(self, kind: BlobKind, digest: Digest, data: bytes, round_number: int) -> None:
        """Keep a blob of this round in memory."""
        with self._lock:
            self._held[digest] = (kind, data, round_number)

    def get(self, kind: BlobKind, digest: Digest) -> bytes | None:
        """A blob from memory, or from disk, where `on_disk` checks it; None: it is not held."""
        found = self._held.get(digest)
        if found is not None:
            return found[1]
        data = self._read.get(digest)
        if data is None:
            data = self._on_disk(kind, digest)
            if data is not None:
                self._remember(digest, data)
        return data

    def _remember(self, digest: Digest, data: bytes) -> None:
        """Keep what was read: asking again, or piece by piece, costs no second check."""
        with self._lock:
            self._read[digest] = data
            self._read.move_to_end(digest)
            size = sum(map(len, self._read.values()))
            while size > CACHE_BYTES and len(self._read) > 1:
                size -= len(self._read.popitem(last=False)[1])

    def forget(self, before_round: int) -> None:
        """Drop the blobs of earlier rounds from memory."""
        with self._lock:
            self._held = {
                digest: item for digest, item in self._held.items() if item[2] >= before_round
            }
            # The disk forgets too, and may be damaged meanwhile.
            self._read.clear()

    def serve(self, question: str) -> bytes | None:
        """The answer to a peer's question; None: there is none."""
        parsed = _QUESTION.fullmatch(question)
        if parsed is None:
            return None
        kind, digest, offset = BlobKind(int(parsed[1])), bytes.fromhex(parsed[2]), int(parsed[3])
        data = self.get(kind, Digest(digest))
        if data is None or offset > len(data):
            return None
        return _SIZE.pack(len(data)) + data[offset : offset + CHUNK_BYTES]

    @property
    def size(self) -> int:
        """How many bytes are held in memory."""
        with self._lock:
            read = sum(map(len, self._read.values()))
            return read + sum(len(data) for _, data, _ in self._held.values())


@dataclass(slots=True)
class _Fetch:
    kind: BlobKind
    round: int
    hints: list[int]
    task: asyncio.Task[None]
    asked: Counter[int] = field(default_factory=Counter)


class Fetcher:
    """Asks one member after another for each wanted blob, until it is there or no longer wanted.

    Attributes:
        wrong: How many bad answers each peer gave.
        silent: How many questions each peer left unanswered.
        failed: How many gradients each peer was asked for first and did not give.
    """

    def __init__(
        self,
        transport: Transport,
        params: Params,
        members: Sequence[int],
        *,
        delay: float,
        words: Stream,
        ready: Callable[[BlobKind, Digest, bytes], None],
        gave_up: Callable[[Digest], None] = lambda _: None,
    ) -> None:
        """Prepare to fetch.

        Args:
            transport: Carries questions and answers.
            params: The network's constants, which say how large blobs are.
            members: Whom to ask: all other members.
            delay: How long a small message takes at most, in seconds.
            words: Draws whom to ask where nobody is named.
            ready: Called with each blob.
            gave_up: Called with a gradient that the first peer to be asked did not give; others are
                still asked.
        """
        self._transport = transport
        self._params = params
        self._members = tuple(members)
        self._delay = delay
        self._words = words
        self._ready = ready
        self._gave_up = gave_up
        self._fetches: dict[Digest, _Fetch] = {}
        self._slots = asyncio.Semaphore(FETCHES_MAX)
        # So that gradients which nobody has do not take the places of those which somebody has.
        self._retries = asyncio.Semaphore(RETRIES_MAX)
        self.wrong: Counter[int] = Counter()
        self.silent: Counter[int] = Counter()
        self.failed: Counter[int] = Counter()

    @property
    def count(self) -> int:
        """How many blobs are being fetched."""
        return len(self._fetches)

    def want(self, kind: BlobKind, digest: Digest, hints: Sequence[int], round_number: int) -> None:
        """Fetch a blob from these peers first; if that is under way already, they come next."""
        known = self._fetches.get(digest)
        named = [peer for peer in dict.fromkeys(hints) if peer in self._members]
        if known is not None:
            known.hints = named + [peer for peer in known.hints if peer not in named]
            return
        task = asyncio.create_task(self._fetch(kind, digest))
        self._fetches[digest] = _Fetch(kind, round_number, named, task)

    def forget(self, before_round: int) -> None:
        """Give up blobs of earlier rounds."""
        for digest in [d for d, fetch in self._fetches.items() if fetch.round < before_round]:
            self._fetches.pop(digest).task.cancel()

    def close(self) -> None:
        """Give up everything."""
        for fetch in self._fetches.values():
            fetch.task.cancel()
        self._fetches.clear()

    async def _fetch(self, kind: BlobKind, digest: Digest) -> None:
        rounds = 0
        order: list[int] = []
        while True:
            fetch = self._fetches.get(digest)
            if fetch is None:  # Given up meanwhile.
                return
            if fetch.hints:
                peer = fetch.hints.pop(0)
            elif order:
                peer = order.pop()
                if fetch.asked[peer] >= rounds:
                    continue
            else:
                rounds += 1
                if rounds > 1:  # Everybody was asked; somebody may have it a little later.
                    await asyncio.sleep(self._delay * min(rounds, 8) / 4)
                order = self._words.sample(self._members, len(self._members))
                continue
            fetch.asked[peer] += 1
            # Bodies and models are few and decide the round: only gradients wait for a slot.
            if kind is BlobKind.PAYLOAD:
                data = await self._pull_gradient(peer, digest, first=fetch.asked.total() == 1)
            else:
                data = await self._pull(peer, kind, digest)
            if data is not None:
                break
        if self._fetches.pop(digest, None) is not None:
            self._ready(kind, digest, data)

    async def _pull_gradient(self, peer: int, digest: Digest, *, first: bool) -> bytes | None:
        async with self._slots if first else self._retries:
            data = await self._pull(peer, BlobKind.PAYLOAD, digest)
        if data is None and first:
            self.failed[peer] += 1
            self._gave_up(digest)
        return data

    async def _pull(self, peer: int, kind: BlobKind, digest: Digest) -> bytes | None:
        limit = self._params.payload_bytes
        if kind is BlobKind.BLOCK:
            limit = block_bytes_max(self._params)
        pieces: list[bytes] = []
        have, total = 0, None
        while total is None or have < total:
            seconds_max = 2 * self._delay + min(limit, CHUNK_BYTES) / BYTES_PER_SECOND_MIN
            question = f"{int(kind)}/{digest.hex()}/{have}"
            answer = await self._transport.request(peer, question, seconds_max)
            if answer is None:
                self.silent[peer] += 1
                return None
            if not _is_piece(answer, have, total, limit):
                self.wrong[peer] += 1
                return None
            (total,) = _SIZE.unpack_from(answer)
            pieces.append(answer[_SIZE.size :])
            have += len(pieces[-1])
        data = b"".join(pieces)
        if not aggregate.blob_matches(kind, digest, data, self._params):
            self.wrong[peer] += 1
            return None
        return data


def _is_piece(answer: bytes, have: int, total: int | None, limit: int) -> bool:
    """Whether this is the complete next piece of a blob of `total` bytes (None: not known yet)."""
    if len(answer) <= _SIZE.size:
        return False
    size: int = _SIZE.unpack_from(answer)[0]
    if size > limit or total not in {None, size}:
        return False
    return len(answer) - _SIZE.size == min(CHUNK_BYTES, size - have)
