"""Coordinates taken a block at a time, which stays in the cache, on all of torch's threads.

numpy lets other threads run while it computes. Blocks are handed out in runs that depend on the
number of coordinates alone, and what runs give is put together in order: the outcome does not
depend on the number of threads. Meanwhile OpenBLAS starts none of its own: they spin while they
wait, and beside other busy processes a Krum of milliseconds takes seconds.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import cache
from typing import TypeVar

import torch
from threadpoolctl import ThreadpoolController

T = TypeVar("T")

RUNS = 8
"""Into so many runs the blocks are divided: enough for a few threads to end together."""


def map_runs(work: Callable[[range], T], d: int, width: int) -> list[T]:
    """What `work` gives for each run: the starts of blocks of `width` coordinates, of d in all."""
    starts = range(0, d, width)
    size = -(-len(starts) // RUNS)
    runs = [starts[i : i + size] for i in range(0, len(starts), size)]
    count = min(torch.get_num_threads(), len(runs))
    with keep_blas_to_one_thread():
        if count < 2:  # noqa: PLR2004
            return [work(run) for run in runs]
        return list(_pool(count).map(work, runs))


@cache
def _pool(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, "rules")


def keep_blas_to_one_thread() -> AbstractContextManager[object]:
    """While it lasts; only if two threads are in it at once, OpenBLAS may stay so afterwards."""
    limit: AbstractContextManager[object] = _openblas().limit(limits=1)
    return limit


@cache
def _openblas() -> ThreadpoolController:
    """The OpenBLAS of numpy (and of scipy, if loaded by now); none where it uses another."""
    return ThreadpoolController().select(internal_api="openblas")
