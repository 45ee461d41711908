"""Real nodes on loopback: where the time of a round goes, and what it costs.

`python -m bench.node --nodes 20 --model linear` measures other networks. The rows of `make bench`
are seven nodes with the paper's network on the bundled digits, everybody proposing and voting:
waiting on deadlines takes less than 30 % of a round, protocol work at most 0.2 s of CPU per node
and round, and a node receives at most 1.5 times the bytes it needs (each gradient once).
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.measure import Row
from holdout.errors import UserError
from holdout.node.localnet.launcher import LocalnetPlan, LocalNode, prepare, start, stop_all
from holdout.node.membership.genesis import GENESIS, Network
from holdout.node.runtime.status import ask_status

WARM_UP = 3
PARTS = ("compute", "deadlines", "network", "disk", "crypto", "protocol")
MODELS = {"mlp": "mlp", "linear": "holdout.node.demo:linear"}


@dataclass(frozen=True, slots=True)
class Measured:
    """What one round costs, as means over the nodes."""

    nodes: int
    seconds: float
    parts: dict[str, float]
    """Seconds of a round, by what they were spent on; the rest is other work of the machine."""
    cpu: float
    """CPU seconds of the node's process, without its learner."""
    bytes_received: float
    bytes_needed: float
    memory: int
    """Bytes of the largest node, with its learner."""
    delivered: float
    """The share of small messages, in bytes, that arrived."""
    connected: float
    """The share of pairs of nodes that have a connection."""
    periods: float
    """Periods of a round, beyond the first."""

    def describe(self) -> str:
        """All of it in one line."""
        parts = ", ".join(f"{name} {1e3 * self.parts[name]:.0f} ms" for name in PARTS)
        return (
            f"{self.nodes} nodes: {self.seconds:.2f} s a round ({parts});"
            f" {self.cpu:.3f} s CPU a node and round;"
            f" {self.bytes_received / self.bytes_needed:.2f} times the bytes needed;"
            f" {self.memory >> 20} MB; {100 * self.delivered:.2f} % delivered,"
            f" {100 * self.connected:.1f} % connected, {self.periods:.2f} extra periods a round"
        )


def measure(nodes: int = 7, rounds: int = 15, model: str = "mlp", stagger: float = 0.0) -> Measured:
    """Run a healthy network, and compare what its nodes say at two of its rounds."""
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        plan = LocalnetPlan(
            Path(folder) / "net",
            nodes=nodes,
            rounds=WARM_UP + rounds,
            model=MODELS[model],
            delay_ms=500,
        )
        running = prepare(plan)
        try:
            for node in running:
                start(node, plan)
                time.sleep(stagger)
            first = _reached(running, WARM_UP, 120 + 20 * nodes)
            last = _reached(running, plan.rounds, 60 + 20 * rounds)
        finally:
            stop_all(running)
        params = Network.read(running[0].folder / GENESIS).params
        return _compare(first, last, params.payload_bytes)


def _reached(nodes: Sequence[LocalNode], number: int, seconds_max: float) -> list[dict[str, Any]]:
    """What each node says as soon as it has decided this round."""
    found: dict[str, dict[str, Any]] = {}
    end = time.monotonic() + seconds_max
    while len(found) < len(nodes):
        if time.monotonic() > end:
            raise UserError(f"{len(nodes) - len(found)} nodes have not decided round {number}")
        for node in nodes:
            if node.name in found:
                continue
            try:
                status = ask_status(node.folder)
            except UserError:
                continue
            if status["decided"] >= number:
                found[node.name] = {**status, "at": time.monotonic()}
        time.sleep(0.05)
    return [found[node.name] for node in nodes]


def _messages(traffic: dict[str, int]) -> int:
    """The bytes of messages, without blobs."""
    return sum(traffic.values()) - traffic.get("blob", 0)


def _compare(
    first: Sequence[dict[str, Any]], last: Sequence[dict[str, Any]], payload: int
) -> Measured:
    n = len(first)
    pairs = list(zip(first, last, strict=True))

    def mean(of: Callable[[dict[str, Any]], float]) -> float:
        """The mean over the nodes of what a value gained in a round."""
        return statistics.fmean(
            (of(after) - of(before)) / (after["decided"] - before["decided"])
            for before, after in pairs
        )

    sent = sum(_messages(status["bytes"]["sent"]) for status in last)
    received = sum(_messages(status["bytes"]["received"]) for status in last)
    return Measured(
        nodes=n,
        seconds=mean(lambda s: float(s["at"])),
        parts={name: mean(lambda s, name=name: float(s["seconds"][name])) for name in PARTS},  # type: ignore[misc]
        cpu=mean(lambda s: float(s["cpu"]["node"])),
        bytes_received=mean(lambda s: float(sum(s["bytes"]["received"].values()))),
        bytes_needed=float((n - 1) * payload),
        memory=max(sum(status["memory"].values()) for status in last),
        delivered=received / sent,
        connected=sum(len(status["peers"]) for status in last) / (n * (n - 1)),
        periods=mean(lambda s: float(s["periods"])),
    )


def rows() -> list[Row]:
    """The promises: each ratio is what is allowed divided by what was measured."""
    found = measure()
    sys.stderr.write(found.describe() + "\n")
    waiting = found.parts["deadlines"] / found.seconds
    return [
        Row("7 nodes: 30 % of a round / waiting on deadlines", 0.3 / max(waiting, 1e-3), 1.0),
        Row("7 nodes: 0.2 s / protocol CPU of a node and round", 0.2 / found.cpu, 1.0),
        Row(
            "7 nodes: 1.5 times the bytes needed / bytes received",
            1.5 * found.bytes_needed / found.bytes_received,
            1.0,
        ),
    ]


def main() -> None:
    """Measure one network."""
    parser = argparse.ArgumentParser(prog="python -m bench.node", allow_abbrev=False)
    parser.add_argument("--nodes", type=int, default=7)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--model", choices=MODELS, default="mlp")
    parser.add_argument("--stagger", type=float, default=0.0, help="seconds between two starts")
    options = parser.parse_args()
    print(measure(options.nodes, options.rounds, options.model, options.stagger).describe())


if __name__ == "__main__":
    main()
