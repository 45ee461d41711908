"""Charts of quantities over the rounds, as SVG in a page: sharp at any width, without a script.

A chart fills the width that it gets. Its curves are stretched, its words are not: they stand at
shares of the width and height. Colours are those of the page, light or dark; a curve's own are in
its style. Each chart comes with its numbers as a table, for those who cannot see it.
"""

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from holdout.experiments.curves import CurveResult, Series
from holdout.experiments.figures import Look, has_many, shown_range
from holdout.metrics import Metric

SIDE = 1000  # Curves are drawn in a square of this side, and stretched.
COLUMNS = 11
"""How many rounds the table of a chart has at most."""
MARKERS_MAX = 10
TIMES_MAX = 2.0
POINTS_MAX = 200
"""Points of a curve; more are thinned evenly, and the page says so."""

_DASHES = {
    "solid": "",
    "dash": "7 4",
    "dot": "2 3",
    "dashdot": "8 3 2 3",
    "longdash": "10 5",
    "shortdash": "4 4",
    "dashdotdot": "8 3 2 3 2 3",
    "sparse": "2 6",
    "longdashdot": "13 3 2 3",
}
_MARKERS = {
    "circle": "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",
    "cross": "M-1.5-5h3v3.5H5v3H1.5V5h-3V1.5H-5v-3h3.5z",
    "square": "M-3.5-3.5h7v7h-7z",
    "triangle-up": "M0-5 4.6 3.5H-4.6z",
    "triangle-down": "M0 5 4.6-3.5H-4.6z",
    "triangle-left": "M-5 0 3.5-4.6V4.6z",
    "triangle-right": "M5 0-3.5-4.6V4.6z",
    "diamond": "M0-5 5 0 0 5-5 0z",
    "x": "M-4.6-3-3-4.6 0-1.6 3-4.6 4.6-3 1.6 0 4.6 3 3 4.6 0 1.6-3 4.6-4.6 3-1.6 0z",
}


@dataclass(frozen=True, slots=True)
class Quantity:
    """What a chart shows."""

    key: str
    """The field of a round."""
    title: str
    axis: str
    """What the numbers at its side are."""
    scale: float = 1.0
    decimals: int = 1
    unit: str = ""
    is_level: bool = True
    """Whether the last value says most; else the mean over the rounds does."""
    metric: Metric | None = None
    """What an evaluation measures, if this is that; a page has it where some round has it."""

    @classmethod
    def of(cls, metric: Metric, title: str) -> "Quantity":
        """The chart of what an evaluation measures."""
        unit = f" {metric.unit}" if metric.unit else ""
        return cls(
            key=metric.key,
            title=title,
            axis=metric.axis,
            scale=metric.scale,
            decimals=metric.digits,
            unit=unit,
            metric=metric,
        )

    @property
    def name(self) -> str:
        """How the page calls its chart: letters that may stand in an id."""
        return self.key.replace("_", "-")

    def text(self, value: float) -> str:
        """A value as a table says it."""
        return f"{value:.{self.decimals}f}{self.unit}"

    def gist(self, line: Series) -> str:
        """A curve in one number."""
        if self.is_level:
            return self.text(line.mean[-1])
        return f"mean {self.text(fmean(line.mean))}"


@dataclass(frozen=True, slots=True)
class Drawn:
    """A curve of a chart."""

    number: int
    """Its place among all curves; the boxes of the legend go by it."""
    label: str
    look: Look
    line: Series
    has_band: bool


def line_of(quantity: Quantity, curve: CurveResult) -> Series:
    """A curve of a chart, thinned if it has too many points."""
    line = curve.line(quantity.key, scale=quantity.scale)
    kept = spaced(len(line.rounds), POINTS_MAX)
    return Series(
        tuple(line.rounds[i] for i in kept),
        tuple(line.mean[i] for i in kept),
        tuple(line.low[i] for i in kept),
        tuple(line.high[i] for i in kept),
    )


def spaced(length: int, count: int) -> list[int]:
    """At most `count` places out of `length`, evenly spaced, the last always among them.

    >>> spaced(3, 5), spaced(9, 3), spaced(9, 1)
    ([0, 1, 2], [0, 4, 8], [8])
    """
    if length <= count:
        return list(range(length))
    if count == 1:
        return [length - 1]
    return [place * (length - 1) // (count - 1) for place in range(count)]


def chart_html(
    quantity: Quantity, curves: Sequence[CurveResult], looks: Sequence[Look], *, last: int
) -> str:
    """A chart of all curves, small ones of each where there are many, and the numbers."""
    drawn = [
        Drawn(number, curve.label, look, line, len(curve.seeds) > 1)
        for number, (curve, look) in enumerate(zip(curves, looks, strict=True))
        if (line := line_of(quantity, curve)).rounds
    ]
    if not drawn:
        return '<p class="aside">Nothing recorded.</p>'
    metric = quantity.metric
    if metric is not None and metric.highest is not None:
        low, high = shown_range(curves, metric)
    else:
        low, high = _range(drawn)
        high = min(high, (metric and top_of(curves, metric)) or high)
    axes = _Axes(quantity, last, low, high)
    # A small chart for each, and no bands in the large one.
    many = has_many(curves)
    large = _large(axes, drawn, bands=not many)
    if many and not quantity.is_level:
        # Many lines that go up and down in each round hide each other.
        large = f"<details><summary>All in one chart</summary>{large}</details>"
    parts = [large]
    if many:
        reference = next((d for d in drawn if curves[d.number].is_baseline), None)
        others = [d for d in drawn if d is not reference]
        inner = "".join(_small(axes, d, reference) for d in others)
        parts.append(f'<div class="small">{inner}</div>')
    parts.append(_numbers(quantity, drawn))
    return "\n".join(parts)


@dataclass(frozen=True, slots=True)
class _Axes:
    quantity: Quantity
    last: int
    low: float
    high: float

    def x(self, number: float) -> float:
        """A round's place, as a share."""
        return number / (1.015 * self.last)

    def y(self, value: float) -> float:
        """A value's place, as a share from the top; what is beyond an end lies on it."""
        return 1 - min(1.0, max(0.0, value - self.low) / (self.high - self.low))


def top_of(curves: Sequence[CurveResult], metric: Metric) -> float | None:
    """Where the chart of a metric without an end stops, if a curve goes far beyond the others.

    One that diverges must not flatten the others: no curve needs to be shown at more than
    `TIMES_MAX` times what the worst begins with.
    """
    lines = [line for curve in curves if (line := curve.line(metric.key, scale=metric.scale)).mean]
    top = TIMES_MAX * max((line.mean[0] for line in lines), default=0.0)
    highest = max((max(line.high) for line in lines), default=0.0)
    return top if 0 < top < highest else None


def _range(drawn: Sequence[Drawn]) -> tuple[float, float]:
    low = min(0.0, *(min(d.line.low) for d in drawn))
    high = max(max(d.line.high) for d in drawn)
    return low, low + 1.06 * (high - low) if high > low else low + 1.0


def _large(axes: _Axes, drawn: Sequence[Drawn], *, bands: bool) -> str:
    quantity = axes.quantity
    name, title = quantity.name, html.escape(quantity.title)
    curves = "".join(_band(axes, d) for d in drawn if bands and d.has_band)
    curves += "".join(_path(axes, d) for d in drawn)
    return (
        f'<div class="plot" id="{name}" data-quantity="{name}" data-last="{axes.last}">'
        f'<svg role="img" aria-labelledby="{name}-title {name}-said">'
        f'<title id="{name}-title">{title}</title>'
        f'<desc id="{name}-said">{html.escape(_said(axes, drawn))}</desc>'
        f"{_grid(axes, ticks=6)}"
        f'<text class="axis" x="0" y="0" dy="-10" dx="-44">{html.escape(quantity.axis)}</text>'
        '<text class="y" x="100%" y="100%" dy="2.5em">round</text>'
        f"{_stretched(curves)}{''.join(_markers(axes, d) for d in drawn)}"
        '</svg></div><p class="reading aside" aria-live="polite"></p>'
    )


def _small(axes: _Axes, drawn: Drawn, reference: Drawn | None) -> str:
    quantity, line = axes.quantity, drawn.line
    gist = quantity.gist(line)
    behind = "" if reference is None else _path(axes, reference)
    curves = behind + (_band(axes, drawn) if drawn.has_band else "") + _path(axes, drawn)
    said = html.escape(f"{quantity.title}, {drawn.label}: {gist}")
    return (
        f'<figure class="c{drawn.number}"><figcaption>{html.escape(drawn.label)} '
        f"<span>{gist}</span></figcaption>"
        f'<div class="plot"><svg role="img" aria-label="{said}">'
        f"{_grid(axes, ticks=3)}{_stretched(curves)}</svg></div></figure>"
    )


def _said(axes: _Axes, drawn: Sequence[Drawn]) -> str:
    """The chart in words: each curve in one number, the highest at the end first."""
    ordered = sorted(drawn, key=lambda d: -d.line.mean[-1])
    when = "At the end" if axes.quantity.is_level else "Over all of them"
    gists = "; ".join(f"{d.label} {axes.quantity.gist(d.line)}" for d in ordered)
    return f"Over {axes.last} rounds. {when}: {gists}"


def _stretched(inner: str) -> str:
    return (
        f'<svg width="100%" height="100%" viewBox="0 0 {SIDE} {SIDE}" '
        f'preserveAspectRatio="none" aria-hidden="true">{inner}</svg>'
    )


def _grid(axes: _Axes, *, ticks: int) -> str:
    parts = []
    for value in _ticks(axes.low, axes.high, ticks):
        y = f"{100 * axes.y(value):.2f}%"
        parts.append(f'<line class="grid" x1="0" x2="100%" y1="{y}" y2="{y}"/>')
        parts.append(f'<text class="y" x="-8" y="{y}" dy=".35em">{value:g}</text>')
    for value in _ticks(0, axes.last, ticks):
        if value == int(value):
            x = f"{100 * axes.x(value):.2f}%"
            parts.append(f'<text class="x" x="{x}" y="100%" dy="1.3em">{value:g}</text>')
    parts.append('<line class="foot" x1="0" x2="100%" y1="100%" y2="100%"/>')
    return "".join(parts)


def _ticks(low: float, high: float, count: int) -> list[float]:
    """Round numbers between two, about so many.

    >>> _ticks(0, 100, 5), _ticks(83.2, 91.7, 4)
    ([0.0, 20.0, 40.0, 60.0, 80.0, 100.0], [84.0, 86.0, 88.0, 90.0])
    """
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(f * power for f in (1.0, 2.0, 5.0, 10.0) if f * power >= rough * 0.9)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(place * step, 10) for place in range(first, last + 1)]


def _points(axes: _Axes, rounds: Sequence[int], values: Sequence[float]) -> str:
    pairs = zip(rounds, values, strict=True)
    return "L".join(
        f"{round(SIDE * axes.x(r), 1):g} {round(SIDE * axes.y(v), 1):g}" for r, v in pairs
    )


def _path(axes: _Axes, drawn: Drawn) -> str:
    look, line = drawn.look, drawn.line
    dash = f' stroke-dasharray="{_DASHES[look.dash]}"' if _DASHES[look.dash] else ""
    return (
        f'<path class="curve c{drawn.number}" style="{style_of(look)}" '
        f'stroke-width="{look.width:g}"{dash} d="M{_points(axes, line.rounds, line.mean)}"/>'
    )


def _band(axes: _Axes, drawn: Drawn) -> str:
    line = drawn.line
    there = _points(axes, line.rounds, line.high)
    back = _points(axes, line.rounds[::-1], line.low[::-1])
    return (
        f'<path class="band c{drawn.number}" style="{style_of(drawn.look)}" d="M{there}L{back}z"/>'
    )


def _markers(axes: _Axes, drawn: Drawn) -> str:
    line, look = drawn.line, drawn.look
    count = len(line.rounds)
    if look.marker not in _MARKERS:
        return ""
    # The markers of each curve start at another place, so that few cover each other.
    step = -(-count // MARKERS_MAX)
    places = range(drawn.number % step, count, step)
    inner = "".join(
        f'<svg x="{100 * axes.x(line.rounds[i]):.2f}%" y="{100 * axes.y(line.mean[i]):.2f}%">'
        f'<path d="{_MARKERS[look.marker]}"/></svg>'
        for i in places
    )
    return f'<g class="marks c{drawn.number}" style="{style_of(look)}">{inner}</g>'


def _numbers(quantity: Quantity, drawn: Sequence[Drawn]) -> str:
    """The chart as a table, of a few rounds."""
    rounds = sorted({number for d in drawn for number in d.line.rounds})
    shown = [rounds[place] for place in spaced(len(rounds), COLUMNS)]
    head = "".join(f'<th scope="col">{number}</th>' for number in shown)
    rows = []
    for d in drawn:
        found = dict(zip(d.line.rounds, d.line.mean, strict=True))
        cells = "".join(f"<td>{quantity.text(found[n]) if n in found else '–'}</td>" for n in shown)
        rows.append(f'<tr><th scope="row">{html.escape(d.label)}</th>{cells}</tr>')
    return (
        f"<details><summary>{html.escape(quantity.title)} in numbers</summary>"
        f'<div class="scroll" tabindex="0" role="group" '
        f'aria-label="{html.escape(quantity.title)} in numbers">'
        f'<table><thead><tr><th scope="col">round</th>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div></details>"
    )


def legend_html(curves: Sequence[CurveResult], looks: Sequence[Look]) -> str:
    """A box for each curve; the page's style hides those that are not ticked."""
    return "".join(
        f'<label><input type="checkbox" id="show-{number}" checked>'
        f'<svg width="34" height="12" aria-hidden="true">'
        f'<line class="curve" x1="0" x2="34" y1="6" y2="6" style="{style_of(look)}" '
        f'stroke-width="2.2" stroke-dasharray="{_DASHES[look.dash]}"/>{_sample(look)}</svg>'
        f"<span>{html.escape(curve.label)}</span></label>"
        for number, (curve, look) in enumerate(zip(curves, looks, strict=True))
    )


def _sample(look: Look) -> str:
    if look.marker not in _MARKERS:
        return ""
    mark = f'<path d="{_MARKERS[look.marker]}" transform="translate(17 6)"/>'
    return f'<g class="marks" style="{style_of(look)}">{mark}</g>'


def hiding_style(count: int) -> str:
    """The rules of the page's style by which a curve goes with its box."""
    return "\n".join(
        f"body:has(#show-{number}:not(:checked)) .c{number} {{ display: none; }}"
        for number in range(count)
    )


def style_of(look: Look) -> str:
    """A curve's two colours; the page chooses."""
    return f"--on-light:{look.colour};--on-dark:{look.dark}"
