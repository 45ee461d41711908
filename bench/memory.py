"""What one action needs, in a process of its own: how long it takes and how much memory.

`python -m bench.memory MODULE FUNCTION ARGUMENT...` prepares the action by that function, does it
once, and prints one line of JSON: seconds, and bytes above what was there before.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType

MEGABYTE = 1e6


@dataclass(frozen=True, slots=True)
class Need:
    """What an action took."""

    seconds: float
    bytes: int

    def __str__(self) -> str:
        return f"{self.bytes / MEGABYTE:,.0f} MB"


def of(module: ModuleType, function: Callable[..., object], *arguments: object) -> Need:
    """What the action that the function prepares takes, apart from everything else."""
    name = getattr(function, "__name__", "")
    command = [sys.executable, "-m", "bench.memory", module.__name__, name, *map(str, arguments)]
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


def main(module: str, function: str, *arguments: str) -> None:
    """Prepare, then measure."""
    action = getattr(import_module(module), function)(*arguments)
    need = spent(action)
    print(json.dumps({"seconds": need.seconds, "bytes": need.bytes}))


if __name__ == "__main__":
    main(*sys.argv[1:])
