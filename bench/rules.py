"""The rules alone, against ByzFL's and Flower's, on 30 updates: time, results and peak memory."""

import json
import subprocess
import sys
from functools import partial

import torch

from bench import memory, peers
from bench.measure import Row, seconds
from holdout import rules

SMALL, LARGE = 79_510, 10_000_000
COPIES_MAX = 3.0
# Of those that take minutes on large updates, or cannot take them, only ours is run there.
TOO_LARGE = (("bulyan", "Flower"), ("median", "ByzFL"))


def rows() -> list[Row]:
    """All rules in both sizes; results are compared on the way."""
    found = []
    # Drawn one by one: rows that are each other's shifts are all equally far from each other, so
    # that Krum's scores tie, which gradients do not.
    small = torch.randn(memory.ROWS, SMALL, generator=torch.Generator().manual_seed(0))
    for rule, ways in peers.RULES.items():
        times = seconds({who: partial(run, small) for who, run in ways.items()}, repetitions=5)
        for who in ways:
            if who != "ours":
                _compare(rule, who, small)
                name = f"{rule}, n = 30, d = {SMALL:,} / {who}"
                found.append(Row(name, times[who] / times["ours"], peers.TARGETS[rule]))
    for rule, ways in peers.RULES.items():
        large = {who: _apart(who, rule) for who in ways if (rule, who) not in TOO_LARGE}
        ours = large.pop("ours")
        for who, theirs in large.items():
            name = f"{rule}, n = 30, d = {LARGE:,} / {who}"
            note = (
                f"memory: {ours['copies']:.1f} copies of the updates, {who} {theirs['copies']:.1f}"
            )
            ratio = theirs["seconds"] / ours["seconds"]
            found.append(Row(name, ratio, peers.TARGETS[rule], note))
        name = f"{rule}, d = {LARGE:,}: 3 copies of the updates / peak memory"
        found.append(Row(name, COPIES_MAX / ours["copies"], 1.0))
    return found


def _compare(rule: str, who: str, updates: torch.Tensor) -> None:
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


def _apart(who: str, rule: str) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.memory", who, rule, str(LARGE)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found
