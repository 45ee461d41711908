"""The same config in ByzFL's benchmark and in `holdout sweep --byzfl`: time, and where curves end.

`byzfl_config.json` is ByzFL's default config made small: its network with full layers, one
distribution, two rules behind clipping and NNM, three attacks, three seeds. Both use two processes
of one thread each, on the 5,000 digits of `mnist-5k`. Times are of the processors, with all that a
user waits for: start, data, training, evaluation, files.
"""

import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.measure import Row

CONFIG = Path(__file__).with_name("byzfl_config.json")
JOBS, ROWS_EACH = 2, 400
"""Processes, and the rows that each of ten honest workers holds of the 4,000 for training."""
TARGET = 5.0


def rows() -> list[Row]:
    """One row: ByzFL's time divided by ours."""
    with tempfile.TemporaryDirectory() as folder:
        byzfl = _processor_seconds(["-m", "bench.byzfl_benchmark", str(JOBS)], Path(folder))
        ours = _processor_seconds(sweep_command(Path(folder)), Path(folder))
    note = f"processor time: ours {ours:.0f} s, ByzFL {byzfl:.0f} s"
    return [Row("a config of ByzFL's, 18 curves / ByzFL", byzfl / ours, TARGET, note)]


def sweep_command(folder: Path) -> list[str]:
    """The same config as a sweep, with the same digits."""
    changes = ["data.name=mnist-5k", f"data.samples_per_worker={ROWS_EACH}"]
    changes.append("experiment.baseline=false")
    settings = [word for change in changes for word in ("--set", change)]
    places = ["--out", str(folder / "sweep"), "--store", str(folder / "curves")]
    return [
        "-m",
        "holdout",
        "sweep",
        "--byzfl",
        str(CONFIG),
        "--jobs",
        str(JOBS),
        *places,
        *settings,
    ]


def _processor_seconds(arguments: Sequence[str], folder: Path) -> float:
    (folder / "config.json").write_bytes(CONFIG.read_bytes())
    path = [str(CONFIG.parent.parent), os.environ.get("PYTHONPATH", "")]
    # One thread a process is best for both: two processes share two cores.
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
    }
    before = _spent()
    command = [sys.executable, *arguments]
    subprocess.run(command, check=True, cwd=folder, env=environment, capture_output=True)
    return _spent() - before


def _spent() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
