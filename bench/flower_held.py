"""What a SuperLink holds while a joint round of large models goes through it.

    python -m bench.flower_held
    python -m bench.flower_held --at-once 10

A real SuperLink with a database, and twenty SuperNodes that answer at once, all in processes of
this machine: the worst case, since every reply is uploaded at the same time. The database is asked
again and again how many bytes of objects it holds. The second command asks ten nodes at a time.
"""

import argparse
import json
import sqlite3
import tempfile
import threading
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from bench.flower_cost import HALF, WEIGHTS
from bench.loading import load

ROOT = Path(__file__).resolve().parent.parent
APP = ROOT / "bench" / "flower_app"
DEPLOY = ROOT / "examples" / "flower-mnist" / "deploy.py"
ASK_EVERY = 0.05
RUN_SECONDS = 1800.0
HELD = "SELECT COALESCE(SUM(LENGTH(content)), 0), COUNT(*) FROM objects"


@dataclass(slots=True)
class Watch:
    """Asks a SuperLink's database what it holds, until told to stop."""

    database: Path
    peak: int = 0
    asked: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Ask until told to stop."""
        with closing(sqlite3.connect(f"file:{self.database}?mode=ro", uri=True)) as link:
            while not self._stop.wait(ASK_EVERY):
                held, _ = link.execute(HELD).fetchone()
                self.peak = max(self.peak, held)
                self.asked += 1

    def stop(self) -> None:
        """No more."""
        self._stop.set()


def held(nodes: int = 2 * HALF, weights: int = WEIGHTS, at_once: int = 0) -> Watch:
    """One round; the most that the SuperLink held."""
    deploy = load(DEPLOY)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        database, out = folder / "link.db", folder / "out.json"
        with deploy.deployed(folder, nodes, "--database", str(database)) as deployment:
            watch = Watch(database)
            thread = threading.Thread(target=watch.run)
            thread.start()
            try:
                settings = f'out="{out}" nodes={nodes} weights={weights} at-once={at_once}'
                deployment.flwr("run", str(APP), "deployment", "--run-config", settings)
                deployment.wait(out.exists, "the end of the round", RUN_SECONDS)
            finally:
                watch.stop()
                thread.join()
            metrics = json.loads(out.read_text("utf-8"))
        if metrics.get("holdout-ballots-accepted") != nodes // 2:
            raise RuntimeError(f"the round went wrong: {metrics}")
    return watch


def main() -> None:
    """Measure once and print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=2 * HALF)
    parser.add_argument("--weights", type=int, default=WEIGHTS)
    parser.add_argument("--at-once", type=int, default=0, help="nodes asked at a time; 0: all")
    options = parser.parse_args()
    found = held(options.nodes, options.weights, options.at_once)
    model = 4 * options.weights
    print(
        f"{options.nodes} nodes, {options.weights:,} weights: the SuperLink held at most "
        f"{found.peak / 1e6:,.0f} MB of objects, {found.peak / model:.1f} models "
        f"(asked {found.asked} times)"
    )


if __name__ == "__main__":
    main()
