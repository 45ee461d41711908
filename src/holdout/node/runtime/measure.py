"""Where a node's time goes, and what it has counted: for `status`, metrics and the benchmark.

An interval in which the node had nothing to do is charged to what it waited for: its own learner,
blobs and messages of others, or, if a timer ended it and nothing else was under way, a deadline.
"""

import os
import resource
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

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
    """Handling events, signatures left out."""

    def as_dict(self) -> dict[str, float]:
        """Rounded for people."""
        return {name: round(getattr(self, name), 4) for name in self.__slots__}


class Stopwatch:
    """Adds the time inside a `with` to one of the entries."""

    __slots__ = ("_began", "_name", "_spent")

    def __init__(self, spent: Spent, name: str) -> None:
        self._spent = spent
        self._name = name
        self._began = 0.0

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        passed = time.perf_counter() - self._began
        setattr(self._spent, self._name, getattr(self._spent, self._name) + passed)


class TimedVerifier:
    """A verifier whose work is charged to cryptography."""

    def __init__(self, verifier: Verifier, spent: Spent) -> None:
        self._verifier = verifier
        self._spent = spent

    def signature(self, public: bytes, message: bytes, signature: bytes) -> bool:
        """Whether the owner of this key signed the message."""
        began = time.perf_counter()
        try:
            return self._verifier.signature(public, message, signature)
        finally:
            self._spent.crypto += time.perf_counter() - began

    def vrf(self, public: bytes, alpha: bytes, proof: bytes) -> bytes | None:
        """The one output of this key for `alpha`, or None if the proof does not hold."""
        began = time.perf_counter()
        try:
            return self._verifier.vrf(public, alpha, proof)
        finally:
            self._spent.crypto += time.perf_counter() - began

    def key_fault(self, keys: PublicKeys) -> str | None:
        """Why these keys must not enter a roster, or None."""
        return self._verifier.key_fault(keys)


@dataclass(slots=True)
class Idle:
    """Charges the intervals in which the node had nothing to do."""

    spent: Spent
    _pending: float = 0.0
    """Idle since the last thing that came, ended by nothing yet."""

    def waited(self, seconds: float, *, computing: bool, fetching: bool) -> None:
        """An interval without any event to handle."""
        if computing:
            self.spent.compute += seconds
        elif fetching:
            self.spent.network += seconds
        else:
            self._pending += seconds

    def ended_by_timer(self) -> None:
        """A deadline that mattered: what was waited before, was waited for it."""
        self.spent.deadlines += self._pending
        self._pending = 0.0

    def ended_by_message(self) -> None:
        """Something came from outside."""
        self.spent.network += self._pending
        self._pending = 0.0


@dataclass(slots=True)
class Counters:
    """What happened since the node was started."""

    rejected: Counter[str] = field(default_factory=Counter)
    """By the core, by reason."""
    rounds: int = 0
    steps: int = 0
    periods: int = 0
    """Beyond the first of each round."""


def memory_bytes(pid: int) -> int:
    """Resident memory of a process, without what it shares with others where that is known."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text("ascii").splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    if pid == os.getpid():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return 0


def prometheus(values: Mapping[str, float | Mapping[str, float]], node: str) -> str:
    """Prometheus's text format; a mapping becomes one line for each of its keys."""
    lines: list[str] = []
    for name, value in values.items():
        full = f"holdout_{name}"
        lines.append(f"# TYPE {full} {'counter' if name.endswith('_total') else 'gauge'}")
        if isinstance(value, Mapping):
            lines += [
                f'{full}{{node="{node}",kind="{kind}"}} {amount:g}'
                for kind, amount in sorted(value.items())
            ]
        else:
            lines.append(f'{full}{{node="{node}"}} {value:g}')
    return "\n".join(lines) + "\n"
