"""Wait for every node, run the rounds, and write the outcome to a file."""

import json
import resource
import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from holdout.flower import HoldOut

app = ServerApp()


def peak_bytes() -> int:
    """The most memory that this process has held so far."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run, and write `finished.json` even if something was raised."""
    config = context.run_config
    folder = Path(str(config["folder"]))
    outcome: dict[str, object] = {}
    try:
        while len(list(grid.get_node_ids())) < int(config["nodes"]):
            time.sleep(0.1)
        strategy = HoldOut(
            ballots="approvals",
            fraction_train=0.5,
            propose_timeout=float(config["timeout"]),
            vote_timeout=float(config["timeout"]),
            min_ballots=1,
            fraction_evaluate=0.0,
            run_folder=folder / "run",
            seed=0,
        )
        start = ArrayRecord({"w": Array(np.zeros((3, int(config["width"])), np.float32))})
        before = peak_bytes()
        result = strategy.start(grid, start, num_rounds=int(config["rounds"]))
        outcome["grown"] = peak_bytes() - before
        outcome["rounds"], outcome["reason"] = result.rounds, result.reason
        outcome["weights"] = sorted(set(result.arrays["w"].numpy().ravel().tolist()))
    except Exception as error:
        outcome["error"] = f"{type(error).__name__}: {error}"
        raise
    finally:
        partial = folder / "finished.partial"
        partial.write_text(json.dumps(outcome), "utf-8")
        partial.rename(folder / "finished.json")
