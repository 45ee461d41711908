"""What one action needs, in a process of its own: how long it takes and how much memory.

`python -m bench.memory FILE MODULE ARGUMENT...` prepares the action by the module's `prepare`, does
it once, and prints one line of JSON: seconds, and bytes above what was there before. What it gave
goes to the file as a numpy array; "-": nowhere.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

MEGABYTE = 1e6
NOWHERE = "-"


@dataclass(frozen=True, slots=True)
class Need:
    """What an action took."""

    seconds: float
    bytes: int

    def __str__(self) -> str:
        return f"{self.bytes / MEGABYTE:,.0f} MB"


def of(module: str, *arguments: object, result: Path | str = NOWHERE) -> Need:
    """What the action that the module prepares takes, apart from everything else."""
    command = [sys.executable, "-m", "bench.memory", str(result), module, *map(str, arguments)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return Need(**json.loads(done.stdout.splitlines()[-1]))


def spent(action: Callable[[], object]) -> Need:
    """What the action takes in this process."""
    # Linux forgets the highest mark so far.
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before = _status("VmRSS")
    started = time.perf_counter()
    action()
    elapsed = time.perf_counter() - started
    return Need(elapsed, max(0, _status("VmHWM") - before))


def _status(key: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:"))


def main(result: str, module: str, *arguments: str) -> None:
    """Prepare, then measure."""
    action = import_module(module).prepare(*arguments)
    given: list[Any] = []
    need = spent(lambda: given.append(action()))
    if result != NOWHERE:
        np.save(result, given[0])
    print(json.dumps(asdict(need)))


if __name__ == "__main__":
    main(*sys.argv[1:])
