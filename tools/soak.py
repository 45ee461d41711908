"""Run many seeds of the simulator, continuing where the last call stopped.

    python tools/soak.py [--minutes M]

How many seeds are done is kept in build/soak.json, for one version of the source: after a change of
the protocol or the simulator it starts again from 0. Exits with 1 if a seed violates an invariant.
"""

import argparse
import hashlib
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import holdout.simulator.trial  # noqa: F401 - Loads the modules that `_version` hashes.
from holdout.results import write_atomic

ROOT = Path(__file__).parent.parent
STATE = ROOT / "build" / "soak.json"
SIZES = ((4, 1, 100_000, 2_000), (7, 2, 20_000, 400), (30, 9, 500, 10))
"""Workers, Byzantine workers, seeds, and how many seeds are run at a time."""


def main() -> int:
    """Run until all seeds are done or the time is up."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=float("inf"))
    end = time.monotonic() + 60 * parser.parse_args().minutes
    state = _read()
    # In turns, so that a soak that is stopped has run every size.
    while time.monotonic() < end and any(_left(state, *size) for size in SIZES):
        for size in SIZES:
            if _left(state, *size) and time.monotonic() < end and not _run(state, *size):
                return 1
    for workers, byzantine, seeds, _ in SIZES:
        done = state["done"].get(str(workers), 0)
        _say(f"{workers} workers, {byzantine} Byzantine: {done} of {seeds} seeds, no violation")
    return 0


def _run(state: dict[str, Any], workers: int, byzantine: int, seeds: int, step: int) -> bool:
    first = state["done"].get(str(workers), 0)
    last = min(first + step, seeds)
    command = [
        *(sys.executable, "-m", "holdout", "simulate", "--seeds", f"{first}..{last}"),
        *("--workers", str(workers), "--byzantine", str(byzantine), "--json"),
    ]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S603
    if found.returncode != 0:
        _say(found.stdout + found.stderr)
        return False
    state["done"][str(workers)] = last
    STATE.parent.mkdir(exist_ok=True)
    write_atomic(STATE, json.dumps(state, indent=1).encode())
    report = json.loads(found.stdout)
    _say(f"{workers} workers: seeds up to {last}, {report['rounds']} rounds, no violation")
    return True


def _left(state: dict[str, Any], workers: int, _byzantine: int, seeds: int, _step: int) -> int:
    return seeds - int(state["done"].get(str(workers), 0))


def _read() -> dict[str, Any]:
    version = _version()
    if STATE.exists():
        state: dict[str, Any] = json.loads(STATE.read_text())
        if state.get("version") == version:
            return state
    return {"version": version, "done": {}}


def _version() -> str:
    """A hash over the modules that a run of the simulator loads."""
    parts = ("holdout.agreement", "holdout.simulator", "holdout.voting")
    source = hashlib.sha256()
    for name in sorted(name for name in sys.modules if name.startswith(parts)):
        source.update(Path(str(sys.modules[name].__file__)).read_bytes())
    return source.hexdigest()


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
