"""How much memory a run takes at most, against how much is free: told before any work is done.

The estimate counts what grows with the numbers of the config: the rows that each worker holds, what
workers and rules keep, the updates of a round, and tables of all pairs of updates. The data are in
memory already when it is made. It holds within a factor of about two.
"""

import math
import os
from collections.abc import Mapping
from pathlib import Path

from holdout.config import Config
from holdout.voting import VOTES

FLOAT, WHOLE = 4, 8
"""Bytes of a weight, and of the number of a row or a cell of a table."""
WORKER = 1_000
"""Bytes of a worker besides the numbers of its rows."""
NODE = 50_000
"""Bytes of a worker's part in agreement without a server."""
MODELS = 8
"""How many vectors of weights a round has in hand: old, new, velocity, the model, candidates."""
UPDATES, MESSAGES = 3, 2
"""How often the proposals of a round are in memory at once, and the voters' messages."""
SAVED = 4
"""How often a state is in memory while its checkpoint is written."""
TABLES = 4
"""How many tables of all pairs of updates there are at once."""
BY_COORDINATE = frozenset(
    {
        *("mean", "median", "trimmed-mean", "mean-around-median"),
        *("centered-clipping", "norm-bound-mean", "fltrust", "zeno"),
    }
)
"""Rules that never look at pairs of updates."""

CGROUP = Path("/sys/fs/cgroup")
MEMINFO = Path("/proc/meminfo")


def bytes_needed(config: Config, dimension: int) -> Mapping[str, int]:
    """What a run with a model of so many weights takes, by what takes it.

    Example:
        >>> from holdout import Config
        >>> need = bytes_needed(Config(federation={"workers": 1000}), dimension=79_510)
        >>> list(need), need["shards"]
        (['shards', 'states', 'models', 'updates'], 17000000)
    """
    federation, rules = config.federation, config.experiment.rules
    n, p, v = federation.workers, federation.proposers, federation.voters
    vector = FLOAT * dimension
    votes = [rule for rule in rules if rule in VOTES]
    serverless = federation.mode == "decentralized"
    kept = n * vector if config.training.worker_momentum else 0
    if config.attack.knowledge == "last-round":
        kept += p * vector
    joint = v if "holdout" in votes and not serverless else 0
    pairs = 0 if BY_COORDINATE.issuperset(rules) else WHOLE * TABLES * (p + joint) ** 2
    ballots = WHOLE * p * v if votes else 0
    return {
        "shards": n * (WHOLE * config.data.samples_per_worker + WORKER + NODE * serverless),
        "states": SAVED * (kept + 2 * vector),
        "models": MODELS * vector,
        "updates": vector * (UPDATES * p + MESSAGES * joint) + pairs + ballots,
    }


def too_much(config: Config, dimension: int, *, free: int | None) -> str | None:
    """What to say of a run that does not fit into so many free bytes; None if it does."""
    need = bytes_needed(config, dimension)
    total = sum(need.values())
    if free is None or total <= free:
        return None
    n = config.federation.workers
    one_more = config.model_copy(
        update={"federation": config.federation.model_copy(update={"workers": n + 1})}
    )
    of_one = sum(bytes_needed(one_more, dimension).values()) - total
    room = free - (total - n * of_one)
    # What is less than a hundredth explains nothing.
    large = {what: size for what, size in need.items() if 100 * size >= total}
    shown = ", ".join(f"{what} {amount(size)}" for what, size in large.items())
    said = f"needs about {amount(total)} of memory ({shown}); {amount(free)} are free"
    if room > of_one:
        return f"federation.workers = {n}: {said}, enough for about {room // of_one} workers"
    drawn = f"{config.federation.proposers}, {config.federation.voters}"
    return f"federation.proposers, federation.voters = {drawn}: {said}"


def amount(size: int) -> str:
    """So many bytes, for people.

    >>> amount(999), amount(17_000_000), amount(8 * 10**15), amount(10**30)
    ('999 bytes', '17 MB', '8 PB', '10^30 bytes')
    """
    for power, unit in enumerate(("bytes", "kB", "MB", "GB", "TB", "PB", "EB")):
        if size < 1000 ** (power + 1):
            value = size / 1000**power
            return f"{value:.3g} {unit}" if value < 100 else f"{value:.0f} {unit}"  # noqa: PLR2004
    return f"10^{math.floor(math.log10(size))} bytes"


def bytes_free() -> int | None:
    """How much memory this process may still take; None where the system does not say."""
    found = [size for size in (_machine(), _group()) if size is not None]
    return min(found, default=None)


def _machine() -> int | None:
    try:
        lines = MEMINFO.read_text("ascii").splitlines()
        fields = dict(line.split(":", 1) for line in lines)
        return int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, ValueError, KeyError, IndexError):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None


def _group() -> int | None:
    """What the group of processes that this one is in may still take, as in a container."""
    try:
        limit, used = (
            (CGROUP / name).read_text("ascii").strip() for name in ("memory.max", "memory.current")
        )
        return max(0, int(limit) - int(used))
    except (OSError, ValueError):  # Among others "max": no limit.
        return None
