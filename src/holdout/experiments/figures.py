"""Figures for a paper: what was measured over the rounds, as PNG bytes; and how curves look.

The colours follow Okabe and Ito's, which the colour-blind can tell apart, darkened until they stand
out from white by 3 to 1. Curves that share a colour differ in dash and in marker, and neighbours
differ in all three. HoldOut has the same look in every figure, and the unattacked mean is dashed
black.
"""

import io
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
MANY = 6
"""With more curves than this, not counting the unattacked mean, bands would hide each other."""
LEGEND_INCHES = 0.235
"""The height of a line of the legend."""

COLOURS = (
    ("#C24E00", "#FF9350"),
    ("#00835F", "#35C79B"),
    ("#B04A86", "#F08FC6"),
    ("#A87600", "#E5B53A"),
    ("#666666", "#A8B0BA"),
    ("#7A4B94", "#C39BE0"),
    ("#8A5A36", "#D2A27C"),
    ("#A3123A", "#FF7A94"),
)
"""On white, and on the dark ground of a page."""
MARKERS = (
    "square",
    "triangle-up",
    "diamond",
    "x",
    "triangle-down",
    "triangle-left",
    "triangle-right",
)
DASHES = (
    *("solid", "dash", "dot", "dashdot"),
    *("shortdash", "dashdotdot", "sparse", "longdashdot"),
)
"""The first four first; the others where there are more curves than those can tell apart."""

_MARKERS = {
    "none": "",
    "circle": "o",
    "square": "s",
    "triangle-up": "^",
    "diamond": "D",
    "x": "x",
    "triangle-down": "v",
    "triangle-left": "<",
    "triangle-right": ">",
    "cross": "P",
}
_DASHES = {
    "solid": (0.0, None),
    "dash": (0.0, (5.0, 2.0)),
    "dot": (0.0, (1.5, 1.5)),
    "dashdot": (0.0, (6.0, 1.5, 1.5, 1.5)),
    "longdash": (0.0, (7.0, 3.0)),
    "shortdash": (0.0, (3.0, 3.0)),
    "dashdotdot": (0.0, (6.0, 1.5, 1.5, 1.5, 1.5, 1.5)),
    "sparse": (0.0, (1.5, 4.0)),
    "longdashdot": (0.0, (10.0, 2.0, 1.5, 2.0)),
}


@dataclass(frozen=True, slots=True)
class Look:
    """How a curve is drawn."""

    colour: str
    dark: str
    """The colour on a dark ground."""
    dash: str
    marker: str
    width: float


BASELINE = Look("#000000", "#FFFFFF", "longdash", "none", 1.6)
PROMINENT = (
    Look("#0072B2", "#5CB8F2", "solid", "circle", 2.4),
    Look("#2F8FC4", "#9AD4FA", "dash", "cross", 2.0),
)
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
            found.append(BASELINE)
        elif curve.attack != NO_ATTACK and curve.rule in prominent:
            # Under a second attack the rule looks like any other: no two curves look the same.
            found.append(prominent.pop(curve.rule))
        else:
            found.append(_plain_look(others))
            others += 1
    return found


def _plain_look(number: int) -> Look:
    """A curve's look by its number among the plain ones; of 56, those of a colour differ."""
    shift = number + number // len(COLOURS)  # So that equal colours never meet an equal dash.
    half = len(DASHES) // 2
    further = number // (half * len(COLOURS)) % 2
    return Look(
        *COLOURS[number % len(COLOURS)],
        DASHES[shift % half + half * further],
        MARKERS[shift % len(MARKERS)],
        1.6,
    )


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
        width, height = SIZE_INCHES
        height = max(height, LEGEND_INCHES * (len(curves) + 3))
        figure = Figure(figsize=(width, height), dpi=DPI, layout="constrained")
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
        heights = shown_range([curve for _, curves in panels for curve in curves], ACCURACY)
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
            # Side by side, equal heights must mean equal accuracies.
            axes.set_ylim(*heights)
        if entries:
            _add_legend(figure, max((c for _, c in panels), key=len), list(entries.values()))
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
    rounds_max = 1
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
        if len(curve.seeds) > 1 and not has_many(curves):
            axes.fill_between(
                line.rounds, line.low, line.high, color=look.colour, alpha=0.16, linewidth=0
            )
        drawn.append((line.mean[-1], curve.label, artist))
        rounds_max = max(rounds_max, line.rounds[-1])
    if drawn:
        _set_scale(axes, curves, quantity)
        axes.set_xlim(0, rounds_max * 1.015)
        axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True, steps=[1, 2, 5, 10]))
    return drawn


def _set_scale(axes: Axes, curves: Sequence[CurveResult], quantity: Metric) -> None:
    """Show all that counts; a curve that diverges must not flatten the others."""
    if quantity.highest is not None:
        axes.set_ylim(*shown_range(curves, quantity))
        return
    lines = [curve.line(quantity.key, scale=quantity.scale) for curve in curves]
    low = min(value for line in lines for value in line.low)
    high = max(value for line in lines for value in line.high)
    if low > 0 and high > RATIO_MAX * low:
        axes.set_yscale("log")
        # In powers of ten, so that huge losses leave the axis readable.
        axes.yaxis.set_major_locator(LogLocator(numticks=8))
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        axes.set_ylim(0.0, 1.05 * high or 1.0)


def has_many(curves: Sequence[CurveResult]) -> bool:
    """Whether there are too many curves to show more than a line of each."""
    return sum(not curve.is_baseline for curve in curves) > MANY


def shown_range(curves: Sequence[CurveResult], metric: Metric) -> tuple[float, float]:
    """The lowest and highest value that the axis of a bounded metric must show, scaled."""
    lines = [curve.line(metric.key, scale=metric.scale) for curve in curves]
    least, most = metric.scale * metric.shown_min, metric.scale * (metric.highest or 1.0)
    low = max(least, min((value for line in lines for value in line.low), default=least))
    high = max(low, max((value for line in lines for value in line.high), default=most))
    margin = max(0.02 * most, 0.05 * (high - low))
    return max(least, low - margin), min(1.005 * most, high + margin)


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
    band = "" if has_many(curves) else ",\nband: lowest to highest"
    legend = figure.legend(
        [artist for _, _, artist in ordered],
        # matplotlib leaves out a label that starts with "_": the text is set below.
        [str(place) for place in range(len(ordered))],
        loc="outside right upper",
        title="one seed" if seeds == "1" else f"mean of {seeds} seeds{band}",
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
