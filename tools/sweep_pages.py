"""Publish finished sweeps: `docs/results/vote-family.md` and `docs/results/wrong-share.md`.

    python tools/sweep_pages.py [RUN_FOLDER...]

Each folder is one that `holdout sweep` has made of a file in `docs/results/sweeps`. Its `table.csv`
and `heatmap.png` are copied beside that file. Without a folder the pages are written again from
what is there.
"""

import argparse
import csv
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdout.config import read_file
from holdout.sweeps.sweep_file import read_sweep
from holdout.sweeps.sweep_folder import FAILED

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "results"
KEPT = RESULTS / "sweeps"
COPIED = {"table.csv": ".csv", "heatmap.png": ".png"}
TEXTS: Mapping[str, Sequence[str]] = {
    "vote-family": (
        "# Rules that ask voters, and the others",
        "A part of the sweep `vote-family`, whose 17,136 curves (27 attacks, three shares of "
        "liars, three kinds of skew, with and without worker momentum, 100 rounds, three seeds) "
        "would take one idle core about 77 hours (`holdout sweep vote-family --dry-run`). Left out "
        "are the other attacks, worker momentum, the settings of `holdout`, the last 70 rounds and "
        "further seeds. "
        "What follows: [which rule to take](../robustness.md#which-rule-to-take).",
    ),
    "wrong-share": (
        "# A wrong share of liars",
        "A part of the sweep `wrong-share`: rules are told half, all or double the true share of "
        "liars. Left out are other attacks and shares. "
        "What follows: [which rule to take](../robustness.md#which-rule-to-take).",
    ),
}
Row = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Sweep:
    """What a finished sweep measured."""

    name: str
    rows: Sequence[Row]
    axes: Sequence[str]
    """The axes that the adversary does not choose from and that have several values."""
    settled: Mapping[str, str]
    """Those that have one value, and which."""

    @property
    def rules(self) -> list[str]:
        """The rules, in the sweep's order."""
        return list(dict.fromkeys(row["rule"] for row in self.rows))

    @property
    def cells(self) -> list[tuple[str, ...]]:
        """The cells, in the sweep's order."""
        return list(dict.fromkeys(self.cell(row) for row in self.rows))

    def cell(self, row: Row) -> tuple[str, ...]:
        """Where a row is measured."""
        return tuple(row[axis] for axis in self.axes)

    def found(self, rule: str, cell: tuple[str, ...]) -> list[Row]:
        """The rows of one rule in one cell that could be run."""
        return [
            row
            for row in self.rows
            if row["rule"] == rule and self.cell(row) == cell and row["final"]
        ]


def read(name: str) -> Sweep:
    """The sweep that is kept under this name."""
    with (KEPT / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    fields = list(rows[0])
    given = fields[fields.index("rule") + 1 : fields.index("adversary")]
    axes = [key for key in given if not key.startswith("attack")]
    several = [key for key in axes if len({row[key] for row in rows}) > 1]
    return Sweep(name, rows, several, {key: rows[0][key] for key in axes if key not in several})


def page(name: str) -> str:
    """The page of a sweep that is kept."""
    sweep = read(name)
    settings = read_file(KEPT / f"{name}.toml")
    seeds, rounds = settings["experiment"]["seeds"], settings["experiment"]["rounds"]
    some = f"seeds {', '.join(map(str, seeds))}" if len(seeds) > 1 else f"seed {seeds[0]} alone"
    title, about = TEXTS[name]
    where = ", ".join(f"`{axis}`" for axis in sweep.axes)
    throughout = "".join(f"`{key} = {value}`; " for key, value in sweep.settled.items())
    lines = [
        *(title, "", about, ""),
        f"Final test accuracy in percent after {rounds} rounds, {some}; {throughout}cells are told "
        f"apart by {where}.",
        f"`holdout sweep docs/results/{KEPT.name}/{name}.toml` runs [it]({KEPT.name}/{name}.toml) "
        f"again; [all numbers]({KEPT.name}/{name}.csv). `python tools/sweep_pages.py` writes this "
        "page.",
        *("", f"![Final accuracy under the worst attack]({KEPT.name}/{name}.png)", ""),
        *("## Worst cases", "", *worst_cases(sweep)),
    ]
    for cell in sweep.cells:
        lines += ["", f"## {', '.join(cell)}", "", *every_attack(sweep, cell)]
    return "\n".join([*lines, ""])


def worst_cases(sweep: Sweep) -> list[str]:
    """Each rule's worst attack in each cell, ± the seeds' deviation; the best of a cell is bold."""
    lowest = {
        (rule, cell): min(found, key=_final)
        for rule in sweep.rules
        for cell in sweep.cells
        if (found := sweep.found(rule, cell))
    }
    best = {
        cell: max(_final(row) for (_, place), row in lowest.items() if place == cell)
        for cell in sweep.cells
    }

    def text(rule: str, cell: tuple[str, ...]) -> str:
        row = lowest.get((rule, cell))
        if row is None:
            return "–"
        number = f"{100 * _final(row):.1f}"
        bold = f"**{number}**" if _final(row) == best[cell] else number
        spread = f" ± {100 * float(row['final_sd']):.1f}" if row["final_sd"] else ""
        return f"{bold}{spread} {row['adversary']}"

    unattacked = ["mean, nobody lies", *(_unattacked(sweep, cell) for cell in sweep.cells)]
    body = [[rule, *(text(rule, c) for c in sweep.cells)] for rule in sweep.rules]
    return _table(["rule", *(", ".join(cell) for cell in sweep.cells)], [unattacked, *body])


def _unattacked(sweep: Sweep, cell: tuple[str, ...]) -> str:
    rows = (row for rule in sweep.rules for row in sweep.found(rule, cell))
    found = (_final(row) + float(row["below_unattacked"]) for row in rows)
    return f"{100 * next(found):.1f}"


def every_attack(sweep: Sweep, cell: tuple[str, ...]) -> list[str]:
    """Every attack against every rule in one cell."""
    found = {
        rule: {row["adversary"]: row for row in sweep.found(rule, cell)} for rule in sweep.rules
    }
    attacks = dict.fromkeys(row["adversary"] for row in sweep.rows if sweep.cell(row) == cell)
    body = [
        [attack, *(_number(found[rule].get(attack)) for rule in sweep.rules)] for attack in attacks
    ]
    return _table(["attack", *sweep.rules], body)


def _final(row: Row) -> float:
    return float(row["final"])


def _number(row: Row | None) -> str:
    return "–" if row is None else f"{100 * _final(row):.1f}"


def _table(head: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *body]
    return [f"| {' | '.join(line)} |" for line in lines]


def keep(folder: Path) -> None:
    """Take over what a finished sweep left."""
    ran = read_file(folder / "sweep.toml")
    name = ran["experiment"]["name"]
    if name not in TEXTS:
        raise SystemExit(f"{folder} holds {name}; there are pages for {', '.join(TEXTS)}")
    asked = read_sweep(read_file(KEPT / f"{name}.toml"))
    if read_sweep(ran) != asked:
        raise SystemExit(f"{folder} holds another sweep than {KEPT / name}.toml")
    if (folder / FAILED).exists():
        raise SystemExit(f"{folder / FAILED}: curves are missing; resume the sweep")
    for source, suffix in COPIED.items():
        shutil.copyfile(folder / source, KEPT / f"{name}{suffix}")


def main() -> None:
    """Take over the folders, then write the pages that have numbers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="*", type=Path)
    for folder in parser.parse_args().folders:
        keep(folder)
    for name in TEXTS:
        if (KEPT / f"{name}.csv").exists():
            (RESULTS / f"{name}.md").write_text(page(name), "utf-8")


if __name__ == "__main__":
    main()
