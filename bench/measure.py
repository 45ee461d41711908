"""What a row of the benchmark is, and how its times are taken."""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """One promise about speed: a ratio of two times, taken in turns in the same process."""

    name: str
    ratio: float
    target: float
    note: str = ""

    @property
    def met(self) -> bool:
        """Whether the promise is kept on this machine."""
        return self.ratio >= self.target


def seconds(
    actions: Mapping[str, Callable[[], object]], *, repetitions: int = 9
) -> dict[str, float]:
    """The median time of each action; they take turns, so that a busy machine slows all alike."""
    times: dict[str, list[float]] = {name: [] for name in actions}
    for action in actions.values():
        action()  # The first call pays for memory and for kernels made on demand.
    for _ in range(repetitions):
        for name, action in actions.items():
            start = time.perf_counter()
            action()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}
