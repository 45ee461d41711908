"""Where a node's time goes, and what it counts: for `status`, metrics and the benchmark.

Idle time is charged to what the node waited for: its own learner, the blobs and messages of others,
or, if a timer ended the wait and nothing else was under way, a deadline.
"""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from holdout.agreement.keys import PublicKeys, Verifier


@dataclass(slots=True)
class Spent:
    """Seconds, by what they were spent on."""

    compute: float = 0.0
    deadlines: float = 0.0
    network: float = 0.0
    disk: float = 0.0
    crypto: float = 0.0
    protocol: float = 0.0
    """Handling events, without checking signatures."""

    def as_dict(self) -> dict[str, float]:
        """All entries, rounded, by name."""
        return {name: round(getattr(self, name), 4) for name in self.__slots__}


@contextmanager
def stopwatch(spent: Spent, name: str) -> Iterator[None]:
    """Add the time inside a `with` to one entry of `Spent`."""
    began = time.perf_counter()
    try:
        yield
    finally:
        setattr(spent, name, getattr(spent, name) + time.perf_counter() - began)


class TimedVerifier:
    """A verifier whose time is charged to `crypto`."""

    def __init__(self, verifier: Verifier, spent: Spent) -> None:
        self._verifier = verifier
        self._spent = spent

    def signature(self, public: bytes, message: bytes, signature: bytes) -> bool:
        """Whether the owner of this key signed the message."""
        with stopwatch(self._spent, "crypto"):
            return self._verifier.signature(public, message, signature)

    def vrf(self, public: bytes, alpha: bytes, proof: bytes) -> bytes | None:
        """The one output of this key for `alpha`, or None if the proof does not hold."""
        with stopwatch(self._spent, "crypto"):
            return self._verifier.vrf(public, alpha, proof)

    def key_fault(self, keys: PublicKeys) -> str | None:
        """Why these keys must not enter a roster, or None."""
        return self._verifier.key_fault(keys)


@dataclass(slots=True)
class Idle:
    """Charges idle time to what the node waited for."""

    spent: Spent
    _pending: float = 0.0
    """Idle seconds that are not charged yet: what ends them decides."""

    def waited(self, seconds: float, *, computing: bool, fetching: bool) -> None:
        """The node was idle for so long, while these were under way."""
        if computing:
            self.spent.compute += seconds
        elif fetching:
            self.spent.network += seconds
        else:
            self._pending += seconds

    def ended_by_timer(self) -> None:
        """A timer made the node act: it had been waiting for that deadline."""
        self.spent.deadlines += self._pending
        self._pending = 0.0

    def ended_by_message(self) -> None:
        """Something came from another member: the node had been waiting for it."""
        self.spent.network += self._pending
        self._pending = 0.0


@dataclass(slots=True)
class Counters:
    """What happened since the node was started."""

    rejected: Counter[str] = field(default_factory=Counter)
    """How many messages were rejected, by reason."""
    rejected_by: Counter[tuple[int, str]] = field(default_factory=Counter)
    """The same, by the member that sent or passed them on, and reason."""
    rounds: int = 0
    steps: int = 0
    periods: int = 0
    """Periods beyond the first of each round."""
