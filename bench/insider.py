"""What one member can cost the others: attacks by insiders on real nodes, on loopback.

`python -m bench.insider` runs a healthy network, then the same network under each attack, then the
healthy one again, and prints how many times longer a round takes under each attack; `--attack late`
runs one alone. Read the ratios: all of one run share one machine.

A real flooder has a machine of its own; here it shares two cores with its victims. So a flood is
shown three times:

- `flood`: the flooder gets the processor time that the others leave over. What is left is what a
  flood costs by being received. This row has a limit.
- `flood-beside`: it gets as much of this machine as any other node, and takes it.
- `burn`: no flood at all. The last member is away, and a process that sends nothing takes as much
  processor time as that flooder did. What `flood-beside` costs beyond this is the flood's doing.
"""

import argparse
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdout.errors import UserError
from holdout.node.localnet.launcher import LocalnetPlan, LocalNode, prepare, start, stop_all
from holdout.node.membership.settings import SETTINGS
from holdout.node.runtime.status import ask_status

WARM_UP = 2
RESTART_SECONDS = 6.0
LOOK_SECONDS = 0.25
"""How often nodes are asked for their status: each answer has them count their memory."""
SECONDS_MAX = 180.0
"""How long one attack may take; the rounds that were decided until then count."""


@dataclass(frozen=True, slots=True)
class Attack:
    """What an insider does, and how many times longer a round may take for that."""

    lies: tuple[str, ...] = ()
    times_max: float | None = 2.0
    """None: it is shown, to compare with."""
    restarted: bool = False
    """The last member is killed and started again, every six seconds."""
    down: bool = False
    """The last member never runs."""
    broken: bool = False
    """The last member's worker cannot be started."""
    full_speed: bool = False
    """Liars that flood get as much of this machine as others, not just the rest."""
    burns: bool = False
    """A process that sends nothing takes as much processor time as the last liar measured."""


ATTACKS = {
    "late": Attack(("late",), 3.0),
    "just-in-time": Attack(("just-in-time",), 3.0),
    "withhold": Attack(("withhold",), 2.0),
    "silent": Attack(("silent",), 2.0),
    "nonsense": Attack(("nonsense",), 2.0),
    "flood": Attack(("flood",), 2.0),
    "flood-beside": Attack(("flood",), None, full_speed=True),
    "burn": Attack((), None, down=True, burns=True),
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
    beside: float
    """Processor time of a liar and its learner, or of what burns it instead; else nan."""


def measure(attack: Attack, *, nodes: int, rounds: int, burnt: float) -> Pace:
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
            full_speed=attack.full_speed,
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
            rest = _restarting(last, plan) if attack.restarted else _rest
            with _burning(burnt if attack.burns else 0.0) as burner:
                return _watch(watched, rounds, rest, last.process if attack.lies else burner)
        finally:
            stop_all(running)


BURN = """
import os, sys, time
share, count = float(sys.argv[1]), int(sys.argv[2])
while count > 1 and os.fork():
    count -= 1
began = time.perf_counter()
while True:
    if time.process_time() > share * (time.perf_counter() - began):
        time.sleep(0.002)
"""


@contextmanager
def _burning(cores: float) -> Iterator[subprocess.Popen[bytes] | None]:
    """Take so much processor time meanwhile, in a session of its own like a node."""
    if not cores:
        yield None
        return
    # At least two, as a flooder has two busy threads: one makes messages, one sends them.
    count = max(2, math.ceil(cores))
    process = subprocess.Popen(
        [sys.executable, "-c", BURN, str(cores / count), str(count)], start_new_session=True
    )
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _processor_seconds(session: int) -> float:
    """Processor time of all that run in this session; nan: this system does not tell."""
    ticks = math.nan
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[3]) == session:
                ticks = (0 if math.isnan(ticks) else ticks) + int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _rest() -> None:
    time.sleep(LOOK_SECONDS)


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


def _watch(
    nodes: Sequence[LocalNode],
    rounds: int,
    rest: Callable[[], None],
    beside: subprocess.Popen[bytes] | None,
) -> Pace:
    """Compare what these nodes say after the first rounds and after some more."""
    first = _reached(nodes, WARM_UP, rest)
    began, used = time.monotonic(), _processor_seconds(beside.pid) if beside else math.nan
    last = _reached(nodes, first[0]["decided"] + rounds, rest)
    if beside is not None and beside.poll() is not None:
        raise UserError("the liar has ended")
    taken = (_processor_seconds(beside.pid) if beside else math.nan) - used
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
        taken / (time.monotonic() - began),
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
    burnt = 1.0

    def see(name: str, attack: Attack) -> Pace:
        pace = measure(attack, nodes=options.nodes, rounds=options.rounds, burnt=burnt)
        _say(name, pace, before.seconds if before else None, attack)
        return pace

    before: Pace | None = None
    before = see("nobody", Attack())
    found: dict[str, Pace] = {}
    for name in chosen:
        found[name] = see(name, ATTACKS[name])
        if ATTACKS[name].full_speed and found[name].beside > 0:
            burnt = found[name].beside
    after = see("nobody, again", Attack())
    honest = (before.seconds + after.seconds) / 2
    too_slow = [
        name
        for name in chosen
        if (times_max := ATTACKS[name].times_max) is not None
        and found[name].seconds > times_max * honest
    ]
    cores = max(found[name].cores for name in chosen) - min(before.cores, after.cores)
    print(f"extra processor time of an honest node: at most {cores:.2f} of a core")
    print(f"too slow: {', '.join(too_slow)}" if too_slow else "no attack costs more than it may")
    return 1 if too_slow else 0


def _say(name: str, pace: Pace, honest: float | None, attack: Attack) -> None:
    text = f"{name:14} {pace.seconds:6.2f} s a round, {pace.cores:.2f} cores a node"
    if not math.isnan(pace.beside):
        text += f" and {pace.beside:.2f} {'beside them' if attack.burns else 'the liar'}"
    if honest is not None:
        text += f", {pace.seconds / honest:.2f} times"
        if attack.times_max is not None and attack != Attack():
            text += f" (at most {attack.times_max:g})"
    if pace.slow:
        text += f"; slow: {pace.slow}"
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
