"""Figures for a paper: what was measured over the rounds, as PNG bytes; and how curves look.

The colours are Okabe and Ito's, which the colour-blind can tell apart; in grey, dashes and markers
differ. HoldOut has the same look in every figure, and the unattacked mean is dashed black.
"""

import io
import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, get_font
from matplotlib.lines import Line2D
from matplotlib.style import context
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from holdout.curve_rows import NO_ATTACK
from holdout.experiments.curves import CurveResult, name_of
from holdout.metrics import ACCURACY, Metric
from holdout.voting import VOTES

SIZE_INCHES = (7.2, 4.0)
PANEL_INCHES = 3.6
DPI = 240
SETTINGS: list[Any] = [
    "default",
    {"font.size": 9, "axes.linewidth": 0.8, "axes.titlesize": 9.5, "legend.fontsize": 8.5},
]
LABEL_CHARACTERS_MAX = 32
TITLE_CHARACTERS_MAX = 44
"""A longer line of a panel's title would run into the next panel's."""
MARKERS_PER_CURVE = 8

COLOURS = ("#D55E00", "#009E73", "#CC79A7", "#E69F00", "#6B6B6B", "#7A4B94")
# With six colours and five markers, thirty looks differ.
MARKERS = ("square", "triangle-up", "diamond", "x", "triangle-down")
DASHES = ("solid", "dash", "dot", "dashdot")

_MARKERS = {
    "none": "",
    "circle": "o",
    "square": "s",
    "triangle-up": "^",
    "diamond": "D",
    "x": "x",
    "triangle-down": "v",
    "cross": "P",
}
_DASHES = {
    "solid": (0.0, None),
    "dash": (0.0, (5.0, 2.0)),
    "dot": (0.0, (1.5, 1.5)),
    "dashdot": (0.0, (6.0, 1.5, 1.5, 1.5)),
    "longdash": (0.0, (7.0, 3.0)),
}


@dataclass(frozen=True, slots=True)
class Look:
    """How a curve is drawn, in the words of plotly."""

    colour: str
    dash: str
    marker: str
    width: float


PROMINENT = (Look("#0072B2", "solid", "circle", 2.4), Look("#56B4E9", "solid", "cross", 2.0))
"""The looks of the votes, the most prominent first."""


def looks(curves: Sequence[CurveResult]) -> list[Look]:
    """A look for each curve, the same in the figure and on the page."""
    prominent = {
        name: PROMINENT[vote.prominence]
        for name, vote in VOTES.items()
        if vote.prominence < len(PROMINENT)
    }
    found, others = [], 0
    for curve in curves:
        if curve.is_baseline:
            found.append(Look("#000000", "longdash", "none", 1.6))
        elif curve.attack != NO_ATTACK and curve.rule in prominent:
            # Under a second attack the rule looks like any other: no two curves look the same.
            found.append(prominent.pop(curve.rule))
        else:
            colour = COLOURS[others % len(COLOURS)]
            found.append(
                Look(colour, DASHES[others % len(DASHES)], MARKERS[others % len(MARKERS)], 1.6)
            )
            others += 1
    return found


def looks_of_rules(panels: Sequence[Sequence[CurveResult]]) -> dict[str, Look]:
    """A look for each rule of any panel; no two rules look the same, in whichever panels."""
    rules: dict[str, CurveResult] = {}
    for curves in sorted(panels, key=len, reverse=True):
        for curve in curves:
            if not curve.is_baseline:
                rules.setdefault(curve.rule, curve)
    return dict(zip(rules, looks(list(rules.values())), strict=True))


RATIO_MAX = 30.0
"""Where there is no end of the scale, values that differ by more make it logarithmic."""


def quantity_png(curves: Sequence[CurveResult], quantity: Metric) -> bytes:
    """A quantity of every curve over the rounds; the same curves give the same bytes."""
    # The user's matplotlib settings must not change the picture.
    with context(SETTINGS):
        figure = Figure(figsize=SIZE_INCHES, dpi=DPI, layout="constrained")
        axes = _prepared(figure.add_subplot())
        axes.set_ylabel(quantity.axis)
        drawn = _draw(axes, curves, looks(curves), quantity)
        if drawn:
            _add_legend(figure, curves, drawn, best_is_high=quantity.best_is_high)
        else:
            axes.set(xlim=(0, 1), ylim=(0, 100), xticks=[])
            axes.text(0.5, 50, "no round was evaluated", ha="center", va="center", color="#5F6B7A")
        return _png(figure)


def panels_png(panels: Sequence[tuple[str, Sequence[CurveResult]]]) -> bytes:
    """Several experiments side by side, each with its title; a rule looks the same in all."""
    by_rule = looks_of_rules([curves for _, curves in panels])
    width = PANEL_INCHES * len(panels) + SIZE_INCHES[0] - SIZE_INCHES[1]
    with context(SETTINGS):
        figure = Figure(figsize=(width, SIZE_INCHES[1]), dpi=DPI, layout="constrained")
        entries: dict[str, tuple[float, str, Line2D]] = {}
        for place, (title, curves) in enumerate(panels, start=1):
            axes = _prepared(figure.add_subplot(1, len(panels), place))
            lines = [textwrap.fill(line, TITLE_CHARACTERS_MAX) for line in title.splitlines()]
            axes.set_title("\n".join(lines))
            if place == 1:
                axes.set_ylabel(ACCURACY.axis)
            # The title names the attack.
            shown = [c if c.is_baseline else replace(c, label=name_of(c.rule)) for c in curves]
            chosen = [
                look if curve.is_baseline else by_rule.get(curve.rule, look)
                for curve, look in zip(shown, looks(shown), strict=True)
            ]
            entries |= {entry[1]: entry for entry in _draw(axes, shown, chosen, ACCURACY)}
        if entries:
            _add_legend(figure, [c for _, curves in panels for c in curves], list(entries.values()))
        return _png(figure)


def _prepared(axes: Axes) -> Axes:
    axes.set_xlabel("round")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#E4E7EB", linewidth=0.7)
    axes.set_axisbelow(True)
    return axes


def _png(figure: Figure) -> bytes:
    FigureCanvasAgg(figure)
    content = io.BytesIO()
    # A version or a date in the file would make equal results differ.
    figure.savefig(content, format="png", metadata={"Software": None})
    return content.getvalue()


def _draw(
    axes: Axes, curves: Sequence[CurveResult], chosen: Sequence[Look], quantity: Metric
) -> list[tuple[float, str, Line2D]]:
    """Draw the curves; the final value, label and line of each that has a measured round."""
    drawn = []
    rounds_max, low, high = 1, math.inf, -math.inf
    for place, (curve, look) in enumerate(zip(curves, chosen, strict=True)):
        line = curve.line(quantity.key, scale=quantity.scale)
        if not line.rounds:
            continue
        # HoldOut and the upper bound lie on top, where curves coincide.
        order = 3 + (50 if curve.rule == "holdout" or curve.is_baseline else place)
        (artist,) = axes.plot(
            line.rounds,
            line.mean,
            color=look.colour,
            linestyle=_DASHES[look.dash],
            linewidth=look.width * 0.75,
            marker=_MARKERS[look.marker] if len(line.rounds) > 1 else "o",
            markersize=4.2,
            # The markers of each curve start at another place, so that few cover each other.
            markevery=(place % max(1, step), step)
            if (step := len(line.rounds) // MARKERS_PER_CURVE) > 1
            else 1,
            zorder=order,
        )
        if len(curve.seeds) > 1:
            axes.fill_between(
                line.rounds, line.low, line.high, color=look.colour, alpha=0.16, linewidth=0
            )
        drawn.append((line.mean[-1], curve.label, artist))
        rounds_max = max(rounds_max, line.rounds[-1])
        low, high = min(low, *line.low), max(high, *line.high)
    if drawn:
        _set_scale(axes, quantity, low, high)
        axes.set_xlim(0, rounds_max * 1.015)
        axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True, steps=[1, 2, 5, 10]))
    return drawn


def _set_scale(axes: Axes, quantity: Metric, low: float, high: float) -> None:
    """Show all that counts; a curve that diverges must not flatten the others."""
    if quantity.highest is not None:
        least, most = quantity.scale * quantity.shown_min, quantity.scale * quantity.highest
        low = max(low, least)
        margin = max(0.02 * most, 0.05 * (high - low))
        axes.set_ylim(max(least, low - margin), min(1.005 * most, max(high, low) + margin))
    elif low > 0 and high > RATIO_MAX * low:
        axes.set_yscale("log")
        # In powers of ten, so that huge losses leave the axis readable.
        axes.yaxis.set_major_locator(LogLocator(numticks=8))
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        axes.set_ylim(0.0, 1.05 * high or 1.0)


def _add_legend(
    figure: Figure,
    curves: Sequence[CurveResult],
    drawn: Sequence[tuple[float, str, Line2D]],
    *,
    best_is_high: bool = True,
) -> None:
    """Beside the axes, where it hides nothing, in the order in which the curves end."""
    ordered = sorted(drawn, key=lambda entry: entry[0], reverse=best_is_high)
    counts = [len(curve.seeds) for curve in curves]
    seeds = " to ".join(map(str, sorted({min(counts), max(counts)})))
    legend = figure.legend(
        [artist for _, _, artist in ordered],
        # matplotlib leaves out a label that starts with "_": the text is set below.
        [str(place) for place in range(len(ordered))],
        loc="outside right upper",
        title="one seed" if seeds == "1" else f"mean of {seeds} seeds,\nband: lowest to highest",
        title_fontsize=8,
        frameon=False,
        handlelength=3.0,
        labelspacing=0.7,
        alignment="left",
    )
    for text, (_, label, _) in zip(legend.get_texts(), ordered, strict=True):
        text.set_parse_math(False)  # A "$" in a name is a dollar.
        text.set_text(_printable(label))


def _printable(label: str) -> str:
    """The label as far as the font has it, cut to a length that leaves room for the curves."""
    font = get_font(findfont("DejaVu Sans"))
    known = "".join(c if c.isprintable() and font.get_char_index(ord(c)) else "?" for c in label)
    # The end of a long "package.module:name" says most.
    cut = len(known) > LABEL_CHARACTERS_MAX
    return "…" + known[1 - LABEL_CHARACTERS_MAX :] if cut else known
