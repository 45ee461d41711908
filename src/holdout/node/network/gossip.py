"""Small messages: sent once, passed on once, never handled twice, and pulled if they got lost.

A connection may exist and still deliver nothing, and a liar sends to some peers only. So the first
valid copy of a message is passed on to a few random peers. And every now and then a node tells a
random peer what it holds of this round, and the peer asks for what it lacks. Only a peer that was
told is answered, so that nobody can have messages sent at will.

A signed heartbeat shows which peers are really heard; a node that stops says goodbye. Both are for
operators and for waiting times: the agreement does not use them.
"""

import asyncio
import hashlib
import time
from collections import Counter
from collections.abc import Callable, Sequence

from holdout.agreement.codec import DIGEST_BYTES, Reader, blob, decode, items, text, u8, u32, u64
from holdout.agreement.events import Urgency
from holdout.agreement.keys import Signer, Verifier
from holdout.agreement.messages import REMEMBERED, Kind
from holdout.agreement.params import Genesis
from holdout.errors import InvalidMessage
from holdout.ids import Digest
from holdout.node.network.queues import Allowance, urgency_of
from holdout.node.network.transport import Transport
from holdout.node.network.versions import FIRST, Spoken, read_spoken
from holdout.seeds import Stream

HAVE, PULL, HEARTBEAT, GOODBYE, VERSION = 0x80, 0x81, 0x82, 0x83, 0x84
"""First bytes of the messages of gossip itself; those of the agreement are smaller."""
NAME_BYTES = 8
"""How much of a message's hash lists hold: a collision costs one pull."""
_TAGS = {HEARTBEAT: "heartbeat", GOODBYE: "goodbye"}
_ENTRY_BYTES = 4 + NAME_BYTES
_LIST_BYTES = 1 + (4 + DIGEST_BYTES) + 8 + 4
"""The size of an empty list: kind, network, round, count."""
LISTED_MAX = 2_048
PULLED_MAX = 256
"""How many messages a peer may pull after one list."""
RELAY_PEERS = 3
HEARTBEAT_SECONDS = 5.0
TELL_SECONDS = 5.0
"""A peer is told this node's version at most once in this time."""
HEARD_SECONDS = 15.0
"""How long a peer counts as heard after its last heartbeat."""

PULLABLE = frozenset({Kind.UPDATE, Kind.BALLOT, Kind.LEAD, Kind.VOTE})
REMEMBERED_MAX = 200_000


class Gossip:
    """Remembers messages by hash, passes them on, and watches who is heard.

    Attributes:
        heard: When each peer's last heartbeat came, if it has not left.
        left: The round in which each peer said goodbye, if it has not come back.
        rejected: How many bad messages of gossip itself each peer sent.
        spoken: What each peer says it speaks; one that says nothing speaks the first version.
    """

    def __init__(
        self,
        genesis: Genesis,
        worker: int,
        *,
        signer: Signer,
        verifier: Verifier,
        transport: Transport,
        words: Stream,
        speaks: Spoken | None = None,
    ) -> None:
        self._speaks = speaks or Spoken()
        self.spoken: dict[int, Spoken] = {}
        self._told: dict[int, float] = {}
        self._genesis = genesis
        self._worker = worker
        self._signer = signer
        self._verifier = verifier
        self._transport = transport
        self._words = words
        self._others = tuple(w for w in range(genesis.params.workers) if w != worker)
        self._relay_count = min(RELAY_PEERS, len(self._others))
        # In a small network, a receiver's limit is below the size of a full list.
        room = Allowance.of(genesis.params).message_bytes_max - _LIST_BYTES
        self._listed_max = min(LISTED_MAX, room // _ENTRY_BYTES)
        self._round = 0
        self._seen: dict[bytes, int] = {}
        self._held: dict[bytes, bytes] = {}
        self._offered: dict[int, int] = {}
        """How many messages each peer may still pull."""
        self.heard: dict[int, float] = {}
        self.left: dict[int, int] = {}
        self.rejected: Counter[int] = Counter()

    # -- remembering ------------------------------------------------------------------------------

    def is_repeated(self, data: bytes) -> bool:
        """Whether a copy of this message was accepted before."""
        return _hash(data) in self._seen

    def remember(self, data: bytes) -> None:
        """Note an accepted message: copies of it are dropped, and peers may pull it."""
        if data[0] not in REMEMBERED or len(self._seen) >= REMEMBERED_MAX:
            return
        name = _hash(data)
        self._seen[name] = self._round
        if data[0] in PULLABLE:
            self._held[name[:NAME_BYTES]] = data

    def entered(self, round_number: int) -> None:
        """Begin a round, and forget what is older than the last one."""
        self._round = round_number
        self._seen = {name: r for name, r in self._seen.items() if r >= round_number - 1}
        self._held = {}
        self._offered = {}

    # -- sending ----------------------------------------------------------------------------------

    def broadcast(self, data: bytes, urgency: Urgency) -> None:
        """Send a message to everybody."""
        self.remember(data)
        self._transport.broadcast(data, urgency)

    def relay(self, data: bytes, urgency: Urgency, without: int) -> None:
        """Pass a message on to a few random peers."""
        peers = [peer for peer in self._others if peer != without]
        for peer in self._words.sample(peers, min(self._relay_count, len(peers))):
            self._transport.send(peer, data, urgency)

    def tell_what_is_held(self) -> None:
        """Send a random peer the list of messages held of this round."""
        peers = self._transport.peers()
        if not peers or not self._held:
            return
        (peer,) = self._words.sample(peers, 1)
        self._offered[peer] = PULLED_MAX
        self._send_list(HAVE, peer, list(self._held)[-self._listed_max :])

    def _send_list(self, kind: int, peer: int, names: Sequence[bytes]) -> None:
        data = u8(kind) + blob(self._genesis.chain) + u64(self._round) + items(map(blob, names))
        self._transport.send(peer, data, Urgency.ANSWER)

    def beat(self, period: int) -> None:
        """Tell everybody that this worker is alive, and in which round and period it is."""
        self._sign_of_life(HEARTBEAT, period)

    def goodbye(self, period: int) -> None:
        """Tell everybody that this worker stops on purpose."""
        self._sign_of_life(GOODBYE, period)

    def _sign_of_life(self, kind: int, period: int) -> None:
        part = (
            text(_TAGS[kind])
            + blob(self._genesis.chain)
            + u32(self._worker)
            + u64(self._round)
            + u32(period)
        )
        data = u8(kind) + blob(part) + blob(self._signer.sign(part))
        self._transport.broadcast(data, Urgency.ANSWER)

    async def keep_talking(self, delay: float, period: Callable[[], int]) -> None:
        """Send lists and heartbeats until cancelled, whatever the round does."""
        beats = 0
        while True:
            await asyncio.sleep(delay)
            self.tell_what_is_held()
            beats += 1
            if beats * delay >= HEARTBEAT_SECONDS:
                beats = 0
                self.beat(period())

    # -- receiving --------------------------------------------------------------------------------

    def handle(self, peer: int, data: bytes) -> None:
        """Handle a message of gossip itself."""
        kind = data[0] if data else 0
        try:
            if kind in {HAVE, PULL}:
                self._on_list(peer, kind, *decode(data[1:], _read_list))
            elif kind == VERSION:
                self._on_version(peer, *decode(data[1:], _read_signed))
            elif kind in _TAGS:
                self._on_sign_of_life(peer, kind, *decode(data[1:], _read_signed))
            else:
                raise InvalidMessage("unknown kind")  # noqa: TRY301
        except InvalidMessage:
            self.rejected[peer] += 1

    def _on_list(
        self, peer: int, kind: int, chain: Digest, round_number: int, names: Sequence[bytes]
    ) -> None:
        if chain != self._genesis.chain:
            raise InvalidMessage("of another network")
        if round_number != self._round:
            return
        if kind == HAVE:
            self._on_have(peer, names)
        else:
            self._on_pull(peer, names)

    def _on_have(self, peer: int, names: Sequence[bytes]) -> None:
        lacking = [name for name in dict.fromkeys(names) if name not in self._held]
        if lacking:
            self._send_list(PULL, peer, lacking[:PULLED_MAX])

    def _on_pull(self, peer: int, names: Sequence[bytes]) -> None:
        left = self._offered.get(peer, 0)
        pulled = [self._held[name] for name in dict.fromkeys(names) if name in self._held][:left]
        self._offered[peer] = left - len(pulled)
        for data in pulled:
            self._transport.send(peer, data, urgency_of(data))

    def _on_sign_of_life(self, peer: int, kind: int, part: bytes, signature: bytes) -> None:
        def read(reader: Reader) -> tuple[bytes, Digest, int, int, int]:
            return reader.blob(16), reader.digest(), reader.u32(), reader.u64(), reader.u32()

        tag, chain, worker, round_number, _ = decode(part, read)
        key = self._genesis.roster[peer].signing
        if (tag, chain, worker) != (_TAGS[kind].encode(), self._genesis.chain, peer):
            raise InvalidMessage("not about its sender")
        if not self._verifier.signature(key, part, signature):
            raise InvalidMessage("not signed by its sender")
        if kind == GOODBYE:
            self.heard.pop(peer, None)
            self.left[peer] = round_number
        else:
            if peer not in self.heard:
                self._tell_version(peer)
            self.left.pop(peer, None)
            self.heard[peer] = time.monotonic()

    # -- versions ---------------------------------------------------------------------------------

    def _tell_version(self, peer: int) -> None:
        now = time.monotonic()
        if now - self._told.get(peer, -TELL_SECONDS) < TELL_SECONDS:
            return
        self._told[peer] = now
        part = self._version_head(self._worker) + self._speaks.encode()
        data = u8(VERSION) + blob(part) + blob(self._signer.sign(part))
        self._transport.send(peer, data, Urgency.ANSWER)

    def _version_head(self, worker: int) -> bytes:
        return text("version") + blob(self._genesis.chain) + u32(worker)

    def _on_version(self, peer: int, part: bytes, signature: bytes) -> None:
        head = self._version_head(peer)
        if not part.startswith(head):
            raise InvalidMessage("not about its sender")
        if not self._verifier.signature(self._genesis.roster[peer].signing, part, signature):
            raise InvalidMessage("not signed by its sender")
        self.spoken[peer] = decode(part[len(head) :], read_spoken)
        # It may have been started again without a goodbye, and know nothing of this node.
        self._tell_version(peer)

    def foreign(self, peer: int) -> str | None:
        """Why this peer and this node do not understand each other; None: they do."""
        other = self.spoken.get(peer, FIRST)
        return None if self._speaks.common(other) is not None else self._speaks.refusal(other)

    def heard_lately(self) -> tuple[int, ...]:
        """The peers whose last heartbeat is recent."""
        now = time.monotonic()
        return tuple(sorted(p for p, at in self.heard.items() if now - at < HEARD_SECONDS))


def _hash(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def _read_list(reader: Reader) -> tuple[Digest, int, tuple[bytes, ...]]:
    return reader.digest(), reader.u64(), reader.items(lambda r: r.exactly(NAME_BYTES), LISTED_MAX)


def _read_signed(reader: Reader) -> tuple[bytes, bytes]:
    return reader.blob(256), reader.exactly(64)
