"""One rule on large updates, in a process of its own: how long it takes and how much memory.

`python -m bench.memory PEER RULE D` prints one line of JSON.
"""

import json
import resource
import sys
import time
from pathlib import Path

import torch
from torch import Tensor

from bench import peers

ROWS = 30


def updates(d: int) -> Tensor:
    """Rows that differ in every coordinate and cost little to make."""
    base = torch.randn(d, generator=torch.Generator().manual_seed(0))
    rows = torch.empty(ROWS, d)
    for place, row in enumerate(rows):
        shift = 7919 * (place + 1) % d
        row[: d - shift], row[d - shift :] = base[shift:], base[:shift]
    return rows


def main(peer: str, rule: str, d: str) -> None:
    """Measure; the peak counts from before the updates were there."""
    run = peers.RULES[rule][peer]
    run(updates(1000))  # Loads what is loaded on demand.
    before = _resident()
    rows = updates(int(d))
    started = time.perf_counter()
    run(rows)
    spent = time.perf_counter() - started
    size = rows.numel() * rows.element_size()
    print(json.dumps({"seconds": spent, "copies": (_peak() - before) / size}))


def _resident() -> int:
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * resource.getpagesize()


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main(*sys.argv[1:])
