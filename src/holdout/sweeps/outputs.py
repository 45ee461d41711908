"""Everything that a sweep leaves for people: a page, a picture, tables."""

from collections.abc import Sequence
from pathlib import Path

from holdout.sweeps.cells import Cells
from holdout.sweeps.heatmap import heatmaps
from holdout.sweeps.page import page_html
from holdout.sweeps.sweep_folder import write_file
from holdout.sweeps.tables import table_csv, table_tex, worst_md
from holdout.sweeps.workforce import FailedCurve

PAGE = "sweep.html"


def write_outputs(folder: Path, cells: Cells, failed: Sequence[FailedCurve]) -> Path:
    """Write the page, the picture and the tables; the page's path."""
    write_file(folder, "table.csv", table_csv(cells))
    write_file(folder, "table.tex", table_tex(cells))
    write_file(folder, "worst.md", worst_md(cells, failed))
    for ending, content in heatmaps(cells).items():
        write_file(folder, f"heatmap.{ending}", content)
    return write_file(folder, PAGE, page_html(cells, failed))
