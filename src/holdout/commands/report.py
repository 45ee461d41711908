"""`holdout report`: tables and figures again, from results alone."""

import argparse
from pathlib import Path

from holdout.commands.shared import Subparsers, print_note


def add_command(commands: Subparsers) -> None:
    """Add the parser."""
    parser = commands.add_parser(
        "report",
        help="make tables and figures again, from results alone",
        description="Make report.html and the pictures of each run folder again.",
        allow_abbrev=False,
    )
    parser.add_argument("folders", nargs="+", type=Path, metavar="RUN_DIR")
    parser.add_argument(
        "--csv", action="store_true", help="also write results.csv: one row per round and curve"
    )
    parser.set_defaults(run=_report)


def _report(options: argparse.Namespace) -> None:
    for folder in options.folders:
        figure = _figure_in(folder)
        if figure is None:
            _report_run(folder)
        else:
            _report_figure(folder, figure)
        if options.csv:
            _write_tables(folder, figure)


def _figure_in(folder: Path) -> str | None:
    """The name of the figure that `reproduce` left there; None for an ordinary run folder."""
    from holdout.results import CONFIG

    if (folder / CONFIG).exists():
        return None
    from holdout.experiments.reproduce import figure_in

    return figure_in(folder)


def _report_run(folder: Path) -> None:
    from holdout.experiments.curves import final_table, group
    from holdout.experiments.headlines import unfinished
    from holdout.experiments.heterogeneity_report import heterogeneity_lines
    from holdout.experiments.report import notes_in, write_report
    from holdout.results import read_run
    from holdout.terminal import print_table

    page = write_report(folder)
    found = read_run(folder)
    curves = group(found.rows)
    missing = unfinished(curves, found.config)
    for sentence in missing:
        print_note(sentence)
    print_table(final_table(found.rows), folder.resolve().name, so_far=bool(missing))
    for line in heterogeneity_lines(found):
        print(line)
    for note in notes_in(folder, found, curves):
        print(f"note: {note}")
    print(f"report: {page}")


def _write_tables(folder: Path, figure: str | None) -> None:
    """Write the rounds of a run, or of each panel of a figure, as a table."""
    from holdout.experiments.results_csv import write_csv

    folders = [folder]
    if figure is not None:
        from holdout.experiments.reproduce import FIGURES

        folders = [folder / panel.name for panel in FIGURES[figure]]
    for one in folders:
        print(f"table: {write_csv(one)}")


def _report_figure(folder: Path, name: str) -> None:
    """Draw again what `reproduce` made."""
    from holdout.experiments.curves import group
    from holdout.experiments.headlines import unfinished
    from holdout.experiments.reproduce import FIGURES, draw
    from holdout.results import read_run
    from holdout.terminal import print_figure

    runs = {panel.name: read_run(folder / panel.name) for panel in FIGURES[name]}
    missing = [
        f"{panel}: {sentence}"
        for panel, found in runs.items()
        for sentence in unfinished(group(found.rows), found.config)
    ]
    for sentence in missing:
        print_note(sentence)
    print_figure(draw(name, folder), so_far=bool(missing))
