"""The rules alone, against ByzFL's and Flower's, on 30 updates: time, results and peak memory.

A few milliseconds of the same work differ by up to a factor of three between two processes, hardly
within one. So small updates are timed in several: `python -m bench.rules` prints what one takes.
"""

import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from bench import memory, peers
from bench.measure import Row, seconds
from holdout import rules

ROWS, SMALL, LARGE = 30, 79_510, 10_000_000
PROCESSES = 7
COPIES_MAX = 3.0
# It refuses so many numbers.
TOO_LARGE = ("median", "ByzFL")


def rows() -> list[Row]:
    """All rules in both sizes; results are compared on the way."""
    found = []
    small = updates(SMALL)
    command = [sys.executable, "-m", __name__]
    times = [
        json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        for _ in range(PROCESSES)
    ]
    for rule, ways in peers.RULES.items():
        needs = {who: memory.of(__name__, who, rule, SMALL) for who in ways}
        for who in ways:
            if who != "ours":
                _compare(rule, who, small)
                name = f"{rule}, n = 30, d = {SMALL:,} / {who}"
                ratios = sorted(one[rule][who] / one[rule]["ours"] for one in times)
                note = f"{ratios[0]:.2f} to {ratios[-1]:.2f}; {_note(needs, who, SMALL)}"
                found.append(Row(name, statistics.median(ratios), peers.TARGETS[rule], note))
    for rule, ways in peers.RULES.items():
        needs = {
            who: memory.of(__name__, who, rule, LARGE) for who in ways if (rule, who) != TOO_LARGE
        }
        for who in needs:
            if who != "ours":
                name = f"{rule}, n = 30, d = {LARGE:,} / {who}"
                ratio = needs[who].seconds / needs["ours"].seconds
                found.append(Row(name, ratio, peers.TARGETS[rule], _note(needs, who, LARGE)))
        name = f"{rule}, d = {LARGE:,}: 3 copies of the updates / peak memory"
        found.append(Row(name, COPIES_MAX / _copies(needs["ours"], LARGE), 1.0))
    return found


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


def _compare(rule: str, who: str, updates: Tensor) -> None:
    """Where definitions agree, results do; where not, ours is held against a plain computation."""
    ours, theirs = (peers.RULES[rule][one](updates) for one in ("ours", who))
    if (rule, who) not in peers.DIFFERENCES:
        torch.testing.assert_close(ours, theirs.float(), rtol=1e-5, atol=1e-5)
    elif rule == "krum":
        distances = torch.cdist(updates.double(), updates.double()).square().sort(dim=1).values
        scores = distances[:, 1 : len(updates) - peers.F - 1].sum(dim=1)
        torch.testing.assert_close(ours, updates[scores.argmin()], rtol=0, atol=0)
    elif rule == "multi-krum":
        flower = peers.RULES[rule]["Flower"](updates)
        torch.testing.assert_close(ours, flower.float(), rtol=1e-5, atol=1e-5)
    elif rule == "geometric-median":
        sums = [(updates.double() - point.double()).norm(dim=1).sum() for point in (ours, theirs)]
        if sums[0] > sums[1] * (1 + 1e-6):
            raise AssertionError(f"{who} has a better geometric median: {sums}")
    else:
        chosen = updates[list(rules.bulyan_choice(updates, f=peers.F_BULYAN))].double()
        middle = chosen.quantile(0.5, dim=0)
        order = (chosen - middle).abs().argsort(dim=0, stable=True)[: 30 - 4 * peers.F_BULYAN]
        plain = chosen.gather(0, order).mean(dim=0)
        torch.testing.assert_close(ours, plain.float(), rtol=1e-5, atol=1e-5)


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
