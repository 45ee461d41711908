"""Put the final table of a run folder between the markers of README.md, and its figure beside it.

Usage: python tools/readme_table.py RUN_DIR
"""

import re
import sys
from pathlib import Path

from holdout.experiments.curves import TableRow, final_table
from holdout.results import read_run

README = Path(__file__).resolve().parent.parent / "README.md"
FIGURE = README.parent / "docs" / "demo.png"
MARKED = re.compile(r"(<!-- demo table -->\n).*?(<!-- /demo table -->)", re.DOTALL)


def main() -> None:
    """Write the table of the run folder into README.md, and its figure to docs/demo.png."""
    folder = Path(sys.argv[1])
    FIGURE.write_bytes((folder / "accuracy.png").read_bytes())
    rows = final_table(read_run(folder).rows)
    lines = ["| rule | without attack | under attack | drop |", "|---|---:|---:|---:|"]
    table = "\n".join([*lines, *map(_line, rows)])
    text = README.read_text(encoding="utf-8")
    README.write_text(MARKED.sub(rf"\g<1>{table}\n\g<2>", text), encoding="utf-8")


def _line(row: TableRow) -> str:
    return "|" + "|".join(f" {cell} " if cell else " " for cell in row.cells()) + "|"


if __name__ == "__main__":
    main()
