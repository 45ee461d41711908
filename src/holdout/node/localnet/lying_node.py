"""A node that lies, for rehearsals: `python -m holdout.node.localnet.lying_node`.

A liar is an honest node whose actions pass through the lies below, with a worker whose updates are
an attack (`holdout.node.demo:make_lying_worker`). It has a member's real keys and certificate: what
stops it is what would stop a real liar.
"""

import argparse
import asyncio
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from holdout.agreement import aggregate, wire
from holdout.agreement import events as ev
from holdout.agreement import messages as msg
from holdout.attacks.ballots import BallotView, coalition
from holdout.errors import UserError
from holdout.ids import Digest, ProposalId, WorkerId
from holdout.node.localnet import LIES
from holdout.node.membership.genesis import Network
from holdout.node.membership.identity import Identity
from holdout.node.network.transport import ZenohTransport
from holdout.node.runtime.node import run_node
from holdout.node.runtime.pacing import now
from holdout.node.runtime.service import Service
from holdout.seeds import Stream, stream

REPLAYED = 64
FLOOD_NICE = 19
"""The niceness of a node that floods: a real one has its own machine."""
AUTOGROUP = Path("/proc/self/autogroup")
"""The niceness of the whole session, where Linux shares out processor time by session first."""
AUTOGROUP_TRIES = 20
LATE_SECONDS = 0.1
LATE_FACTOR = 1.6
"""How late a liar is at first, and how much later each round."""
LATE_SECONDS_MAX = 300.0
MARGIN_SECONDS = 0.1
"""How long before others stop waiting a liar sends what they wait for."""
NONSENSE_SECONDS = 0.05
"""The pause between two pieces of nonsense."""
_WAITS = {
    ev.TimerKind.PROPOSALS_END: msg.Kind.UPDATE,
    ev.TimerKind.BALLOTS_END: msg.Kind.BALLOT,
    ev.TimerKind.LEADS_END: msg.Kind.LEAD,
    ev.TimerKind.DEADLINE: msg.Kind.VOTE,
}
"""What each timer ends the wait for."""

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
        self._talking = False
        self._held: dict[int, list[ev.Broadcast]] = {}
        self._ends: dict[int, int] = {}
        self._first_round: int | None = None

    # -- what the driver asks ---------------------------------------------------------------------

    def act(self, actions: Sequence[ev.Action]) -> Sequence[ev.Action]:
        """The player's actions, turned into lies."""
        if "flood" in self._lies and self._flooding is None:
            self._flooding = threading.Thread(target=self._flood, daemon=True)
            self._flooding.start()
        if "nonsense" in self._lies and not self._talking:
            self._talking = True
            self._talk_nonsense()
        done: list[ev.Action] = []
        for action in actions:
            if "silent" in self._lies and isinstance(
                action, ev.Broadcast | ev.Relay | ev.Send | ev.SendBlocks
            ):
                continue
            if isinstance(action, ev.Broadcast) and action.data[0] in _FALSIFIED:
                done += self._in_time(self._say(action))
            else:
                if isinstance(action, ev.SetTimer):
                    self._watch(action)
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

    # -- being late -------------------------------------------------------------------------------

    def _in_time(self, actions: Sequence[ev.Action]) -> Sequence[ev.Action]:
        """What is said at once; the rest is said later, or just before nobody waits any more."""
        if "just-in-time" in self._lies:
            for action in actions:
                if isinstance(action, ev.Broadcast):
                    self._held.setdefault(action.data[0], []).append(action)
            return [action for action in actions if not isinstance(action, ev.Broadcast)]
        if "late" in self._lies:
            number = self._service.player.round
            self._first_round = self._first_round or number
            seconds = LATE_SECONDS * LATE_FACTOR ** min(number - self._first_round, 60)
            self._later(min(seconds, LATE_SECONDS_MAX), partial(self._send, actions))
            return []
        return actions

    def _watch(self, action: ev.SetTimer) -> None:
        """A wait will end then; others wait about as long."""
        kind = _WAITS.get(action.timer.kind)
        if kind is None or "just-in-time" not in self._lies:
            return
        self._ends[kind] = action.at
        seconds = (action.at - now()) / 1e6 - MARGIN_SECONDS
        self._later(max(0.0, seconds), partial(self._let_go, kind, action.at))

    def _let_go(self, kind: int, end: int) -> None:
        if self._ends.get(kind) == end:  # It was not brought forward meanwhile.
            self._send(self._held.pop(kind, []))

    def _send(self, actions: Sequence[ev.Action]) -> None:
        for action in actions:
            if isinstance(action, ev.Broadcast) and not self._service.stopping:
                self._service.gossip.broadcast(action.data, action.urgency)

    def _later(self, seconds: float, do: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_later(seconds, do)

    # -- well-signed nonsense ---------------------------------------------------------------------

    def _talk_nonsense(self) -> None:
        """Say something that is signed as it should be and means nothing, then again."""
        if self._service.stopping:
            return
        chain, worker = self._genesis.chain, self._service.worker
        number, value = self._service.player.round, Digest(os.urandom(32))
        model = self._service.player.model
        size = self._genesis.params.payload_bytes
        transport = self._service.transport
        for kind, part in (
            (msg.Kind.VOTE, msg.vote_part(chain, number + (1 << 40), 0, 1, worker, value)),
            (msg.Kind.VOTE, msg.vote_part(chain, number, 1 << 20, 1, worker, value)),
            (msg.Kind.UPDATE, msg.update_part(chain, number, worker, model, value, size)),
            (msg.Kind.UPDATE, msg.update_part(chain, number, worker, model, value, 1 << 40)),
            (msg.Kind.LEAD, msg.lead_part(chain, number, 1, worker, 1, value)),
        ):
            data = msg.Envelope(kind, part, self._signer.sign(part)).encode()
            transport.broadcast(data, ev.Urgency.VOTE)
        transport.broadcast(os.urandom(1 << 20), ev.Urgency.ANSWER)
        self._later(NONSENSE_SECONDS, self._talk_nonsense)

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


def leave_the_processors_to_others() -> None:
    """Take the processor time that nobody else wants.

    To be called before there are any threads: on Linux, each has its own niceness. Between sessions
    (and every node of a localnet has its own) that niceness counts for nothing if the system groups
    processes by session: then the group's counts.
    """
    os.nice(FLOOD_NICE)
    for _ in range(AUTOGROUP_TRIES):
        try:
            AUTOGROUP.write_text(str(FLOOD_NICE))
        except BlockingIOError:  # Linux takes ten of these changes a second, from all its users.
            time.sleep(0.1)
        except OSError:  # There are no such groups here.
            return
        else:
            return


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
    parser.add_argument(
        "--full-speed",
        action="store_true",
        help="flood with as much of this machine's processors as the other nodes get",
    )
    options = parser.parse_args()
    lies = read_lies(options.lies)
    if "flood" in lies and not options.full_speed:
        leave_the_processors_to_others()
    chosen = partial(
        ChosenLies,
        lies=lies,
        liars=[int(number) for number in options.liars.split(",") if number],
    )
    run_node(options.folder, until=options.until, make_misbehaviour=chosen)


if __name__ == "__main__":
    main()
