"""Independent pieces of work on all of torch's threads, each piece on one.

Torch's own threads meet after every small operation, which costs most where cores are shared. Here
a thread takes a whole piece, and numpy, like torch, lets the other threads run while it computes.
How the work is divided does not depend on the number of threads, so neither does what comes out.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from threading import Barrier
from typing import TypeVar

import torch
from threadpoolctl import ThreadpoolController

from holdout import device

T = TypeVar("T")
U = TypeVar("U")

RUNS = 8
"""How many runs blocks of coordinates make: enough for a few threads to end together."""


def run_all(work: Callable[[T], U], pieces: Sequence[T]) -> list[U]:
    """What the work gives for every piece, in order; what a piece raises is raised here."""
    count = min(torch.get_num_threads(), len(pieces))
    if count < 2:  # noqa: PLR2004
        return [work(piece) for piece in pieces]

    def work_there(piece: T) -> U:
        with piece_of_work():
            return work(piece)

    tasks = [pool(count).submit(work_there, piece) for piece in pieces]
    # All end before anything is raised: nobody writes into the caller's tensors afterwards.
    wait(tasks)
    return [task.result() for task in tasks]


def map_runs(work: Callable[[range], U], d: int, width: int) -> list[U]:
    """What `work` gives for each run of blocks: for the starts of blocks, `width` coordinates each.

    Blocks cover d coordinates and are small enough to stay in the cache. Meanwhile OpenBLAS starts
    no threads of its own: they spin while they wait, and beside other busy processes a Krum of
    milliseconds takes seconds.
    """
    starts = range(0, d, width)
    size = -(-len(starts) // RUNS)
    with keep_blas_to_one_thread():
        return run_all(work, [starts[i : i + size] for i in range(0, len(starts), size)])


def even_width(d: int, most: int) -> int:
    """The width of blocks for `map_runs`, at most `most`, with which all runs are equally long."""
    if d <= most:
        return d
    blocks = RUNS * -(-d // (RUNS * most))
    return -(-d // blocks)


@cache
def pool(count: int) -> ThreadPoolExecutor:
    """A pool of `count` threads, on each of which torch uses one core."""
    before = torch.get_num_threads()
    executor = ThreadPoolExecutor(count, "holdout", _use_one_thread)
    started = Barrier(count)
    try:
        wait([executor.submit(started.wait) for _ in range(count)])
    except BaseException:
        started.abort()  # Or those that did start would wait for the others for good.
        raise
    # Torch takes what one thread sets for itself as the new default of all threads.
    torch.set_num_threads(before)
    return executor


@contextmanager
def piece_of_work() -> Iterator[None]:
    """What every piece of work on a thread of the pool needs: one core, and the device's widths."""
    # An earlier piece may have asked torch for more, in a user's code or in a library's.
    if torch.get_num_threads() != 1:
        torch.set_num_threads(1)
    with device.widths():
        yield


def keep_blas_to_one_thread() -> AbstractContextManager[object]:
    """Keep OpenBLAS to one thread; it may stay so afterwards if two threads do this at once."""
    limit: AbstractContextManager[object] = _openblas().limit(limits=1)
    return limit


def _use_one_thread() -> None:
    # Asking first matters: a thread that has never asked takes on the default later.
    torch.get_num_threads()
    torch.set_num_threads(1)


@cache
def _openblas() -> ThreadpoolController:
    """The OpenBLAS of numpy (and of scipy, if loaded by now); empty if numpy uses another BLAS."""
    return ThreadpoolController().select(internal_api="openblas")
