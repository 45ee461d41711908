"""Questions of peers, answered by a few threads: bounded for each asker, and fair between them.

An asker holds itself back: it asks for some blobs at a time. One that does not loses its own
questions. No asker is answered by two threads at once, so one that does not take its answers keeps
a single thread waiting, until the transport gives its connection up.
"""

import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Desk(Generic[T]):
    """Answers questions in turn."""

    def __init__(self, answer: Callable[[int, T], None], *, threads: int, waiting_max: int) -> None:
        """Args: `answer` is called on any of the threads; `waiting_max`, for each asker."""
        self._answer = answer
        self._waiting_max = waiting_max
        self._waiting: dict[int, deque[T]] = {}
        self._turns: deque[int] = deque()
        self._busy: set[int] = set()
        self._closed = False
        self.failed = 0
        """Answers that raised: mistakes of ours, whoever asked."""
        self._changed = threading.Condition()
        for number in range(threads):
            threading.Thread(target=self._work, name=f"serve-{number}", daemon=True).start()

    def put(self, asker: int, question: T) -> bool:
        """Have a question answered; False: this asker has too many waiting already."""
        with self._changed:
            waiting = self._waiting.setdefault(asker, deque())
            if self._closed or len(waiting) >= self._waiting_max:
                return False
            waiting.append(question)
            if len(waiting) == 1 and asker not in self._busy:
                self._turns.append(asker)
                self._changed.notify()
        return True

    def close(self) -> list[T]:
        """Answer nothing more; the questions that were waiting."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            left = [question for waiting in self._waiting.values() for question in waiting]
            self._waiting.clear()
            self._turns.clear()
        return left

    def _work(self) -> None:
        while (taken := self._take()) is not None:
            asker, question = taken
            try:
                self._answer(asker, question)
            except Exception:  # noqa: BLE001  # Whatever a peer asks, this thread stays.
                self.failed += 1
            finally:
                self._done(asker)

    def _take(self) -> tuple[int, T] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._turns)
            if self._closed:
                return None
            asker = self._turns.popleft()
            self._busy.add(asker)
            return asker, self._waiting[asker].popleft()

    def _done(self, asker: int) -> None:
        with self._changed:
            self._busy.discard(asker)
            if self._waiting.get(asker):
                self._turns.append(asker)
                self._changed.notify()
