"""What came out as tables: CSV for programs, LaTeX for papers, Markdown for people."""

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from holdout.sweeps.cells import MEASURES, Attacked, Cell, Cells
from holdout.sweeps.conditions import conditions_of
from holdout.sweeps.conditions_page import HEAD, ConditionsView
from holdout.sweeps.grid import Measure
from holdout.sweeps.layout import MapLayout, layout_of
from holdout.sweeps.workforce import FailedCurve

WORDS: Mapping[str, str] = {
    "final": "at the end",
    "lowest": "at the lowest point of the second half",
    "best": "at the best point",
}


def table_rows(cells: Cells) -> list[dict[str, Any]]:
    """A row for each contender, cell and choice of the adversary."""
    rows = []
    for contender in cells.contenders:
        for place in cells.places:
            cell = cells.cell(contender, place)
            rows += [_row(cells, cell, attacked) for attacked in cell.attacks]
    return rows


def _row(cells: Cells, cell: Cell, attacked: Attacked) -> dict[str, Any]:
    file = cells.file
    axes = {axis.key: axis.labels[j] for axis, j in zip(file.axes, attacked.point, strict=True)}
    row: dict[str, Any] = {"rule": cell.contender.label, **axes, "adversary": attacked.label}
    row["seeds"] = len(attacked.curves)
    for measure in MEASURES:
        spread = attacked.spread(measure)
        row[measure] = None if spread is None else spread.mean
        row[f"{measure}_sd"] = None if spread is None else spread.deviation
        row[f"{measure}_low"] = None if spread is None else spread.low
        row[f"{measure}_high"] = None if spread is None else spread.high
    row["below_unattacked"] = attacked.below()
    row["diverged"] = attacked.diverged
    at = conditions_of(attacked)
    row["g2"], row["b2"] = at.g2, at.b2
    row["judges_least"] = at.least if at.judges else None
    row["judges_median"] = at.median if at.judges else None
    row["judges_needed"] = at.needed
    row["liars_proposers"] = at.proposers.mean if at.proposers else None
    row["liars_voters"] = at.voters.mean if at.voters else None
    row["worst"] = attacked is cell.worst("final")
    row["problem"] = attacked.problem or ""
    return row


def table_csv(cells: Cells) -> str:
    """The rows as CSV; a number is a share of 1, an empty field was not measured."""
    rows = table_rows(cells)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({key: _field(value) for key, value in row.items()})
    return text.getvalue()


def _field(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.6g}" if isinstance(value, float) else str(value)


_TEX = {
    "\\": r"\textbackslash{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "α": r"$\alpha$",
    "±": r"$\pm$",
    "<": r"$<$",
    ">": r"$>$",
}


def tex(text: str) -> str:
    r"""Text as LaTeX reads it.

    >>> print(tex("nnm_1 & 50 %"))
    nnm\_1 \& 50 \%
    """
    return "".join(_TEX.get(sign, sign) for sign in text)


def table_tex(cells: Cells) -> str:
    """The heat maps as one LaTeX table (booktabs): the best of each column is bold."""
    layout, measure = layout_of(cells.file), cells.file.settings.measure
    columns = layout.columns
    in_unit = " in percent" if cells.metric.unit == "%" else ""
    lines = [
        "% Needs \\usepackage{booktabs}.",
        f"% Test {cells.metric.name} {WORDS[measure]}{in_unit}, under the worst attack; mean and "
        "standard deviation over seeds.",
        f"\\begin{{tabular}}{{l{'r' * len(columns)}}}",
        "\\toprule",
    ]
    head = " & ".join([tex(layout.row_title), *(tex(column.label) for column in columns)])
    if layout.column_title:
        lines.append(f" & \\multicolumn{{{len(columns)}}}{{c}}{{{tex(layout.column_title)}}} \\\\")
    lines.append(f"{head} \\\\")
    for panel in layout.panels:
        lines.append("\\midrule")
        if panel.label:
            span = len(columns) + 1
            lines.append(f"\\multicolumn{{{span}}}{{l}}{{\\emph{{{tex(panel.label)}}}}} \\\\")
        for row in layout.rows:
            found = [layout.cell(cells, panel, row, column) for column in columns]
            fields = [_tex_cell(cells, layout, cell, measure) for cell in found]
            lines.append(" & ".join([tex(row.label), *fields]) + " \\\\")
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}", ""])


def _tex_cell(cells: Cells, layout: MapLayout, cell: Cell, measure: Measure) -> str:
    spread = cell.value(measure)
    if spread is None:
        return "--"
    number = cells.metric.number(spread.mean)
    best = cells.best(cell.place, measure)
    if best is cell and layout.compares_rules:
        number = f"\\textbf{{{number}}}"
    if spread.deviation is None:
        return number
    return f"{number} {{\\scriptsize $\\pm$ {cells.metric.number(spread.deviation)}}}"


def worst_md(cells: Cells, failed: Sequence[FailedCurve]) -> str:
    """Each rule's worst attack in each cell, and what could not be run, in Markdown."""
    metric, measure = cells.metric, cells.file.settings.measure
    lines = [f"# {cells.file.name}: the worst attack of each rule", ""]
    adversary, seeds = _adversary(cells), len(cells.file.seeds)
    over = f"mean over {seeds} seeds ± standard deviation" if seeds > 1 else "one seed"
    lines += [
        f"Test {metric.name} {WORDS[measure]} under {adversary}; {over}.",
        "",
    ]
    lines += ["## Which rule stands best", ""]
    lines += _md_table(
        ["cell", "best rule", metric.name, "its worst attack", "below the unattacked mean"],
        [_best_row(cells, place, measure) for place in cells.places],
    )
    lines += ["", "## Every rule's worst attack", ""]
    head = ["rule", "cell", metric.name, "worst attack", "lowest", "best", "below"]
    chosen = bool(cells.file.chosen)
    lines += _md_table(
        [*head, *(["selected"] if chosen else [])],
        [
            [*_worst_row(cells, cells.cell(contender, place), measure)]
            + ([cells.cell(contender, place).chosen] if chosen else [])
            for contender in cells.contenders
            for place in cells.places
        ],
    )
    view = ConditionsView(cells)
    if view.is_known:
        lines += ["", "## What the cells are like", "", *_md_table(["cell", *HEAD], view.rows())]
    lines += _md_problems(cells, failed)
    return "\n".join([*lines, ""])


def _adversary(cells: Cells) -> str:
    count = len(cells.file.over(cells.file.worst))
    return f"the worst of {count} attacks" if count > 1 else "attack"


def _md_table(head: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
    def line(fields: Sequence[str]) -> str:
        return f"| {' | '.join(field.replace('|', chr(92) + '|') for field in fields)} |"

    return [line(head), line(["---"] * len(head)), *map(line, body)]


def _best_row(cells: Cells, place: Any, measure: Measure) -> list[str]:
    label, cell = cells.place_label(place) or "all", cells.best(place, measure)
    if cell is None:
        return [label, "–", "–", "–", "–"]
    return [label, cells.name(cell.contender), *_numbers(cells, cell, measure), _below(cells, cell)]


def _worst_row(cells: Cells, cell: Cell, measure: Measure) -> list[str]:
    label = cells.place_label(cell.place) or "all"
    others = [cell.value(other) for other in ("lowest", "best")]
    texts = ["–" if spread is None else cells.metric.text(spread.mean) for spread in others]
    numbers = _numbers(cells, cell, measure)
    return [cells.name(cell.contender), label, *numbers, *texts, _below(cells, cell)]


def _numbers(cells: Cells, cell: Cell, measure: Measure) -> list[str]:
    spread, worst = cell.value(measure), cell.worst(measure)
    if spread is None or worst is None:
        return ["cannot be run" if cell.problem else "missing", "–"]
    text = cells.metric.text(spread.mean)
    if spread.deviation is not None:
        text += f" ± {cells.metric.number(spread.deviation)}"
    return [text + (" (incomplete)" if cell.missing else ""), worst.label or "–"]


def _below(cells: Cells, cell: Cell) -> str:
    below = cell.below()
    return "–" if below is None else cells.metric.difference(cells.metric.scale * below)


def problems_of(cells: Cells, failed: Sequence[FailedCurve]) -> list[str]:
    """What cannot be run, with the reason, and what failed."""
    reasons: dict[str, list[str]] = {}
    for cell in cells.by_place.values():
        for reason in dict.fromkeys(a.problem for a in cell.attacks if a.problem):
            where = cells.place_label(cell.place)
            name = cells.name(cell.contender)
            reasons.setdefault(reason, []).append(f"{name} at {where}" if where else name)
    lines = [f"Cannot be run: {'; '.join(which)}: {reason}" for reason, which in reasons.items()]
    return [*lines, *(f"Failed: {curve.curve}: {curve.message}" for curve in failed)]


def _md_problems(cells: Cells, failed: Sequence[FailedCurve]) -> list[str]:
    problems = problems_of(cells, failed)
    lines = [f"- {' '.join(problem.split())}" for problem in problems]
    return ["", "## What is not there", "", *lines] if lines else []
