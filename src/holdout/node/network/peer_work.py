"""A small thread pool for work on behalf of peers: bounded for each peer, and fair between them.

Answering a peer, or asking it, may have to wait for its connection. No two threads work for the
same peer at once, so one that does not read blocks a single thread, until the transport gives up
the connection. An honest peer asks for a few blobs at a time; one that asks for more loses its own
questions.
"""

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

T = TypeVar("T")


class PeerWork(Generic[T]):
    """Does the work for each peer, one after another."""

    def __init__(
        self, do: Callable[[int, T], None], *, name: str, threads_max: int, waiting_max: int
    ) -> None:
        """Start with one thread and no work.

        Args:
            do: Called with a peer and a piece of work, on any of the threads.
            name: The prefix of the threads' names.
            threads_max: How many threads there may be; a new one starts when all are busy.
            waiting_max: How many pieces of work may wait for one peer.
        """
        self._do = do
        self._name = name
        self._threads_max = threads_max
        self._waiting_max = waiting_max
        self._waiting: dict[int, deque[T]] = {}
        self._turns: deque[int] = deque()
        self._busy: set[int] = set()
        self._threads = 0
        self._idle = 0
        self._closed = False
        self.failed = 0
        """How often work raised: a mistake in this code, not the peer's."""
        self._changed = threading.Condition()
        self._begin_thread()

    def put(self, peer: int, work: T) -> bool:
        """Queue a piece of work; False: too much waits for this peer already."""
        with self._changed:
            waiting = self._waiting.setdefault(peer, deque())
            if self._closed or len(waiting) >= self._waiting_max:
                return False
            waiting.append(work)
            if len(waiting) == 1 and peer not in self._busy:
                self._turns.append(peer)
                if len(self._turns) > self._idle and self._threads < self._threads_max:
                    with suppress(RuntimeError):  # No new thread: the others will come to it.
                        self._begin_thread()
                self._changed.notify()
        return True

    def close(self) -> list[T]:
        """Take no more work, and give back what was waiting."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            left = [work for waiting in self._waiting.values() for work in waiting]
            self._waiting.clear()
            self._turns.clear()
        return left

    def _begin_thread(self) -> None:
        name = f"{self._name}-{self._threads}"
        threading.Thread(target=self._work, name=name, daemon=True).start()
        self._threads += 1

    def _work(self) -> None:
        while (taken := self._take()) is not None:
            peer, work = taken
            try:
                self._do(peer, work)
            except Exception:  # noqa: BLE001  # Whatever a peer asks, this thread stays.
                self.failed += 1
            finally:
                self._done(peer)

    def _take(self) -> tuple[int, T] | None:
        with self._changed:
            self._idle += 1
            self._changed.wait_for(lambda: self._closed or self._turns)
            self._idle -= 1
            if self._closed:
                return None
            peer = self._turns.popleft()
            self._busy.add(peer)
            return peer, self._waiting[peer].popleft()

    def _done(self, peer: int) -> None:
        with self._changed:
            self._busy.discard(peer)
            if self._waiting.get(peer):
                self._turns.append(peer)
                self._changed.notify()
