"""Put the final table of a run folder between the markers of README.md.

Usage: python tools/readme_table.py RUN_DIR
"""

import re
import sys
from pathlib import Path

from holdout.experiments.curves import TableRow, final_table
from holdout.results import read_run
from holdout.terminal import accuracy_text

README = Path(__file__).resolve().parent.parent / "README.md"
MARKED = re.compile(r"(<!-- demo table -->\n).*?(<!-- /demo table -->)", re.DOTALL)


def main() -> None:
    """Write the table of the run folder into README.md."""
    rows = final_table(read_run(Path(sys.argv[1])).rounds)
    lines = ["| rule | without attack | under attack | drop |", "|---|---:|---:|---:|"]
    table = "\n".join([*lines, *map(_line, rows)])
    text = README.read_text(encoding="utf-8")
    README.write_text(MARKED.sub(rf"\g<1>{table}\n\g<2>", text), encoding="utf-8")


def _line(row: TableRow) -> str:
    if row.attack == "none":
        return f"| {row.label} | {accuracy_text(row)} | | |"
    drop = "" if row.drop is None else f"{row.drop:.1f} points"
    return f"| {row.label} | | {accuracy_text(row)} | {drop} |"


if __name__ == "__main__":
    main()
