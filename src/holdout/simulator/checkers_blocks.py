"""Is a committed block what it should be? A second, slow answer, to compare with the core's.

The lottery, the seed, the roots, the tally and the next model are written here a second time, with
plain Python numbers, fractions and `hashlib`, as plainly as they are defined. Shared with the core
are only the keys and the types that messages are read into.
"""

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from hashlib import sha256

from holdout.agreement.blocks import Block
from holdout.agreement.headers import Header
from holdout.agreement.keys import Verifier
from holdout.agreement.messages import Evidence, SignedMessage, Update
from holdout.agreement.params import Genesis, Mode, Params, RoleDraw, TallyRule
from holdout.agreement.wire import open_envelope
from holdout.ids import Digest

ZEROS = bytes(32)
STEP, NOOP = 2, 1


def text(value: str) -> bytes:
    """A string as it is hashed: its length, then its letters."""
    return struct.pack(">I", len(value)) + value.encode()


def sized(value: bytes) -> bytes:
    """Bytes as they are hashed: their length, then themselves."""
    return struct.pack(">I", len(value)) + value


def hashed(tag: str, *fields: bytes) -> bytes:
    """The hash H(tag, fields)."""
    return sha256(text(tag) + b"".join(fields)).digest()


@dataclass(slots=True)
class Chain:
    """The rounds that the checker has seen decided."""

    genesis: Genesis
    verifier: Verifier
    headers: dict[int, Header] = field(default_factory=dict)
    _drawn: dict[tuple[int, str, int, int, int], bool] = field(default_factory=dict)
    _shuffles: dict[tuple[int, str | int], tuple[int, ...]] = field(default_factory=dict)

    # -- the lottery ----------------------------------------------------------------------------

    def seed(self, number: int) -> bytes | None:
        """The seed Q of a round; None if the round is not decided yet."""
        if number <= 0:
            which = 0 if number == 0 else 1
            return hashed("seed-genesis", sized(self.genesis.chain), bytes([which]))
        header = self.headers.get(number)
        return None if header is None else header.seed

    def drawn(self, number: int, role: str, worker: int, period: int = 0, step: int = 0) -> bool:
        """Whether a worker was drawn for a role (P, V, L or C)."""
        key = (number, role, worker, period, step)
        known = self._drawn.get(key)
        if known is None:
            known = self._drawn[key] = self._draw(number, role, worker, period, step)
        return known

    def _draw(self, number: int, role: str, worker: int, period: int, step: int) -> bool:
        params = self.genesis.params
        size = {
            "P": params.proposers,
            "V": params.voters,
            "L": params.leaders,
            "C": params.committee,
        }[role]
        if role == "C" and params.mode is Mode.ALL:
            return True
        if role == "C" and params.mode is Mode.SHUFFLE:
            return worker in self._shuffled(number, period, size)
        if role in "PV" and params.role_draw is RoleDraw.FIXED:
            return worker in self._shuffled(number, role, min(size, params.workers))
        if size >= params.workers:
            return True
        out = self._output(number, role, worker, period, step)
        number_drawn = int.from_bytes(
            hashed("ticket", sized(out), struct.pack(">I", worker)), "big"
        )
        return Fraction(number_drawn, 2**256) < Fraction(
            math.floor(Fraction(size * 2**256, params.workers)), 2**256
        )

    def _output(self, number: int, role: str, worker: int, period: int, step: int) -> bytes:
        seed = self.seed(number - self.genesis.params.lookback)
        assert seed is not None  # noqa: S101  # Nobody can speak in a round before its seed is known.
        alpha = b"".join(
            [
                text("sortition"),
                sized(self.genesis.chain),
                sized(seed),
                struct.pack(">Q", number),
                text(role),
                struct.pack(">IB", period, step),
            ]
        )
        out = self.verifier.vrf(self.genesis.roster[worker].vrf, alpha, b"")
        assert out is not None  # noqa: S101  # Simulated proofs are empty.
        return out

    def _shuffled(self, number: int, label: str | int, size: int) -> tuple[int, ...]:
        known = self._shuffles.get((number, label))
        if known is None:
            seed = self.seed(number - self.genesis.params.lookback)
            assert seed is not None  # noqa: S101
            name = struct.pack(">I", label) if isinstance(label, int) else text(label)
            start = sized(self.genesis.chain) + sized(seed) + struct.pack(">Q", number) + name
            order = sorted(
                range(self.genesis.params.workers),
                key=lambda worker: hashed("shuffle", start, struct.pack(">I", worker)),
            )
            known = self._shuffles[number, label] = tuple(order[:size])
        return known

    # -- a block ----------------------------------------------------------------------------------

    def header_faults(self, header: Header) -> list[str]:
        """What is wrong with the next header: links, seed, leader (I8)."""
        faults = []
        number, params = header.round, self.genesis.params
        before = self.headers.get(number - 1)
        previous = self.genesis.chain if before is None else header_digest(before)
        if number != 1 and before is None:
            faults.append(f"round {number} is decided before round {number - 1}")
        if header.previous != previous:
            faults.append("it does not follow the previous block")
        if header.chain != self.genesis.chain:
            faults.append("it belongs to another network")
        model = params.model_first if before is None else before.model
        steps = 0 if before is None else before.steps
        if header.model_previous != model or header.steps != steps + (header.kind == STEP):
            faults.append("it does not continue from the previous model")
        if header.seed != self._next_seed(header):
            faults.append("its seed is wrong")
        if not self.drawn(number, "L", header.leader, header.original_period):
            faults.append("its leader was not drawn")
        return faults

    def _next_seed(self, header: Header) -> bytes | None:
        number, params = header.round, self.genesis.params
        seed_in = self.seed(number - params.lookback)
        if seed_in is None:
            return None
        if header.original_period == 0:
            alpha = (
                text("seed")
                + sized(self.genesis.chain)
                + struct.pack(">Q", number)
                + sized(seed_in)
            )
            key = self.genesis.roster[header.leader].vrf
            out = self.verifier.vrf(key, alpha, header.seed_proof)
            if out is None:
                return None
            moved = hashed("seed-vrf", sized(out), struct.pack(">I", header.leader))
        elif header.seed_proof:
            return None
        else:
            moved = hashed("seed-hash", struct.pack(">Q", number), sized(seed_in))
        interval = params.lookback * params.refresh
        old = ZEROS
        if number % interval < params.lookback and number > interval:
            old = header_digest(self.headers[number - interval])
        return hashed("seed-next", sized(moved), sized(old))

    def body_faults(
        self, block: Block, blobs: Callable[[Digest], bytes | None], liars: Sequence[int]
    ) -> list[str]:
        """What is wrong with a block's messages, tally and model (I4)."""
        header = block.header
        before = self.headers.get(header.round - 1)
        radius = self.genesis.params.radius_first if before is None else before.radius
        faults = self._message_faults(block)
        if body_roots(block) != (
            header.updates_root,
            header.ballots_root,
            header.selection_root,
            header.evidence_root,
        ):
            faults.append("its roots do not match its body")
        return faults or self._outcome_faults(block, blobs, liars, radius)

    def _message_faults(self, block: Block) -> list[str]:
        faults = []
        number, model = block.header.round, block.header.model_previous
        for role, messages in (("P", block.updates), ("V", block.ballots)):
            workers = [message.worker for message in messages]
            if workers != sorted(set(workers)):
                faults.append(f"its messages of role {role} are not sorted by worker, one for each")
            for message in messages:
                envelope = message.envelope
                key = self.genesis.roster[message.worker].signing
                if (message.chain, message.round, message.model) != (
                    self.genesis.chain,
                    number,
                    model,
                ):
                    faults.append(f"the message of {message.worker} belongs to another round")
                if not self.verifier.signature(key, envelope.signed, envelope.signature):
                    faults.append(f"the message of {message.worker} is forged")
                if envelope.proof or not self.drawn(number, role, message.worker):
                    faults.append(f"{message.worker} was not drawn for role {role}")
        faults += [
            "its evidence proves nothing" for e in block.evidence if not self._proves(e, number)
        ]
        return faults

    def _proves(self, evidence: Evidence, number: int) -> bool:
        first, second = open_envelope(evidence.first), open_envelope(evidence.second)
        if not (_slot(first) == _slot(second) and evidence.first.signed != evidence.second.signed):
            return False
        if not isinstance(first, SignedMessage) or first.round != number:
            return False
        key = self.genesis.roster[first.worker].signing
        return all(
            self.verifier.signature(key, envelope.signed, envelope.signature)
            for envelope in (evidence.first, evidence.second)
        )

    def _outcome_faults(
        self,
        block: Block,
        blobs: Callable[[Digest], bytes | None],
        liars: Sequence[int],
        radius: float,
    ) -> list[str]:
        params, header = self.genesis.params, block.header
        convicted = {open_envelope(item.first).worker for item in block.evidence}
        ballots = {
            ballot.worker: [
                (entry.proposer, entry.update_id)
                for entry in ballot.entries
                if entry.proposer not in convicted
            ]
            for ballot in block.ballots
            if ballot.worker not in convicted
        }
        updates = {update.worker: update for update in block.updates}
        named = {name for names in ballots.values() for name in names}
        if named != {(worker, _update_id(update)) for worker, update in updates.items()}:
            return ["its updates are not those that its ballots name"]
        passing = passing_updates(
            [[proposer for proposer, _ in names] for names in ballots.values()],
            sorted(updates),
            f=params.f,
            floor=params.byzantine_voters_max,
            completion=params.tally is TallyRule.COMPLETION,
        )
        chosen: dict[Digest, tuple[int, int, bytes]] = {}
        if len(ballots) >= params.ballots_min:
            for proposer, approvals in passing:
                update = updates[proposer]
                payload = blobs(update.payload)
                if payload is None and update.size == params.payload_bytes:
                    return [
                        f"no honest worker holds the payload of {proposer}, which passed the tally"
                    ]
                if payload is not None and payload_is_valid(payload, params):
                    chosen.setdefault(update.payload, (proposer, approvals, payload))
        model = blobs(header.model_previous)
        if model is None:
            return ["no honest worker holds the model that it continues from"]
        wanted = sorted(chosen.values())
        result = (
            next_model(model, [p for _, _, p in wanted], radius, params.rate(header.steps))
            if wanted and header.steps
            else None
        )
        outcome: tuple[int, tuple[tuple[int, int], ...], bytes, float]
        if result is None:
            outcome = (NOOP, (), header.model_previous, radius)
        else:
            outcome = (
                STEP,
                tuple((proposer, approvals) for proposer, approvals, _ in wanted),
                model_digest(params.shapes, result[0]),
                result[1],
            )
        faults = []
        if outcome != (int(header.kind), block.selection, header.model, header.radius):
            faults.append("its outcome does not follow from its body")
        if sum(voter in liars for voter in ballots) <= params.byzantine_voters_max:
            faults += [
                f"no honest voter approved the update of {proposer}"
                for proposer, _ in block.selection
                if params.byzantine_voters_max
                and not any(
                    proposer in [name for name, _ in names]
                    for voter, names in ballots.items()
                    if voter not in liars
                )
            ]
        return faults


# ------------------------------------------------------------------------------------ definitions


def passing_updates(
    ballots: Sequence[Sequence[int]],
    updates: Sequence[int],
    *,
    f: Fraction,
    floor: int,
    completion: bool,
) -> list[tuple[int, int]]:
    """(proposer, approvals) of each update with enough approvals, completed ones included."""
    full = math.ceil((1 - f) * len(updates))
    found = []
    for update in updates:
        approvals = sum(update in ballot for ballot in ballots)
        score = Fraction(approvals)
        for ballot in ballots:
            if completion and update not in ballot and len(ballot) < full:
                score += Fraction(full - len(ballot), len(updates) - len(ballot))
        if score >= (1 - f) * len(ballots) and approvals >= floor + 1:
            found.append((update, approvals))
    return found


def payload_is_valid(payload: bytes, params: Params) -> bool:
    """Whether a payload has the right length and finite, small enough, canonical coordinates."""
    if len(payload) != 4 * params.dimension:
        return False
    for (value,) in struct.iter_unpack("<f", payload):
        if not math.isfinite(value) or abs(value) > params.coordinate_max:
            return False
        if (value == 0 and math.copysign(1, value) < 0) or 0 < abs(value) < 2**-126:
            return False
    return True


def next_model(
    model: bytes, payloads: Sequence[bytes], radius: float, rate: float
) -> tuple[bytes, float] | None:
    """The step along the mean of the payloads, each clipped to the radius; None: no step."""
    vectors = [[value for (value,) in struct.iter_unpack("<f", payload)] for payload in payloads]
    norms = [tree_norm(vector) for vector in vectors]
    total = [0.0] * len(vectors[0])
    for vector, norm in zip(vectors, norms, strict=True):
        scale = radius / norm if radius and norm > radius else 1.0
        total = [t + scale * x for t, x in zip(total, vector, strict=True)]
    weights = []
    for (weight,), summed in zip(struct.iter_unpack("<f", model), total, strict=True):
        moved = weight - rate * (summed / float(len(payloads)))
        weights.append(0.0 if abs(moved) < 2**-126 else moved)
    try:
        data = struct.pack(f"<{len(weights)}f", *weights)
    except OverflowError:
        return None
    middle = sorted(norms)[math.ceil(len(norms) / 2) - 1]
    if radius:
        middle = max(min(max(middle, radius / 1.5), 1.5 * radius), 2.0**-126)
    return data, middle


def tree_norm(vector: Sequence[float]) -> float:
    """The norm; squares are padded to a power of two and summed as a tree."""
    squares = [value * value for value in vector]
    while len(squares) & (len(squares) - 1):
        squares.append(0.0)
    while len(squares) > 1:
        half = len(squares) // 2
        squares = [a + b for a, b in zip(squares[:half], squares[half:], strict=True)]
    return math.sqrt(squares[0])


def model_digest(shapes: Sequence[Sequence[int]], data: bytes) -> bytes:
    """The digest by which a model is named."""
    table = _listed([_listed([struct.pack(">I", side) for side in shape]) for shape in shapes])
    return hashed("model", table, sized(data))


def header_digest(header: Header) -> bytes:
    """The digest by which a block is named."""
    return hashed("block", sized(header.encode()))


def body_roots(block: Block) -> tuple[bytes, ...]:
    """The four roots that a header must have for this body."""
    parts: Mapping[str, list[bytes]] = {
        "updates": [update.envelope.encode() for update in block.updates],
        "ballots": [ballot.envelope.encode() for ballot in block.ballots],
        "selection": [struct.pack(">II", *chosen) for chosen in block.selection],
        "evidence": [item.encode_bare() for item in block.evidence],
    }
    return tuple(
        hashed(f"{name}-root", _listed([sized(hashed("item", sized(item))) for item in listed]))
        for name, listed in parts.items()
    )


def _listed(encoded: Sequence[bytes]) -> bytes:
    return struct.pack(">I", len(encoded)) + b"".join(encoded)


def _update_id(update: Update) -> bytes:
    return hashed("upd", sized(update.envelope.signed))


def _slot(message: object) -> tuple[object, ...]:
    names = ("worker", "round", "period", "step")
    return (type(message), *(getattr(message, name, None) for name in names))
