"""The rules alone, against ByzFL's and Flower's, on 30 updates: time, results and peak memory.

A few milliseconds of the same work differ by up to a factor of three between two processes, hardly
within one. So small updates are timed in several: `python -m bench.rules` prints what one takes.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bench import memory, peers, plain
from bench.measure import Row, seconds
from bench.peers import ROWS

SMALL, LARGE = 79_510, 10_000_000
PROCESSES = 7
COPIES_MAX = 3.0
# It refuses so many numbers.
TOO_LARGE = ("median", "ByzFL")


def rows() -> list[Row]:
    """All rules in both sizes; results are compared on the way."""
    return [*_small(), *_large()]


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
            plain.compare(rule, who, given, ours=ours[1], theirs=theirs)
            ratios = sorted(one[rule][who] / one[rule]["ours"] for one in times)
            note = f"{ratios[0]:.2f} to {ratios[-1]:.2f}; {_note(needs, who, SMALL)}"
            yield _row(rule, who, SMALL, statistics.median(ratios), note)


def _large() -> Iterator[Row]:
    given = updates(LARGE)
    for rule, ways in peers.RULES.items():
        names = [who for who in ways if (rule, who) != TOO_LARGE]
        with tempfile.TemporaryDirectory() as folder:
            files = {who: Path(folder) / f"{who}.npy" for who in names}
            needs = {
                who: memory.of(__name__, who, rule, LARGE, result=file)
                for who, file in files.items()
            }
            results = {who: torch.from_numpy(np.load(file)) for who, file in files.items()}
        for who in names[1:]:
            plain.compare(rule, who, given, ours=results["ours"], theirs=results[who])
            ratio = needs[who].seconds / needs["ours"].seconds
            yield _row(rule, who, LARGE, ratio, _note(needs, who, LARGE))
        name = f"{rule}, d = {LARGE:,}: 3 copies of the updates / peak memory"
        yield Row(name, COPIES_MAX / _copies(needs["ours"], LARGE), 1.0)


def _row(rule: str, who: str, d: int, ratio: float, note: str) -> Row:
    return Row(f"{rule}, n = {ROWS}, d = {d:,} / {who}", ratio, peers.TARGETS[rule], note)


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
