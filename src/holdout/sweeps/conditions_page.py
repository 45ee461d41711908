"""What the cells of a sweep are like, as `sweep.html` and `worst.md` show it."""

import html
from collections.abc import Mapping, Sequence

from holdout.experiments.report import table_html
from holdout.heterogeneity import LiarsDrawn
from holdout.sweeps.cells import Cell, Cells
from holdout.sweeps.conditions import Conditions, conditions_at, conditions_of
from holdout.sweeps.grid import Point
from holdout.sweeps.layout import Heading, MapLayout

NONE = "–"
HEAD = (
    "G²",
    "B²",
    "voters that can judge a class: least",
    "median",
    "needed for an honest majority of judges",
    "c (1 − f) > f",
    "liars among proposers",
    "among voters",
)
LINES = ("G², B²", "can judge a class", "c (1 − f) > f", "liars drawn")
"""The columns beside a heat map."""
BAR, HEIGHT, CLASSES_MAX = 7, 30, 20
"""More bars than these would be wider than a cell."""
PLACES_MAX = 120
"""With more cells a rule it would stand so often that a page takes too long to load."""


class ConditionsView:
    """Writes what the cells of a sweep are like; each is computed once."""

    def __init__(self, cells: Cells) -> None:
        self.cells = cells
        self.at: Mapping[Point, Conditions] = {
            place: conditions_at(cells, place) for place in cells.places
        }

    @property
    def is_known(self) -> bool:
        """Whether there is anything to tell."""
        return any(at.is_known for at in self.at.values())

    def stands_beside(self, layout: MapLayout) -> bool:
        """Whether it stands beside the heat maps: where a column is one cell of every rule."""
        return self.is_known and layout.compares_rules and len(self.at) <= PLACES_MAX

    def beside(self, layout: MapLayout, panel: Heading) -> str:
        """What stands beside a heat map: a row for each of its columns."""
        if not self.stands_beside(layout):
            return ""
        row = layout.rows[0]
        heads = "".join(
            f'<th scope="col">{html.escape(title)}</th>' for title in (layout.column_title, *LINES)
        )
        body = [
            f'<tr><th scope="row">{html.escape(column.label)}</th>'
            + "".join(f"<td>{text}</td>" for text in self._told(place))
            + "</tr>"
            for column in layout.columns
            for place in [layout.cell(self.cells, panel, row, column).place]
        ]
        return (
            '<table class="like"><caption>What the columns are like</caption>'
            f"<thead><tr>{heads}</tr></thead><tbody>{''.join(body)}</tbody></table>"
        )

    def _told(self, place: Point) -> list[str]:
        """What there is to tell of one column."""
        at = self.at[place]
        judges = f"{_picture(at)}{_lines(f'least {_least(at)}', f'median {_median(at)}')}"
        drawn = [f"{who} {_drawn(told)}" for who, told in _groups(at)]
        return [
            NONE if at.g2 is None else html.escape(f"{_number(at.g2)}, {_number(at.b2)}"),
            judges if at.judges else NONE,
            _lines(*_needs(at), *_verdict(at)),
            _lines(*drawn) if drawn else NONE,
        ]

    def about(self, layout: MapLayout) -> str:
        """What the numbers beside the maps mean."""
        if not self.is_known:
            return ""
        where = "Beside each map" if self.stands_beside(layout) else "What the cells are like"
        return (
            f"{where}: how much the updates of honest workers differ (G² and B², "
            f"{'of the mean without attack' if self.cells.file.has_baseline else 'of all curves'}, "
            "mini-batch noise included); the share c of honest voters that can judge a class, "
            "bar by bar, with the share that an honest majority of judges needs "
            "(dashed); whether all classes have it, so that c (1 − f) > f; and how many liars the "
            "draws held in a round, on average and at most."
        )

    def table(self, layout: MapLayout) -> str:
        """The same as one table, where it does not stand beside the maps."""
        if not self.is_known or self.stands_beside(layout):
            return ""
        inner = table_html(["cell", *HEAD], self.rows())
        return (
            "<h2>What the cells are like</h2>"
            '<div class="scroll plain" tabindex="0" role="group" '
            f'aria-label="What the cells are like">{inner}</div>'
        )

    def rows(self) -> list[list[str]]:
        """A line of a table for each cell."""
        return [
            [self.cells.place_label(place) or "all", *_fields(at)] for place, at in self.at.items()
        ]


def sentence_of(cells: Cells, cell: Cell) -> str:
    """What the worst attack of one cell met, for whoever looks at its curves."""
    worst = cell.worst(cells.file.settings.measure)
    at = None if worst is None else conditions_of(worst)
    if at is None or not at.is_known:
        return ""
    told = [] if at.g2 is None else [f"G² {_number(at.g2)}, B² {_number(at.b2)}"]
    if at.judges:
        told.append(f"{_least(at)} of the voters can judge the class that fewest can")
    if at.needed is not None and at.judges:
        told.append(
            f"an honest majority of judges needs more than {_share(at.needed)}: "
            f"{', '.join(_verdict(at))}"
        )
    told += [f"liars among {who}: {_drawn(drawn)}" for who, drawn in _groups(at)]
    return f"Under the worst attack: {'; '.join(told)}."


def _fields(at: Conditions) -> list[str]:
    return [
        NONE if at.g2 is None else _number(at.g2),
        NONE if at.b2 is None else _number(at.b2),
        _least(at),
        _median(at),
        NONE if at.needed is None else f"more than {_share(at.needed)}",
        ": ".join(_verdict(at)),
        NONE if at.proposers is None else _drawn(at.proposers),
        NONE if at.voters is None else _drawn(at.voters),
    ]


def _verdict(at: Conditions) -> Sequence[str]:
    """Whether there is an honest majority of judges for every class; if not, for how many not."""
    if at.is_covered is None:
        return (NONE,)
    return (
        ("✓ met",) if at.is_covered else ("✗ not met", f"{at.lacking} of {len(at.judges)} classes")
    )


def _needs(at: Conditions) -> Sequence[str]:
    """What an honest majority of judges needs."""
    return () if at.needed is None or not at.judges else (f"needs c > {_share(at.needed)}",)


def _groups(at: Conditions) -> list[tuple[str, LiarsDrawn]]:
    groups = (("proposers", at.proposers), ("voters", at.voters))
    return [(who, drawn) for who, drawn in groups if drawn is not None]


def _drawn(drawn: LiarsDrawn) -> str:
    return f"{drawn.mean:.1f} (≤ {drawn.largest})"


def _least(at: Conditions) -> str:
    return _share(at.least) if at.judges else NONE


def _median(at: Conditions) -> str:
    return _share(at.median) if at.judges else NONE


def _classes(at: Conditions) -> str:
    shares = ", ".join(f"{label}: {_share(share)}" for label, share in enumerate(at.judges))
    return f"Share of voters that can judge each class: {shares}"


def _picture(at: Conditions) -> str:
    """A bar for each class, and the share that is needed."""
    if not 0 < len(at.judges) <= CLASSES_MAX:
        return ""
    width = BAR * len(at.judges)
    paths = [
        f'<path class="{name}" d="{_bars(at, is_enough=is_enough)}"/>'
        for name, is_enough in (("judge", True), ("lack", False))
    ]
    if at.needed is not None and at.needed <= 1:
        paths.append(f'<path class="needed" d="M0 {_y(at.needed)}h{width}"/>')
    label = html.escape(_classes(at))
    return (
        f'<svg width="{width}" height="{HEIGHT + 1}" role="img" aria-label="{label}">'
        f'{"".join(paths)}<path class="base" d="M0 {HEIGHT + 0.5}h{width}"/></svg>'
    )


def _bars(at: Conditions, *, is_enough: bool) -> str:
    """The bars of the classes with an honest majority of judges, or of the others."""
    return "".join(
        f"M{BAR * i} {HEIGHT}v{_y(share) - HEIGHT:g}h{BAR - 2}V{HEIGHT}z"
        for i, share in enumerate(at.judges)
        if _is_enough(at, share) is is_enough
    )


def _is_enough(at: Conditions, share: float) -> bool:
    return at.needed is None or share > at.needed


def _y(share: float) -> float:
    return round(HEIGHT * (1 - share), 1)


def _lines(*texts: str) -> str:
    return "<br>".join(map(html.escape, texts))


def _number(value: float | None) -> str:
    return NONE if value is None else f"{value:.3g}"


def _share(value: float) -> str:
    return f"{100 * value:.0f} %"
