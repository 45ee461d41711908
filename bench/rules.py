"""The rules alone, against ByzFL's and Flower's, on 30 updates: time, results and peak memory.

A few milliseconds of the same work differ by up to a factor of three between two processes, hardly
within one. So small updates are timed in several: `python -m bench.rules` prints what one takes.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor

from bench import memory, peers, plain
from bench.measure import Row, seconds
from bench.peers import ROWS
from holdout import rules as holdout_rules

SMALL, LARGE = 79_510, 10_000_000
PROCESSES = 7
COPIES_MAX = 2.0
TOO_LARGE: Mapping[tuple[str, str], int] = MappingProxyType(
    {
        ("median", "ByzFL"): 0,  # It refuses so many numbers.
        ("smea", "ByzFL"): 0,  # It would take a quarter of an hour.
        ("nnm", "ByzFL"): 2_000_000,  # It makes n - f copies of the updates.
    }
)
"""What does not run on `LARGE` coordinates, and how many it is run on instead."""

MANY = (25, 50, 100, 200)
MANY_COORDINATES = 2_000
"""Few: what grows faster than n² depends on no coordinate."""
GROWTH_MAX: Mapping[str, float] = MappingProxyType(
    {"bulyan": 3.5, "caf": 4.0, "mda": 3.5, "smea": 4.5}
)
"""Rules whose time grows faster than n², and the exponent that it should not exceed."""


def rows() -> list[Row]:
    """All rules in both sizes, and with many updates; results are compared on the way."""
    return [*_small(), *_large(), *_many()]


def _small() -> Iterator[Row]:
    command = [sys.executable, "-m", __name__]
    times = [
        json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        for _ in range(PROCESSES)
    ]
    given = updates(SMALL)
    for rule, ways in peers.RULES.items():
        needs = {who: memory.of(__name__, who, rule, SMALL) for who in ways}
        ours, *others = ((who, torch.as_tensor(run(given))) for who, run in ways.items())
        for who, theirs in others:
            wrong = plain.difference(rule, who, given, ours=ours[1], theirs=theirs)
            ratios = sorted(one[rule][who] / one[rule]["ours"] for one in times)
            note = f"{ratios[0]:.2f} to {ratios[-1]:.2f}; {_note(needs, who, SMALL)}"
            ratio = 0.0 if wrong else statistics.median(ratios)
            yield _row(rule, who, SMALL, ratio, wrong or note)


def _large() -> Iterator[Row]:
    given = updates(LARGE)
    for rule, ways in peers.RULES.items():
        names = [who for who in ways if (rule, who) not in TOO_LARGE]
        needs = yield from _in_processes(rule, names, given)
        name = f"{rule}, d = {LARGE:,}: 2 copies of the updates / peak memory"
        copies = _copies(needs["ours"], LARGE)
        yield Row(name, COPIES_MAX / round(copies, 1), 1.0, f"{copies:.2f} copies")
    for (rule, who), d in TOO_LARGE.items():
        if d:
            yield from _in_processes(rule, ["ours", who], updates(d))


def _in_processes(
    rule: str, names: Sequence[str], given: Tensor
) -> Generator[Row, None, dict[str, memory.Need]]:
    """A row for each of the others; returns what each needs, in a process of its own."""
    d = given.shape[1]
    with tempfile.TemporaryDirectory() as folder:
        files = {who: Path(folder) / f"{who}.npy" for who in names}
        needs = {who: memory.of(__name__, who, rule, d, result=file) for who, file in files.items()}
        results = {who: torch.from_numpy(np.load(file)) for who, file in files.items()}
    for who in names[1:]:
        wrong = plain.difference(rule, who, given, ours=results["ours"], theirs=results[who])
        ratio = needs[who].seconds / needs["ours"].seconds
        yield _row(rule, who, d, 0.0 if wrong else ratio, wrong or _note(needs, who, d))
    return needs


def _many() -> Iterator[Row]:
    """How the processor's time grows with the number of updates, up to 200."""
    for rule, most in GROWTH_MAX.items():
        times = []
        for n in MANY:
            given = torch.randn(n, MANY_COORDINATES, generator=torch.Generator().manual_seed(0))
            # SMEA looks at n subsets, which is as many as it can at 200.
            f = {"bulyan": n // 5, "smea": 1}.get(rule, 3 * n // 10)
            run = partial(holdout_rules.RULES[rule], given, f=f)
            times.append(min(_cpu_seconds(run) for _ in range(3)))
        exponent = float(np.polyfit(np.log(MANY), np.log(times), 1)[0])
        yield Row(
            f"{rule}, n = {MANY[0]} to {MANY[-1]}, d = {MANY_COORDINATES:,}: grows as "
            f"n^{exponent:.2f}; {most} / exponent",
            most / max(exponent, 0.01),
            1.0,
            ", ".join(f"{n}: {one:.3f} s" for n, one in zip(MANY, times, strict=True)),
        )


def _cpu_seconds(action: Callable[[], object]) -> float:
    """Of all threads; beside other processes it says more than the clock."""
    start = time.process_time()
    action()
    return time.process_time() - start


def _row(rule: str, who: str, d: int, ratio: float, note: str) -> Row:
    targets = peers.TARGETS if d == SMALL else {**peers.TARGETS, **peers.TARGETS_LARGE}
    return Row(f"{rule}, n = {ROWS}, d = {d:,} / {who}", ratio, targets.get(rule, 1.0), note)


def prepare(who: str, rule: str, d: str) -> Callable[[], object]:
    """A rule on updates that are there already."""
    run, given = peers.RULES[rule][who], updates(int(d))
    run(updates(1000))  # Loads what is loaded on demand.
    return partial(run, given)


def updates(d: int) -> Tensor:
    """Drawn one by one: rows that are each other's shifts are all equally far from each other.

    Krum's scores would tie then, which those of gradients do not.
    """
    return torch.randn(ROWS, d, generator=torch.Generator().manual_seed(0))


def _copies(need: memory.Need, d: int) -> float:
    """In copies of the updates, which are one themselves."""
    return 1 + need.bytes / (4 * ROWS * d)


def _note(needs: dict[str, memory.Need], who: str, d: int) -> str:
    ours, theirs = (_copies(needs[one], d) for one in ("ours", who))
    return f"memory: {ours:.1f} copies of the updates, {who} {theirs:.1f}"


def main() -> None:
    """How long each takes in this process."""
    small = updates(SMALL)
    times = {
        rule: seconds({who: partial(run, small) for who, run in ways.items()})
        for rule, ways in peers.RULES.items()
    }
    print(json.dumps(times))


if __name__ == "__main__":
    main()
