"""Work for peers, done by a few threads: bounded for each peer, and fair between them.

Answering a peer, or asking it, waits for its connection. A peer holds itself back: it asks for some
blobs at a time, and one that does not loses its own questions. Nothing is done for one peer by two
threads at once, so one that does not read keeps a single thread waiting, until the transport gives
its connection up.
"""

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

T = TypeVar("T")


class PeerWork(Generic[T]):
    """Does what there is to do for each peer, in turn."""

    def __init__(
        self, do: Callable[[int, T], None], *, name: str, threads_max: int, waiting_max: int
    ) -> None:
        """Work for peers, of which there is none yet.

        Args:
            do: Takes a peer and what is to be done; called on any of the threads.
            name: Of the threads.
            threads_max: So many are started, one by one, when all others are busy.
            waiting_max: Pieces of work that may wait, for each peer.
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
        """Work that raised: mistakes of ours, whoever the peer was."""
        self._changed = threading.Condition()
        self._begin_thread()

    def put(self, peer: int, work: T) -> bool:
        """Have something done; False: too much waits for this peer already."""
        with self._changed:
            waiting = self._waiting.setdefault(peer, deque())
            if self._closed or len(waiting) >= self._waiting_max:
                return False
            waiting.append(work)
            if len(waiting) == 1 and peer not in self._busy:
                self._turns.append(peer)
                if len(self._turns) > self._idle and self._threads < self._threads_max:
                    with suppress(RuntimeError):  # There is one already, which will come to it.
                        self._begin_thread()
                self._changed.notify()
        return True

    def close(self) -> list[T]:
        """Do nothing more; what was waiting."""
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
