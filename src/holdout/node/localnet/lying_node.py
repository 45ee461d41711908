"""A node that lies, for rehearsals: `python -m holdout.node.localnet.lying_node`.

A liar is an honest node whose actions pass through the lies below, with a worker whose updates are
an attack (`holdout.node.demo:make_lying_worker`). It has a member's real keys and certificate: what
stops it is what would stop a real liar.
"""

import argparse
import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from holdout.agreement import aggregate, wire
from holdout.agreement import events as ev
from holdout.agreement import messages as msg
from holdout.attacks.ballots import BallotView, coalition
from holdout.errors import UserError
from holdout.ids import Digest, ProposalId, WorkerId
from holdout.node.membership.genesis import Network
from holdout.node.membership.identity import Identity
from holdout.node.network.transport import ZenohTransport
from holdout.node.runtime.node import run_node
from holdout.node.runtime.service import Service
from holdout.seeds import Stream, stream

REPLAYED = 64
FLOOD_NICE = 10
"""The niceness of the thread that floods: on Linux, each thread has its own."""

LIES = (
    "coalition",
    "equivocate",
    "withhold",
    "garbage",
    "replay",
    "impersonate",
    "flood",
    "silent",
)
"""docs/operating.md says what each one does."""
_FALSIFIED = (msg.Kind.UPDATE, msg.Kind.BALLOT, msg.Kind.LEAD, msg.Kind.VOTE)


class ChosenLies:
    """A `Misbehaviour` that tells some of the lies, all at once.

    Args:
        service: The node.
        identity: Its keys.
        network: The network it is a member of.
        lies: Which of `LIES`.
        liars: All members of the coalition.
    """

    def __init__(
        self,
        service: Service,
        identity: Identity,
        network: Network,
        *,
        lies: Sequence[str],
        liars: Sequence[int],
    ) -> None:
        self._service = service
        self._signer = identity.signer
        self._genesis = network.genesis
        self._liars = frozenset(liars)
        self._lies = frozenset(lies)
        self._words: Stream = stream(service.worker, "liar")
        self._others = [w for w in range(len(network.members)) if w != service.worker]
        self._old: deque[bytes] = deque(maxlen=REPLAYED)
        self._flooding: threading.Thread | None = None

    # -- what the driver asks ---------------------------------------------------------------------

    def act(self, actions: Sequence[ev.Action]) -> Sequence[ev.Action]:
        """The player's actions, turned into lies."""
        if "flood" in self._lies and self._flooding is None:
            self._flooding = threading.Thread(target=self._flood, daemon=True)
            self._flooding.start()
        done: list[ev.Action] = []
        for action in actions:
            if "silent" in self._lies and isinstance(
                action, ev.Broadcast | ev.Relay | ev.Send | ev.SendBlocks
            ):
                continue
            if isinstance(action, ev.Broadcast) and action.data[0] in _FALSIFIED:
                done += self._say(action)
            else:
                done.append(action)
                if isinstance(action, ev.Relay):
                    self._old.append(action.data)
        return done

    def ballot(self, job: ev.Judge, approved: tuple[int, ...]) -> tuple[int, ...]:
        """A ballot with the coalition's updates first, the rest random."""
        if "coalition" not in self._lies:
            return approved
        places = tuple(ProposalId(place) for place in range(len(job.candidates)))
        view = BallotView(
            voter=WorkerId(self._service.worker),
            proposals=places,
            coalition=frozenset(
                place for place in places if job.candidates[place].proposer in self._liars
            ),
            approve_count=job.approve_max,
            honest_ballot=lambda: [ProposalId(place) for place in approved],
            ranking=lambda: places,
            source=self._words,
        )
        return tuple(sorted(int(place) for place in coalition(view)))

    def withholds(self, kind: ev.BlobKind) -> bool:
        """Give no gradient to anybody."""
        return "withhold" in self._lies and kind is ev.BlobKind.PAYLOAD

    # -- lies -------------------------------------------------------------------------------------

    def _say(self, action: ev.Broadcast) -> list[ev.Action]:
        said: list[ev.Action] = [action]
        if "equivocate" in self._lies:
            other = self._other_version(action.data)
            if other is not None:
                said = self._split(action.data, other, action.urgency)
        if "garbage" in self._lies:
            size = 1 + self._words.below(2_000)
            said.append(ev.Broadcast(os.urandom(size), ev.Urgency.VOTE))
            cut = self._words.below(len(action.data))
            said.append(ev.Broadcast(action.data[:cut] + b"\x00", ev.Urgency.VOTE))
            flipped = bytearray(action.data)
            flipped[self._words.below(len(flipped))] ^= 1 << self._words.below(8)
            said.append(ev.Broadcast(bytes(flipped), ev.Urgency.VOTE))
        if "replay" in self._lies:
            said += [ev.Broadcast(data, ev.Urgency.VOTE) for data in list(self._old)[:8]]
        if "impersonate" in self._lies:
            said.append(ev.Broadcast(self._as_somebody_else(action.data), ev.Urgency.VOTE))
            transport = self._service.transport
            if isinstance(transport, ZenohTransport):
                transport.publish(self._others[0], "all", action.data, ev.Urgency.VOTE)
        return said

    def _split(self, one: bytes, other: bytes, urgency: ev.Urgency) -> list[ev.Action]:
        peers = self._words.sample(self._others, len(self._others))
        half = len(peers) // 2
        return [
            ev.Send(peer, one if place < half else other, urgency)
            for place, peer in enumerate(peers)
        ]

    def _other_version(self, data: bytes) -> bytes | None:
        """Another message for the same slot, with a valid signature too."""
        message = wire.decode(data).claim
        worker = self._service.worker
        match message:
            case msg.Update():
                gradient = os.urandom(4) * (message.size // 4)
                payload = aggregate.payload_digest(gradient)
                part = msg.update_part(
                    message.chain, message.round, worker, message.model, payload, message.size
                )
            case msg.BallotMessage() if len(message.entries) > 1:
                part = msg.ballot_part(
                    message.chain, message.round, worker, message.model, message.entries[1:]
                )
            case msg.Vote() if any(message.value):
                part = msg.vote_part(
                    message.chain,
                    message.round,
                    message.period,
                    message.step,
                    worker,
                    Digest(os.urandom(32)),
                )
            case msg.Lead():
                part = msg.lead_part(
                    message.chain,
                    message.round,
                    message.period,
                    worker,
                    message.original_period,
                    Digest(os.urandom(32)),
                )
            case _:
                return None
        proof = message.envelope.proof
        return msg.Envelope(message.envelope.kind, part, self._signer.sign(part), proof).encode()

    def _as_somebody_else(self, data: bytes) -> bytes:
        """A vote in another worker's name, with this one's signature."""
        message = wire.decode(data).claim
        victim = self._others[0]
        chain = self._genesis.chain
        number = getattr(message, "round", 1)
        part = msg.vote_part(chain, number, 0, 1, victim, Digest(os.urandom(32)))
        return msg.Envelope(msg.Kind.VOTE, part, self._signer.sign(part)).encode()

    def _flood(self) -> None:
        """Send votes, random bytes and questions as fast as the network takes them."""
        # A real liar has its own machine; this one must not take the other nodes' processor time.
        os.nice(FLOOD_NICE)
        chain, worker = self._genesis.chain, self._service.worker
        count = 0
        while not self._service.stopping:
            count += 1
            transport = self._service.transport
            number = self._service.player.round
            part = msg.vote_part(chain, number, count % 2, 1, worker, Digest(os.urandom(32)))
            transport.broadcast(
                msg.Envelope(msg.Kind.VOTE, part, self._signer.sign(part)).encode(), ev.Urgency.VOTE
            )
            transport.broadcast(os.urandom(1_000), ev.Urgency.VOTE)
            if isinstance(transport, ZenohTransport):
                transport.publish(self._others[0], "all", os.urandom(100), ev.Urgency.VOTE)
            transport.broadcast(msg.GetBlocks(chain, 1, 1 << 60).encode(), ev.Urgency.ANSWER)
            if count % 50 == 0:
                transport.broadcast(os.urandom(100_000), ev.Urgency.ANSWER)
                time.sleep(0)


def read_lies(text: str) -> list[str]:
    """The names in a comma-separated list."""
    names = [name for name in text.split(",") if name]
    unknown = [name for name in names if name not in LIES]
    if unknown:
        raise UserError(f"there is no lie {', '.join(unknown)}; there are {', '.join(LIES)}")
    return names


def main() -> None:
    """Run a lying node."""
    parser = argparse.ArgumentParser(
        prog="python -m holdout.node.localnet.lying_node", allow_abbrev=False
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--lies", default="coalition", help=",".join(LIES))
    parser.add_argument("--liars", default="", help="members of the coalition, such as 5,6")
    parser.add_argument("--until", type=int)
    options = parser.parse_args()
    chosen = partial(
        ChosenLies,
        lies=read_lies(options.lies),
        liars=[int(number) for number in options.liars.split(",") if number],
    )
    run_node(options.folder, until=options.until, make_misbehaviour=chosen)


if __name__ == "__main__":
    main()
