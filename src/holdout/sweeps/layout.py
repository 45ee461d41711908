"""Where each cell stands in a heat map: panels, and in each of them rows and columns."""

from collections.abc import Mapping
from dataclasses import dataclass

from holdout.sweeps.cells import Cell, Cells, contender_name
from holdout.sweeps.grid import RULE, SweepFile

Coordinates = Mapping[str, int]
"""The place on each axis, by its key; for `rule`, the contender's number."""


@dataclass(frozen=True, slots=True)
class Heading:
    """A row, a column or a panel."""

    label: str
    coordinates: Coordinates


@dataclass(frozen=True, slots=True)
class MapLayout:
    """The heat maps of a sweep."""

    row_title: str
    column_title: str
    rows: tuple[Heading, ...]
    columns: tuple[Heading, ...]
    panels: tuple[Heading, ...]
    compares_rules: bool
    """Whether a column of a panel shows every rule at one place."""

    def cell(self, cells: Cells, panel: Heading, row: Heading, column: Heading) -> Cell:
        """What stands at a place."""
        at = {**panel.coordinates, **row.coordinates, **column.coordinates}
        contender = cells.contenders[at[RULE]]
        place = tuple(at[cells.file.axes[i].key] for i in cells.file.cell_axes)
        return cells.cell(contender, place)


def layout_of(file: SweepFile) -> MapLayout:
    """Rows and columns as the file says; whatever is left makes panels."""
    names = {RULE: [contender_name(contender) for contender in file.contenders]}
    titles, named = {RULE: "rule"}, dict(names)
    for place in file.cell_axes:
        axis = file.axes[place]
        names[axis.key], titles[axis.key] = list(axis.labels), axis.title
        # A value that is the same everywhere tells nothing.
        varies = len(axis.values) > 1
        named[axis.key] = [axis.named(j) if varies else "" for j in range(len(axis.values))]
    rows = file.settings.rows
    columns = file.settings.columns or next((key for key in names if key != rows), None)
    rest = [key for key in names if key not in (rows, columns)]
    panels = [Heading("", {})]
    for key in rest:
        panels = [
            Heading(
                ", ".join(filter(None, [panel.label, label])),
                {**panel.coordinates, key: number},
            )
            for panel in panels
            for number, label in enumerate(named[key])
        ]
    return MapLayout(
        row_title=titles[rows],
        column_title="" if columns is None else titles[columns],
        rows=tuple(Heading(label, {rows: i}) for i, label in enumerate(names[rows])),
        columns=(Heading("worst attack", {}),)
        if columns is None
        else tuple(Heading(label, {columns: i}) for i, label in enumerate(names[columns])),
        panels=tuple(panels),
        compares_rules=rows == RULE,
    )
