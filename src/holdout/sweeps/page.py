"""`sweep.html`: the heat maps of a sweep as one page that works offline.

The maps are tables, made here and read without a script. A cell is a button: the script in
`sweep_template.html` draws its curves from the data beside it. The same cells give the same bytes.
"""

import html
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from statistics import fmean
from typing import Any

import tomli_w

from holdout.experiments.charts import spaced
from holdout.experiments.figures import COLOURS, DASHES
from holdout.experiments.report import script_json, table_html
from holdout.metrics import INITIAL
from holdout.sweeps.cells import MEASURES, Attacked, Cell, Cells
from holdout.sweeps.conditions_page import ConditionsView, sentence_of
from holdout.sweeps.curve_store import StoredCurve
from holdout.sweeps.grid import Measure
from holdout.sweeps.heatmap import share_of
from holdout.sweeps.layout import Heading, MapLayout, layout_of
from holdout.sweeps.shades import ink_on, shade
from holdout.sweeps.tables import WORDS, problems_of
from holdout.sweeps.workforce import FailedCurve

LEVELS = 50
"""Colours of the maps."""
POINTS_MAX = 60
POINTS_ALL = 160_000
"""Points of one curve, and of all curves: what keeps a page below 1.5 MB."""
BELOW = "below"
TITLES: Mapping[str, str] = {
    "final": "final",
    "lowest": "lowest",
    "best": "best",
    BELOW: "below the unattacked mean",
}
DASH_LENGTHS = ("", "7 4", "2 3", "8 3 2 3", "4 4", "8 3 2 3 2 3", "2 6", "13 3 2 3")


def page_html(cells: Cells, failed: Sequence[FailedCurve]) -> str:
    """The page of a sweep."""
    numbers = {id(cell): i for i, cell in enumerate(cells.by_place.values())}
    layout = layout_of(cells.file)
    has_upper = any(cell.below() is not None for cell in cells.by_place.values())
    shown = [*MEASURES, *([BELOW] if has_upper else [])]
    view = ConditionsView(cells)
    maps = "".join(
        f'<div class="maps {kind}">{_maps(cells, layout, kind, numbers, view)}</div>'
        for kind in shown
    )
    problems = problems_of(cells, failed)
    seeds, lies = len(cells.file.seeds), len(cells.file.over(cells.file.worst))
    parts = {
        "title": html.escape(cells.file.name),
        "headline": html.escape(headline(cells)),
        "facts": html.escape(
            f"{len(cells.contenders)} rules · {max(1, lies)} attack{'s' * (lies > 1)} · "
            f"{len(cells.places)} cell{'s' * (len(cells.places) != 1)} a rule · "
            f"{seeds} seed{'s' * (seeds != 1)}"
        ),
        "kinds": _kinds(cells, shown),
        "hiding": "\n".join(
            f"body:has(#m-{kind}:checked) .maps:not(.{kind}) {{ display: none; }}" for kind in shown
        ),
        "shades": "\n".join(_shade_style(level) for level in range(LEVELS + 1)),
        "maps": maps,
        "scale": _scale(cells),
        "best": _best_table(cells, numbers),
        "problems": "".join(f"<li>{html.escape(line)}</li>" for line in problems),
        "has_problems": "" if problems else "hidden",
        "about": html.escape(_about(cells)),
        "conditions": html.escape(view.about(layout)),
        "conditions_table": view.table(layout),
        "config": html.escape(tomli_w.dumps(cells.file.as_dict())),
        "data": script_json(_data(cells)),
    }
    template = files("holdout.sweeps").joinpath("sweep_template.html").read_text("utf-8")
    # One pass, so that a part that looks like a placeholder stays as it is.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)


def headline(cells: Cells) -> str:
    """The sweep in a sentence or two."""
    measure = cells.file.settings.measure
    wins: dict[str, int] = {}
    for place in cells.places:
        best = cells.best(place, measure)
        if best is not None:
            name = cells.name(best.contender)
            wins[name] = wins.get(name, 0) + 1
    if not wins:
        return "Nothing has been measured."
    told = ", ".join(
        f"{name} in {count}" for name, count in sorted(wins.items(), key=lambda win: -win[1])
    )
    count = len(cells.places)
    first = f"Under its worst attack the best rule of {count} cell{'s' * (count != 1)} is {told}."
    return f"{first}{_steadiest(cells, measure)}"


def _steadiest(cells: Cells, measure: Measure) -> str:
    """Which rule is best where it does worst."""
    floors: dict[str, tuple[float, str]] = {}
    for contender in cells.contenders:
        found = [
            (spread.mean, cells.place_label(place))
            for place in cells.places
            if (spread := cells.cell(contender, place).value(measure)) is not None
        ]
        if len(found) == len(cells.places):
            floors[cells.name(contender)] = min(found)
    if not floors or len(cells.places) < 2:  # noqa: PLR2004
        return ""
    name = max(floors, key=lambda label: floors[label][0])
    value, where = floors[name]
    return f" {name} falls least: to {cells.metric.text(value)} where it does worst ({where})."


def _about(cells: Cells) -> str:
    metric, seeds = cells.metric, len(cells.file.seeds)
    over = f"mean ± standard deviation over {seeds} seeds" if seeds > 1 else "one seed"
    told = (
        f"Each cell: test {metric.name} under the attack that leaves least ({over}), and that "
        "attack's name. Final: after the last round. Lowest: the least that was measured in the "
        "second half of the rounds. Best: the highest of any round, which nobody knows while "
        f"training goes on. A curve that diverged counts as {metric.text(metric.shown_min)}. "
        "The best rule of each column is framed."
    )
    if cells.file.chosen:
        keys = ", ".join(cells.file.axes[i].key for i in cells.file.chosen)
        selected = ", ".join(map(str, cells.file.settings.select_seeds))
        told += (
            f" {keys}: for each rule and cell, the value whose worst attack leaves most on seeds "
            f"{selected}, which are not shown."
        )
    return told


def _kinds(cells: Cells, shown: Sequence[str]) -> str:
    first = cells.file.settings.measure
    return "".join(
        f'<label><input type="radio" name="kind" id="m-{kind}"{" checked" * (kind == first)}>'
        f" {html.escape(TITLES[kind])}</label>"
        for kind in shown
    )


def _shade_style(level: int) -> str:
    colour = shade(level / LEVELS)
    return f".s{level} {{ background: {colour}; color: {ink_on(colour)}; }}"


def _scale(cells: Cells) -> str:
    """The colours with the ends of the scale."""
    metric = cells.metric
    low, high = metric.shown_min, metric.highest if metric.highest is not None else 1.0
    boxes = "".join(f'<i class="s{level}"></i>' for level in range(0, LEVELS + 1, 2))
    return (
        f'<div class="scale" aria-hidden="true"><span>{html.escape(metric.text(low))}</span>'
        f"<span class=bar>{boxes}</span><span>{html.escape(metric.text(high))}</span></div>"
    )


def _maps(
    cells: Cells,
    layout: MapLayout,
    kind: str,
    numbers: Mapping[int, int],
    view: ConditionsView,
) -> str:
    return "".join(
        _panel(cells, layout, panel, kind, numbers, beside=view.beside(layout, panel))
        for panel in layout.panels
    )


def _panel(
    cells: Cells,
    layout: MapLayout,
    panel: Heading,
    kind: str,
    numbers: Mapping[int, int],
    *,
    beside: str,
) -> str:
    heads = "".join(f'<th scope="col">{html.escape(c.label)}</th>' for c in layout.columns)
    over = (
        f'<tr><td></td><th class="over" colspan="{len(layout.columns)}">'
        f"{html.escape(layout.column_title)}</th></tr>"
        if layout.column_title
        else ""
    )
    rows = []
    for row in layout.rows:
        found = [layout.cell(cells, panel, row, column) for column in layout.columns]
        boxes = "".join(_box(cells, layout, cell, kind, numbers[id(cell)]) for cell in found)
        rows.append(f'<tr><th scope="row">{html.escape(row.label)}</th>{boxes}</tr>')
    caption = f"<caption>{html.escape(panel.label)}</caption>" if panel.label else ""
    first = f'<tr><th scope="col">{html.escape(layout.row_title)}</th>{heads}</tr>'
    return (
        f'<div class="panel"><table class="map">{caption}<thead>{over}{first}</thead>'
        f"<tbody>{''.join(rows)}</tbody></table>{beside}</div>"
    )


def _box(cells: Cells, layout: MapLayout, cell: Cell, kind: str, number: int) -> str:
    measure: Measure = kind if kind in MEASURES else "final"
    metric, spread, worst = cells.metric, cell.value(measure), cell.worst(measure)
    below = cell.below() if kind == BELOW else None
    if spread is None or worst is None or (kind == BELOW and below is None):
        why = "infeasible" if cell.problem else "missing"
        return f'<td class="none" title="{html.escape(cell.problem or "")}">{why}</td>'
    if below is not None:
        level, text = 1 - below, f"{metric.scale * below:.{metric.digits}f}"
    else:
        level, text = share_of(cells, spread.mean), metric.number(spread.mean)
    give = "" if spread.deviation is None else f"<small>± {metric.number(spread.deviation)}</small>"
    give = "" if kind == BELOW else give
    star = '<abbr title="some curves of it are missing">*</abbr>' * bool(cell.missing)
    best = " best" if layout.compares_rules and cells.best(cell.place, measure) is cell else ""
    place = round(LEVELS * min(1.0, max(0.0, level)))
    return (
        f'<td class="s{place}{best}"><button data-cell="{number}">{text}{star} {give}'
        f"<span>{html.escape(worst.label)}</span></button></td>"
    )


def _best_table(cells: Cells, numbers: Mapping[int, int]) -> str:
    del numbers
    measure, metric = cells.file.settings.measure, cells.metric
    body = []
    for place in cells.places:
        best = cells.best(place, measure)
        spread = best.value(measure) if best else None
        worst = best.worst(measure) if best else None
        if best is None or spread is None or worst is None:
            body.append([cells.place_label(place) or "all", "–", "–", "–", "–"])
            continue
        below = best.below()
        body.append(
            [
                cells.place_label(place) or "all",
                cells.name(best.contender),
                metric.text(spread.mean, space="\N{NO-BREAK SPACE}"),
                worst.label or "–",
                "–" if below is None else metric.difference(metric.scale * below),
            ]
        )
    head = ["cell", "best rule", f"{metric.name} {WORDS[measure]}", "its worst attack"]
    return table_html([*head, "below the unattacked mean"], body)


def _data(cells: Cells) -> dict[str, Any]:
    """What the script draws: every cell's curves, thinned so that the page stays small."""
    found = list(cells.by_place.values())
    count = sum(1 + len(cell.attacks) for cell in found)
    points = max(6, min(POINTS_MAX, POINTS_ALL // max(1, count)))
    lines = _Lines(cells, points)
    metric = cells.metric
    return {
        "axis": metric.axis,
        "scale": metric.scale,
        "digits": metric.digits,
        "low": metric.shown_min,
        "looks": [[light, dark] for light, dark in COLOURS],
        "dashes": list(DASH_LENGTHS[: len(DASHES)]),
        "cells": [
            {**_cell_data(cells, cell, lines), "about": sentence_of(cells, cell)} for cell in found
        ],
        "rounds": lines.rounds,
    }


class _Lines:
    """Means over the seeds as short lists of whole numbers; equal rounds are kept once."""

    def __init__(self, cells: Cells, points: int) -> None:
        self._key = cells.metric.key
        self._points = points
        self.rounds: list[list[int]] = []

    def of(self, curves: Sequence[StoredCurve]) -> list[Any] | None:
        found: dict[int, list[float]] = {}
        for curve in curves:
            initial = curve.rows[0].get(INITIAL)
            if isinstance(initial, Mapping) and initial.get(self._key) is not None:
                found.setdefault(0, []).append(initial[self._key])
            for number, value in curve.measured:
                found.setdefault(number, []).append(value)
        if not found:
            return None
        rounds = sorted(found)
        kept = [rounds[place] for place in spaced(len(rounds), self._points)]
        if kept not in self.rounds:
            self.rounds.append(kept)
        values = [round(1000 * fmean(found[number])) for number in kept]
        return [self.rounds.index(kept), values]


def _cell_data(cells: Cells, cell: Cell, lines: _Lines) -> dict[str, Any]:
    worst = cell.worst(cells.file.settings.measure)
    upper = next((a.upper for a in cell.attacks if a.upper), {})
    return {
        "rule": cells.name(cell.contender),
        "place": cells.place_label(cell.place),
        **({"chosen": cell.chosen} if cell.chosen else {}),
        "worst": next((i for i, a in enumerate(cell.attacks) if a is worst), -1),
        "upper": lines.of(list(upper.values())),
        "attacks": [_attack_data(cells, attacked, lines) for attacked in cell.attacks],
    }


def _attack_data(cells: Cells, attacked: Attacked, lines: _Lines) -> list[Any]:
    metric = cells.metric
    if attacked.problem is not None or not attacked.curves:
        return [attacked.label or "attack", attacked.problem or "missing"]
    numbers = []
    for measure in MEASURES:
        spread = attacked.spread(measure)
        assert spread is not None  # noqa: S101
        text = metric.number(spread.mean)
        if spread.deviation is not None:
            text += f" ({metric.number(spread.low)}–{metric.number(spread.high)})"
        numbers.append(text)
    line = lines.of(list(attacked.curves.values()))
    return [attacked.label or "attack", None, numbers, attacked.diverged, line]
