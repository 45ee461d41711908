"""What one member can cost the others: attacks by insiders on real nodes, on loopback.

`python -m bench.insider` runs a healthy network, then the same network under each attack, then the
healthy one again, and prints how many times longer a round takes under each attack; `--attack late`
runs one alone. Read the ratios: all of one run share one machine. Liars run on it as well, so a
flood is also felt as a lack of processor time; flooding nodes get what the others leave over.
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

from holdout.errors import UserError
from holdout.node.localnet.launcher import LocalnetPlan, LocalNode, prepare, start, stop_all
from holdout.node.membership.settings import SETTINGS
from holdout.node.runtime.status import ask_status

WARM_UP = 2
RESTART_SECONDS = 6.0
SECONDS_MAX = 180.0
"""How long one attack may take; the rounds that were decided until then count."""


@dataclass(frozen=True, slots=True)
class Attack:
    """What an insider does, and how many times longer a round may take for that."""

    lies: tuple[str, ...] = ()
    times_max: float = 2.0
    restarted: bool = False
    """The last member is killed and started again, every six seconds."""
    down: bool = False
    """The last member never runs."""
    broken: bool = False
    """The last member's worker cannot be started."""


ATTACKS = {
    "late": Attack(("late",), 3.0),
    "just-in-time": Attack(("just-in-time",), 3.0),
    "withhold": Attack(("withhold",), 2.0),
    "silent": Attack(("silent",), 2.0),
    "nonsense": Attack(("nonsense",), 2.0),
    "flood": Attack(("flood",), 2.0),
    "down": Attack(down=True),
    "restart": Attack(restarted=True),
    "broken-worker": Attack(broken=True),
}


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast the honest members of a network were."""

    seconds: float
    """Of a round."""
    cores: float
    """Processor time of an honest node, without its learner, for each second."""
    rounds: int
    slow: str
    """Whom the first member names slow."""


def measure(attack: Attack, *, nodes: int, rounds: int) -> Pace:
    """Run a network under this attack, B of its members lying, and see how fast it goes."""
    byzantine = (nodes - 1) // 3 if attack.lies else 0
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        plan = LocalnetPlan(
            Path(folder) / "net",
            nodes=nodes,
            byzantine=byzantine,
            rounds=1_000_000,
            lies=attack.lies,
            delay_ms=500,
        )
        running = prepare(plan)
        last = running[-1]
        if attack.broken:
            settings = last.folder / SETTINGS
            text = settings.read_text("utf-8")
            settings.write_text(text.replace("holdout.node.demo:make_worker", "nowhere:nothing"))
        try:
            for node in running:
                if not (attack.down and node is last):
                    start(node, plan)
            watched = running[: nodes - max(byzantine, 1)]
            return _watch(watched, rounds, _restarting(last, plan) if attack.restarted else _rest)
        finally:
            stop_all(running)


def _rest() -> None:
    time.sleep(0.05)


def _restarting(node: LocalNode, plan: LocalnetPlan) -> Callable[[], None]:
    """Rest, and now and then kill this node and start it again."""
    due = time.monotonic() + RESTART_SECONDS

    def rest() -> None:
        nonlocal due
        _rest()
        if time.monotonic() >= due and node.process is not None:
            due += RESTART_SECONDS
            node.process.kill()
            node.process.wait()
            start(node, plan)

    return rest


def _watch(nodes: Sequence[LocalNode], rounds: int, rest: Callable[[], None]) -> Pace:
    """Compare what these nodes say after the first rounds and after some more."""
    first = _reached(nodes, WARM_UP, rest)
    last = _reached(nodes, first[0]["decided"] + rounds, rest)
    pairs = list(zip(first, last, strict=True))
    done = min(after["decided"] - before["decided"] for before, after in pairs)
    return Pace(
        statistics.fmean(
            (after["at"] - before["at"]) / max(1, after["decided"] - before["decided"])
            for before, after in pairs
        ),
        statistics.fmean(
            (after["cpu"]["node"] - before["cpu"]["node"]) / (after["at"] - before["at"])
            for before, after in pairs
        ),
        done,
        ", ".join(last[0].get("slow", ())),
    )


def _reached(
    nodes: Sequence[LocalNode], number: int, rest: Callable[[], None]
) -> list[dict[str, Any]]:
    """What each node says as soon as it has decided this round, or when the time is up."""
    found: dict[str, dict[str, Any]] = {}
    newest: dict[str, dict[str, Any]] = {}
    end = time.monotonic() + SECONDS_MAX
    while len(found) < len(nodes) and time.monotonic() < end:
        for node in nodes:
            if node.name in found:
                continue
            try:
                newest[node.name] = {**ask_status(node.folder), "at": time.monotonic()}
            except UserError:
                continue
            if newest[node.name]["decided"] >= number:
                found[node.name] = newest[node.name]
        rest()
    if len(newest) < len(nodes):
        raise UserError("some nodes do not answer")
    return [found.get(node.name, newest[node.name]) for node in nodes]


def main() -> int:
    """Print the slow-down of each attack; 1: one of them costs more than it may."""
    parser = argparse.ArgumentParser(prog="python -m bench.insider", description=__doc__)
    parser.add_argument("--attack", action="append", choices=tuple(ATTACKS), help="only this one")
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=50, help="how many rounds are timed")
    options = parser.parse_args()
    chosen = options.attack or list(ATTACKS)
    sizes = {"nodes": options.nodes, "rounds": options.rounds}
    before = measure(Attack(), **sizes)
    _say("nobody", before, None, None)
    found = {}
    for name in chosen:
        found[name] = measure(ATTACKS[name], **sizes)
        _say(name, found[name], found[name].seconds / before.seconds, ATTACKS[name].times_max)
    after = measure(Attack(), **sizes)
    _say("nobody, again", after, after.seconds / before.seconds, None)
    honest = (before.seconds + after.seconds) / 2
    too_slow = [name for name in chosen if found[name].seconds > ATTACKS[name].times_max * honest]
    cores = max(found[name].cores for name in chosen) - min(before.cores, after.cores)
    print(f"extra processor time of an honest node: at most {cores:.2f} of a core")
    print(f"too slow: {', '.join(too_slow)}" if too_slow else "no attack costs more than it may")
    return 1 if too_slow else 0


def _say(name: str, pace: Pace, times: float | None, times_max: float | None) -> None:
    text = f"{name:14} {pace.seconds:6.2f} s a round, {pace.cores:.2f} cores a node"
    if times is not None:
        text += f", {times:.2f} times"
    if times_max is not None:
        text += f" (at most {times_max:g})"
    if pace.slow:
        text += f"; slow: {pace.slow}"
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
