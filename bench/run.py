"""Takes all rows, prints them and writes `bench/results.json`.

`python -m bench.run NAME...` takes those of some modules alone, and keeps what there is of others.
A further module of rows needs a function `rows() -> list[Row]` and its name in `MODULES`.
"""

import argparse
import json
import os
import platform
from dataclasses import asdict
from pathlib import Path
from types import ModuleType

import torch
from rich.console import Console
from rich.table import Table

from bench import (
    agreement,
    byzfl_sweep,
    figures,
    flower,
    growth,
    joint,
    node,
    peers,
    quick,
    rounds,
    rules,
    scoring,
    training,
    votes,
)
from bench.measure import Row

MODULES = (scoring, votes, rounds, joint, quick, figures, growth, agreement, flower, node)
PEERS = (training, rules, byzfl_sweep)
"""Beside ByzFL and Flower, where those are installed: `make bench` does that."""
RESULTS = Path(__file__).with_name("results.json")
CPUINFO = Path("/proc/cpuinfo")


def main() -> None:
    """Reports; a missed target on a busy machine is no error."""
    modules = {_name(m): m for m in MODULES + (PEERS if peers.available() else ())}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *modules], metavar="NAME")
    names = parser.parse_args().names or list(modules)
    where, taken = machine(), list[Row]()
    found = json.loads(RESULTS.read_bytes())["rows"] if RESULTS.exists() else []
    kept = [row for row in found if row.get("module") in modules]
    for name in names:
        rows = modules[name].rows()
        taken += rows
        # Module by module: what was measured stays, whatever the next one meets.
        kept = [row for row in kept if row["module"] != name]
        kept += [{"module": name, **asdict(row), "met": row.met} for row in rows]
        kept.sort(key=lambda row: list(modules).index(row["module"]))
        results = {"machine": where, "rows": kept}
        RESULTS.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    Console(width=110).print(_table(taken, where))


def _name(module: ModuleType) -> str:
    return module.__name__.removeprefix("bench.")


def machine() -> dict[str, str | int]:
    """Where the times were taken."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count() or 1,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def _cpu() -> str:
    if CPUINFO.exists():
        for line in CPUINFO.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def _table(rows: list[Row], where: dict[str, str | int]) -> Table:
    caption = ", ".join(f"{name} {value}" for name, value in where.items())
    table = Table("what", "ratio", "target", "", title="Speed", caption=caption)
    for row in rows:
        outcome = "[green]met[/]" if row.met else "[red]missed[/]"
        what = f"{row.name}\n  {row.note}" if row.note else row.name
        table.add_row(what, f"{row.ratio:.2f}", f"{row.target:.2f}", outcome)
    return table


if __name__ == "__main__":
    main()
