"""The heat map for a paper, as PNG and PDF: rules by columns, what their worst attack leaves."""

import io
import math
import textwrap
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.style import context

from holdout.experiments.figures import DPI
from holdout.sweeps.cells import Cell, Cells
from holdout.sweeps.grid import Measure
from holdout.sweeps.layout import Heading, MapLayout, layout_of
from holdout.sweeps.shades import ink_on, shade
from holdout.sweeps.tables import WORDS

CELL_WIDTH, CELL_HEIGHT = 1.05, 0.46
"""Inches."""
LABEL_INCHES = 0.078
"""The width of a letter of a row's name."""
WIDTH_MAX = 14.0
LINE_INCHES, HEAD_LETTER = 0.16, 0.07
"""The height of a line of the title, and the width of its letters."""
MARGIN = 0.14
ATTACK_CHARACTERS = 19
SETTINGS: list[Any] = [
    "default",
    {"font.size": 8.5, "axes.titlesize": 9, "pdf.fonttype": 42, "svg.hashsalt": "holdout"},
]


def heatmaps(cells: Cells) -> dict[str, bytes]:
    """The picture, by the ending of its file; the same cells give the same bytes."""
    with context(SETTINGS):
        figure = _figure(cells)
        FigureCanvasAgg(figure)
        found = {}
        for ending, metadata in (
            ("png", {"Software": None}),
            ("pdf", {"Creator": None, "Producer": None, "CreationDate": None}),
        ):
            content = io.BytesIO()
            # A version or a date in the file would make equal results differ.
            figure.savefig(content, format=ending, metadata=metadata)
            found[ending] = content.getvalue()
        return found


def share_of(cells: Cells, value: float) -> float:
    """Where a value stands between the least and the most that can be shown."""
    metric = cells.metric
    low, high = metric.shown_min, metric.highest if metric.highest is not None else 1.0
    return (value - low) / (high - low)


def _figure(cells: Cells) -> Figure:
    layout, measure = layout_of(cells.file), cells.file.settings.measure
    left = 0.35 + LABEL_INCHES * max(len(row.label) for row in layout.rows)
    panel_width = CELL_WIDTH * len(layout.columns)
    across = max(1, min(len(layout.panels), int((WIDTH_MAX - left) // (panel_width + 0.25))))
    down = math.ceil(len(layout.panels) / across)
    width = left + across * (panel_width + 0.25) + 0.9
    titled = 0.26 if any(panel.label for panel in layout.panels) else 0.05
    panel_height = CELL_HEIGHT * len(layout.rows)
    title = _title(cells, measure, int((width - MARGIN) / HEAD_LETTER))
    head = MARGIN + LINE_INCHES * len(title)
    height = down * (panel_height + titled + 0.5) + head
    figure = Figure(figsize=(width, height), dpi=DPI)
    for number, panel in enumerate(layout.panels):
        row, column = divmod(number, across)
        x = left + column * (panel_width + 0.25)
        y = height - head - titled - panel_height - row * (panel_height + titled + 0.5)
        axes = figure.add_axes((x / width, y / height, panel_width / width, panel_height / height))
        _draw_panel(axes, cells, layout, panel, measure, first=column == 0)
    at = (left + across * (panel_width + 0.25), width, height, panel_height, head)
    _draw_scale(figure, cells, at)
    where = (MARGIN / width, 1 - MARGIN / 2 / height)
    figure.text(*where, "\n".join(title), ha="left", va="top", fontsize=9)
    return figure


def _title(cells: Cells, measure: Measure, letters: int) -> list[str]:
    """What is shown, in lines as long as a picture is wide."""
    seeds, lies = len(cells.file.seeds), len(cells.file.over(cells.file.worst))
    worst = f"under the worst of {lies} attacks" if lies > 1 else "under attack"
    over = f"mean ± sd of {seeds} seeds" if seeds > 1 else "one seed"
    return textwrap.wrap(f"Test {cells.metric.name} {WORDS[measure]}, {worst}; {over}", letters)


def _draw_panel(
    axes: Axes, cells: Cells, layout: MapLayout, panel: Heading, measure: Measure, *, first: bool
) -> None:
    count, width = len(layout.rows), len(layout.columns)
    axes.set(xlim=(0, width), ylim=(count, 0))
    axes.set_xticks([i + 0.5 for i in range(width)], [_plain(c.label) for c in layout.columns])
    axes.set_yticks([i + 0.5 for i in range(count)], [_plain(r.label) for r in layout.rows])
    if not first:
        axes.set_yticklabels([])
    axes.tick_params(length=0, pad=3)
    axes.spines[:].set_visible(False)
    if layout.column_title:
        axes.set_xlabel(_plain(layout.column_title), labelpad=2)
    if panel.label:
        axes.set_title(_plain(textwrap.shorten(panel.label, 60, placeholder="…")), pad=4)
    for i, row in enumerate(layout.rows):
        for j, column in enumerate(layout.columns):
            cell = layout.cell(cells, panel, row, column)
            best = layout.compares_rules and cells.best(cell.place, measure) is cell
            _draw_cell(axes, cells, cell, measure, (j, i), is_best=best)


def _draw_cell(
    axes: Axes,
    cells: Cells,
    cell: Cell,
    measure: Measure,
    at: tuple[int, int],
    *,
    is_best: bool,
) -> None:
    (x, y), spread, worst = at, cell.value(measure), cell.worst(measure)
    if spread is None or worst is None:
        empty = Rectangle((x, y), 1, 1, facecolor="#f2f2f2", edgecolor="white", linewidth=1.2)
        axes.add_patch(empty)
        text = "infeasible" if cell.problem else "missing"
        axes.text(x + 0.5, y + 0.5, text, ha="center", va="center", fontsize=7, color="#555555")
        return
    colour = shade(share_of(cells, spread.mean))
    ink = ink_on(colour)
    axes.add_patch(Rectangle((x, y), 1, 1, facecolor=colour, edgecolor="white", linewidth=1.2))
    number = cells.metric.number(spread.mean)
    if spread.deviation is not None:
        number += f" ± {cells.metric.number(spread.deviation)}"
    weight = "bold" if is_best else "normal"
    mark = "*" if cell.missing else ""
    axes.text(
        x + 0.5, y + 0.36, f"{number}{mark}", ha="center", va="center", color=ink, weight=weight
    )
    attack = worst.label
    if len(attack) > ATTACK_CHARACTERS:
        attack = f"{attack[: ATTACK_CHARACTERS - 1].rstrip(', ')}…"
    axes.text(x + 0.5, y + 0.74, _plain(attack), ha="center", va="center", fontsize=6.2, color=ink)


def _draw_scale(
    figure: Figure, cells: Cells, place: tuple[float, float, float, float, float]
) -> None:
    x, width, height, panel_height, head = place
    metric = cells.metric
    tall = min(2.2, panel_height)
    axes = figure.add_axes(
        (
            (x + 0.05) / width,
            (height - head - 0.26 - tall) / height,
            0.12 / width,
            tall / height,
        )
    )
    low, high = metric.shown_min, metric.highest if metric.highest is not None else 1.0
    colours = ListedColormap([shade(i / 255) for i in range(256)])
    norm = Normalize(metric.scale * low, metric.scale * high)
    bar = figure.colorbar(ScalarMappable(norm, colours), cax=axes)
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=2, labelsize=7)
    bar.ax.set_title(metric.unit, fontsize=7, pad=3)


def _plain(text: str) -> str:
    """Text in which a dollar is a dollar."""
    return text.replace("$", "\\$")
