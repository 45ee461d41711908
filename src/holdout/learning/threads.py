"""Independent pieces of work on all of torch's threads, each piece on one.

Torch's own threads meet after every small operation, which costs most where cores are shared. Here
a thread takes a whole piece, and as pieces do not depend on the number of threads, neither does
what comes out.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from threading import Barrier
from typing import TypeVar

import torch

T = TypeVar("T")


def run_all(work: Callable[[T], None], pieces: Sequence[T]) -> None:
    """Do the work on every piece; what a piece raises is raised here."""
    count = min(torch.get_num_threads(), len(pieces))
    if count < 2:  # noqa: PLR2004
        for piece in pieces:
            work(piece)
        return
    tasks = [pool(count).submit(work, piece) for piece in pieces]
    # All end before anything is raised: nobody writes into the caller's tensors afterwards.
    wait(tasks)
    for task in tasks:
        task.result()


@cache
def pool(count: int) -> ThreadPoolExecutor:
    """So many threads, to each of which torch gives one core."""
    before = torch.get_num_threads()
    executor = ThreadPoolExecutor(count, "holdout", _use_one_thread)
    started = Barrier(count)
    wait([executor.submit(started.wait) for _ in range(count)])
    # What one thread sets for itself, torch tells everybody.
    torch.set_num_threads(before)
    return executor


def _use_one_thread() -> None:
    # Asking first matters: a thread that has never asked takes over the common number later.
    torch.get_num_threads()
    torch.set_num_threads(1)
