"""Whether a change of the code left every result as it was, to the byte.

    python tools/same_bytes.py --data DIR [--record]

Runs the demo with two seeds, ten rounds without a server, 200 seeds of the protocol's simulator at
two sizes, and the paper's MNIST figure cut to five rounds, all on one thread, and compares the
SHA-256 of what they write with those kept beside this script. `seconds` is left out: it is the only
field that may differ. The digests are of the vote by approvals, and were recorded when it was
called `holdout`, a round had no fields for joint ballots, nothing was measured before the first
one, and nobody measured how much honest updates differ; those of the simulator since players wait
for all but B members. They hold for one kind of processor and the
pinned torch; on another, record them before a change and compare after it.
"""

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

DIGESTS = Path(__file__).with_suffix(".json")
DECENTRALIZED = (
    Path(__file__).parent.parent / "src" / "holdout" / "experiments" / "decentralized.toml"
)
ONE_THREAD = ("--set", "experiment.threads=1")
APPROVALS = "holdout-1"
DEMO_RULES = ("mean", "trimmed-mean", "krum", "holdout-paper", APPROVALS)
LEFT_OUT = ("seconds", "weights", "voter_weights", "initial", "dissimilarity", "mean_norm2")
"""The time, the fields for joint ballots, what was measured before round 1, and how much honest
updates differ."""


def main() -> int:
    """Compare, or record; exit 1 if something differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with mnist/")
    parser.add_argument("--record", action="store_true", help="keep what comes out now")
    options = parser.parse_args()
    kept: dict[str, str] = {} if options.record else json.loads(DIGESTS.read_text("utf-8"))
    found: dict[str, str] = {}
    for name, digest in _cases(options.data).items():
        found[name] = digest()
        same = options.record or found[name] == kept.get(name)
        sys.stdout.write(f"{'ok  ' if same else 'DIFFERS'} {name} {found[name]}\n")
        sys.stdout.flush()
    if options.record:
        DIGESTS.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
        return 0
    return int(found != kept)


def _cases(data: Path) -> dict[str, Callable[[], str]]:
    mnist = str(data / "mnist")
    return {
        "demo, two seeds": lambda: _run(
            *("run", *_rules(*DEMO_RULES), "--set", "experiment.seeds=[0,1]", *ONE_THREAD)
        ),
        "without a server, 10 rounds": lambda: _run(
            *("run", str(DECENTRALIZED), *_rules(APPROVALS)),
            *("--set", "experiment.rounds=10", *ONE_THREAD),
        ),
        "simulate, 200 seeds, n = 4": lambda: _simulate("4", "1"),
        "simulate, 200 seeds, n = 7": lambda: _simulate("7", "2"),
        "reproduce mnist --quick, 5 rounds": lambda: _run(
            *("reproduce", "mnist", "--quick", "--data", mnist),
            *("--set", "experiment.rounds=5", *ONE_THREAD),
        ),
    }


def _rules(*names: str) -> tuple[str, str]:
    return "--set", f"experiment.rules={json.dumps(names)}"


def _run(*arguments: str) -> str:
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "run"
        _holdout(*arguments, "--out", str(folder))
        files = sorted(folder.rglob("results.jsonl"))
        lines = [line for file in files for line in file.read_text("utf-8").splitlines()]
    if not lines:
        raise SystemExit(f"{arguments} wrote no results")
    return _digest("\n".join(json.dumps(_as_recorded(json.loads(line))) for line in lines))


def _as_recorded(record: dict[str, Any]) -> dict[str, Any]:
    """A round as it was when the digests were made."""
    kept = {key: value for key, value in record.items() if key not in LEFT_OUT}
    return {**kept, "rule": "holdout" if kept["rule"] == APPROVALS else kept["rule"]}


def _simulate(workers: str, byzantine: str) -> str:
    return _digest(
        _holdout(
            *("simulate", "--seeds", "0..200", "--workers", workers),
            *("--byzantine", byzantine, "--json"),
        )
    )


def _holdout(*arguments: str) -> str:
    command = [sys.executable, "-m", "holdout", *arguments]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)  # noqa: S603
    return done.stdout


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


if __name__ == "__main__":
    sys.exit(main())
