"""Agreement without a server: how fast it is simulated, what it costs a node, what it sends.

    python -m bench.agreement           the rows below, and the traffic against n as table and plot

Learning is a toy here (`ToyLearner`): what is measured is the protocol.
"""

import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from bench.measure import Row
from holdout.agreement import safety
from holdout.agreement.aggregate import payload_digest
from holdout.agreement.ed25519 import Ed25519Signer, Ed25519Verifier
from holdout.agreement.events import (
    BlobKind,
    Combine,
    Event,
    Judge,
    ModelReady,
    Propose,
    Start,
    Want,
)
from holdout.agreement.keys import MemoVerifier, Signer, SimulatedKeys
from holdout.agreement.messages import Kind
from holdout.agreement.params import Mode, Params, Timing
from holdout.agreement.player import Player
from holdout.ids import Digest
from holdout.seeds import stream
from holdout.simulator.cluster import Cluster, found, usual_params
from holdout.simulator.faults import RunType
from holdout.simulator.nodes import SimulatedNode
from holdout.simulator.storage import SimulatedFetcher
from holdout.simulator.toy_learners import Learner, ToyLearner
from holdout.simulator.trial import Trial, run_trial

SAFETY_RUNS, SAFETY_RUNS_A_MINUTE = 60, 1000
LARGE, ROUNDS, SECONDS = 100, 10, 60.0
NODE_SECONDS = 0.3
F = Fraction(1, 5)

PAYLOAD = 4 * 79_510
"""A gradient of the paper's MNIST network."""
TRAFFIC = (
    (10, Mode.ALL),
    (30, Mode.ALL),
    (100, Mode.ALL),
    (300, Mode.ALL),
    (1000, Mode.SHUFFLE),
)
FIGURE = Path(__file__).with_name("traffic.png")


def rows() -> list[Row]:
    """The rows of the benchmark: how many times faster than promised."""
    console = Console(width=150)
    made = [_safety(), _rounds(), _node(console)]
    traffic = [measure_traffic(n, mode) for n, mode in TRAFFIC]
    console.print(traffic_table(traffic))
    plot(traffic, FIGURE)
    return made


# ---------------------------------------------------------------------------------------- seconds


def _safety() -> Row:
    """One-round safety runs with all faults at n = 4, on one core."""
    trial = Trial(4, Fraction(1, 4), run_type=RunType.SAFETY)
    run_trial(trial, 0)
    started = time.process_time()
    for seed in range(SAFETY_RUNS):
        run_trial(trial, seed)
    a_minute = 60 * SAFETY_RUNS / (time.process_time() - started)
    return Row(
        f"safety runs of one round, n = 4: a minute / {SAFETY_RUNS_A_MINUTE}",
        a_minute / SAFETY_RUNS_A_MINUTE,
        1.0,
    )


def _rounds() -> Row:
    params, keys = usual_params(LARGE, F), SimulatedKeys(0, LARGE)
    cluster = Cluster(found(params, keys, 0), keys, 0)
    started = time.process_time()
    cluster.start()
    cluster.run(done=lambda c: c.all_committed(ROUNDS))
    seconds = time.process_time() - started
    name = f"{ROUNDS} rounds, n = {LARGE}, mode all, on one core: {SECONDS:.0f} s / seconds"
    return Row(name, SECONDS / seconds, 1.0)


# --------------------------------------------------------------------------- what it costs a node


class RealKeys(SimulatedKeys):
    """The keys of a cluster with real cryptography; its workers share one verifier."""

    def __init__(self, seed: int, n: int) -> None:
        self._real = tuple(
            Ed25519Signer.from_seeds(*(_seed(seed, kind, i) for kind in ("signing", "VRF")))
            for i in range(n)
        )
        self._shared = MemoVerifier(Ed25519Verifier())

    def signer(self, worker: int) -> Signer:
        """The secret keys of one worker."""
        return self._real[worker]

    def verifier(self) -> MemoVerifier:
        """The verifier of everybody."""
        return self._shared


def _seed(seed: int, kind: str, worker: int) -> bytes:
    words = stream(seed, kind, worker)
    return b"".join(words.below(1 << 64).to_bytes(8, "big") for _ in range(4))


class _Recorder:
    """A player that remembers what it was told, and when."""

    def __init__(self, player: Player) -> None:
        self._player = player
        self.told: list[tuple[Event, int]] = []

    def handle(self, event: Event, now: int) -> Any:
        self.told.append((event, now))
        return self._player.handle(event, now)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._player, name)


def _node(console: Console) -> Row:
    """Replays the round of one worker alone, with real cryptography and nothing shared."""
    params, keys = usual_params(LARGE, F), RealKeys(0, LARGE)
    genesis = found(params, keys, 0)
    cluster = Cluster(genesis, keys, 0)
    cluster.start()
    recorders = []
    for node in cluster.nodes[:3]:
        recorder = _Recorder(node.player)
        node.player = recorder  # type: ignore[assignment]  # It answers as a player does.
        recorders.append(recorder)
    cluster.run(done=lambda c: c.all_committed(1))
    first, spent = safety.initial(genesis), []
    for worker, recorder in enumerate(recorders):
        verifier = MemoVerifier(Ed25519Verifier())
        player = Player(
            genesis, worker, keys.signer(worker), verifier, timing=Timing(), safety=first
        )
        started = time.process_time()
        player.handle(Start(bytes(32)), 0)
        player.handle(ModelReady(params.model_first), 0)
        for event, now in recorder.told:
            player.handle(event, now)
            if player.round > 1:
                break
        spent.append(time.process_time() - started)
        console.print(
            f"n = {LARGE}, real keys, worker {worker}: {1000 * spent[-1]:.0f} ms in a round, "
            f"{verifier.signature_checks} signatures and {verifier.vrf_checks} VRF proofs checked "
            f"({1000 * _check_seconds(keys, verifier):.0f} ms of it), "
            f"{len(recorder.told)} events"
        )
    name = f"CPU of a node in a round, n = {LARGE}, real keys: {NODE_SECONDS} s / seconds"
    return Row(name, NODE_SECONDS / statistics.median(spent), 1.0)


def _check_seconds(keys: RealKeys, asked: MemoVerifier) -> float:
    """About how long these checks take on this machine."""
    real, signer = Ed25519Verifier(), keys.signer(0)
    message, repetitions = bytes(150), 50
    signature, (proof, _) = signer.sign(message), signer.prove(message)
    started = time.process_time()
    for _ in range(repetitions):
        real.signature(signer.public.signing, message, signature)
    between = time.process_time()
    for _ in range(repetitions):
        real.vrf(signer.public.vrf, message, proof)
    ended = time.process_time()
    return (
        asked.signature_checks * (between - started) + asked.vrf_checks * (ended - between)
    ) / repetitions


# ---------------------------------------------------------------------------------------- traffic


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a round of n workers sends in total, and what its sizes let one expect."""

    n: int
    mode: Mode
    params: Params
    messages: int
    by_kind: dict[str, int]
    """Bytes of messages that are no blobs, by kind."""
    bodies: int
    """Bytes of block bodies, and of questions for blobs."""
    gradients: int
    """How many gradients were fetched."""
    models: int
    """How many workers fetched the new model instead of computing it."""
    seconds: float
    """CPU time of the simulation."""

    @property
    def small(self) -> int:
        """Bytes without gradients."""
        return sum(self.by_kind.values()) + self.bodies

    @property
    def total(self) -> int:
        """Bytes with gradients and models of the paper's MNIST network."""
        return self.small + (self.gradients + self.models) * PAYLOAD

    def expected_gradients(self) -> float:
        """How many gradients one worker fetches on average: all, if its roles need any."""
        p = self.params
        roles = (p.voters, p.leaders, p.workers if p.mode is not Mode.SHUFFLE else p.committee)
        without = math.prod(1 - min(1.0, size / p.workers) for size in roles)
        return (1 - without) * p.proposers

    def expected(self) -> dict[str, float]:
        """Bytes that one worker should receive if each message reached it once, by kind."""
        p = self.params
        members = p.workers if p.mode is Mode.ALL else p.committee
        return {
            "update": 210 * p.proposers,
            "ballot": (180 + 36 * p.approve_count(p.proposers)) * p.voters,
            "lead": 250 * p.leaders,
            "vote": 130 * 2 * members,
            "certificate": 68 * p.quorum,
        }


_NAMES = {
    Kind.UPDATE: "update",
    Kind.BALLOT: "ballot",
    Kind.LEAD: "lead",
    Kind.VOTE: "vote",
    Kind.FINISHED: "certificate",
}


class _Announced:
    """Makes learners, and remembers the digests of the gradients of round 1."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self.payloads: dict[Digest, None] = {}

    def __call__(self, worker: int, life: int) -> Learner:
        learner = ToyLearner(self._seed, worker, life)
        propose = learner.propose

        def watched(job: Propose, model: bytes) -> bytes | None:
            payload = propose(job, model)
            if payload is not None and job.round == 1:
                self.payloads[payload_digest(payload)] = None
            return payload

        return _Watched(learner, watched)


@dataclass(frozen=True, slots=True)
class _Watched:
    learner: Learner
    propose: Callable[[Propose, bytes], bytes | None]

    def judge(self, job: Judge, model: bytes, payloads: Sequence[bytes]) -> tuple[int, ...] | None:
        return self.learner.judge(job, model, payloads)

    def combine(
        self, job: Combine, model: bytes, payloads: Sequence[bytes]
    ) -> tuple[bytes | None, float]:
        return self.learner.combine(job, model, payloads)


class _Counting(SimulatedFetcher):
    """Remembers who asked for a model."""

    __slots__ = ("_askers",)

    def __init__(self, node: SimulatedNode, askers: dict[int, None]) -> None:
        super().__init__(node)
        self._askers = askers

    def want(self, action: Want) -> None:
        if action.kind is BlobKind.MODEL:
            self._askers[self._node.index] = None
        super().want(action)


def measure_traffic(n: int, mode: Mode) -> Traffic:
    """One round in calm weather, everybody honest."""
    params, keys = usual_params(n, F, mode), SimulatedKeys(0, n)
    announced = _Announced(0)
    cluster = Cluster(found(params, keys, 0), keys, 0, learners=announced)
    askers: dict[int, None] = {}
    for node in cluster.nodes:
        node.fetcher = _Counting(node, askers)
    by_kind = Counter[str]()

    def tap(_source: int, _target: int, data: bytes) -> int:
        by_kind[_NAMES.get(Kind(data[0]), "other")] += len(data)
        return 0

    cluster.network.tap = tap
    started = time.process_time()
    cluster.start()
    cluster.run(done=lambda c: c.all_committed(1))
    seconds = time.process_time() - started
    held = sum(
        node.memory.get(digest) is not None
        for node in cluster.nodes
        for digest in announced.payloads
    )
    gradients = held - len(announced.payloads)
    blobs = cluster.network.bytes - sum(by_kind.values())
    return Traffic(
        n=n,
        mode=mode,
        params=params,
        messages=cluster.network.messages,
        by_kind=dict(by_kind),
        bodies=blobs - (gradients + len(askers)) * params.payload_bytes,
        gradients=gradients,
        models=len(askers),
        seconds=seconds,
    )


def traffic_table(traffic: Sequence[Traffic]) -> Table:
    """What one worker receives, in brackets what is expected without duplicates."""
    table = Table(
        title=f"A round without a server, f = {F}: received by one worker, kB "
        "(in brackets: expected once each)",
        caption="gradients: of the paper's MNIST network, 318 kB each; the last columns are all "
        "workers together, the very last one with gradients and with models that were fetched",
    )
    kinds = ("update", "ballot", "lead", "vote", "certificate", "other")
    for name in ("n", "mode", *kinds, "bodies", "gradients", "messages", "MB", "MB with gradients"):
        table.add_column(name, justify="right")
    table.add_column("CPU s", justify="right")
    for item in traffic:
        expected = item.expected()
        table.add_row(
            str(item.n),
            item.mode.value,
            *(
                _kilobytes(item.by_kind.get(kind, 0) / item.n)
                + (f" ({_kilobytes(expected[kind])})" if kind in expected else "")
                for kind in kinds
            ),
            _kilobytes(item.bodies / item.n),
            f"{item.gradients / item.n:.1f} ({item.expected_gradients():.1f})",
            f"{item.messages:,}",
            f"{item.small / 1e6:,.1f}",
            f"{item.total / 1e6:,.0f}",
            f"{item.seconds:.1f}",
        )
    return table


def _kilobytes(count: float) -> str:
    return f"{count / 1000:,.1f}"


def plot(traffic: Sequence[Traffic], path: Path) -> None:
    """Messages and bytes of the whole network against n, on logarithmic axes."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    workers = [item.n for item in traffic]
    left.plot(workers, [item.messages for item in traffic], marker="o")
    left.set_title("messages a round")
    right.plot(workers, [item.small for item in traffic], marker="o", label="without gradients")
    right.plot(workers, [item.total for item in traffic], marker="s", label="with gradients")
    right.plot(
        workers,
        [item.n * sum(item.expected().values()) for item in traffic],
        linestyle="--",
        label="expected, each once, no bodies",
    )
    right.plot(
        workers,
        [item.n * item.expected_gradients() * PAYLOAD for item in traffic],
        linestyle=":",
        label="expected, gradients alone",
    )
    right.set_title("bytes a round")
    right.legend(loc="lower right", bbox_to_anchor=(0.88, 0.0), fontsize="small")
    for axes in (left, right):
        axes.set(xscale="log", yscale="log", xlabel="workers")
        axes.grid(visible=True, which="both", alpha=0.3)
        low, _ = axes.get_ylim()
        for item in traffic:
            if item.mode is not Mode.ALL:
                axes.axvline(item.n, color="grey", linestyle=":")
                axes.text(0.93 * item.n, 1.3 * low, f"mode {item.mode}", rotation=90, ha="right")
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    for row in rows():
        print(f"{row.name}: {row.ratio:.2f} (target {row.target:.2f})")
