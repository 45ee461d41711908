"""The command line: parsing arguments and printing, nothing else.

Exit codes: 0 success, 2 a mistake of the user (one readable message), 130 after Ctrl-C, 1 anything
else. What is slow to import (torch above all) is imported by the command that needs it, so that
`--help` and `--version` answer at once.
"""

import argparse
import contextlib
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from holdout import __version__
from holdout.errors import UserError

if TYPE_CHECKING:
    from holdout.experiments.runner import Progress as RoundProgress
    from holdout.experiments.runner import Result

EXIT_OK, EXIT_FAILURE, EXIT_USER, EXIT_INTERRUPTED = 0, 1, 2, 130


def run_command(arguments: Sequence[str]) -> int:
    """Run one command; the exit code."""
    try:
        options = _parser().parse_args(arguments)
        command = {"run": _run, "report": _report, "plan": _plan}[options.command]
        command(options)
        sys.stdout.flush()
    except UserError as error:
        print(f"holdout: {error}", file=sys.stderr)
        return EXIT_USER
    except KeyboardInterrupt:
        print("holdout: stopped", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of our output went away; there is nobody left to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILURE
    except OSError as error:
        print(f"holdout: {error}", file=sys.stderr)
        return EXIT_FAILURE
    return EXIT_OK


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="holdout",
        description="HoldOut SGD: federated learning in which voters throw poisoned updates out.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"holdout {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    run = commands.add_parser(
        "run",
        help="run an experiment; without a config, the built-in demo",
        description="Run an experiment: some rules, one attack, one or several seeds. "
        "Without a config: the built-in demo, offline, about a minute.",
        allow_abbrev=False,
    )
    run.add_argument("config", nargs="?", type=Path, metavar="CONFIG.toml")
    run.add_argument(
        "--set",
        action="append",
        default=[],
        dest="settings",
        metavar="SECTION.KEY=VALUE",
        help="put a value over the config's; may be given several times",
    )
    run.add_argument(
        "--out", type=Path, metavar="DIR", help="run folder (default: runs/NAME, -2, -3, ...)"
    )
    run.add_argument(
        "--resume", action="store_true", help="go on with an interrupted run of the same config"
    )

    report = commands.add_parser(
        "report",
        help="make tables and figures again, from results alone",
        description="Make accuracy.png and report.html of each run folder again.",
        allow_abbrev=False,
    )
    report.add_argument("folders", nargs="+", type=Path, metavar="RUN_DIR")

    plan = commands.add_parser(
        "plan",
        help="committee sizes and failure probabilities, bound and exact",
        description="How large must a committee be, and how likely is a bad draw?",
        allow_abbrev=False,
    )
    plan.add_argument("--workers", type=_count, required=True, metavar="N")
    plan.add_argument(
        "--byzantine",
        type=_share,
        required=True,
        metavar="F",
        help="a share below 1/2 such as 0.33 or 1/3, or a whole number of workers",
    )
    plan.add_argument("--rounds", type=_count, required=True, metavar="T")
    plan.add_argument(
        "--delta",
        type=_probability,
        required=True,
        metavar="D",
        help="the probability of failure over all rounds that you accept",
    )
    plan.add_argument(
        "--committee", type=_count, metavar="K", help="judge a committee of this size"
    )
    plan.add_argument("--json", action="store_true", help="print one JSON document, nothing else")
    return parser


def _count(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        _refuse(f"must be a whole number; got {text!r}")
    if value < 1:
        _refuse(f"must be at least 1; got {value}")
    return value


def _share(text: str) -> Fraction | int:
    from holdout.config import read_share

    try:
        return read_share(text)
    except ValueError as error:
        _refuse(f"{error}; got {text!r}")


def _probability(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        _refuse(f"must be a number; got {text!r}")
    if not 0 < value < 1:
        _refuse(f"must lie between 0 and 1; got {text}")
    return value


def _refuse(message: str) -> NoReturn:
    raise argparse.ArgumentTypeError(message)


def _plan(options: argparse.Namespace) -> None:
    from holdout.experiments import committees

    plan = committees.plan(
        workers=options.workers,
        byzantine=options.byzantine,
        rounds=options.rounds,
        delta=options.delta,
        committee=options.committee,
    )
    print(plan.as_json() if options.json else plan.as_text())


def _report(options: argparse.Namespace) -> None:
    from holdout.experiments.curves import final_table
    from holdout.experiments.report import write_report
    from holdout.results import read_run

    for folder in options.folders:
        page = write_report(folder)
        _print_table(final_table(read_run(folder).rounds), folder.resolve().name)
        print(f"report: {page}")


def _run(options: argparse.Namespace) -> None:
    from holdout import config, results

    folder: Path | None = options.out
    if options.config is not None:
        values = config.read_file(options.config)
    elif options.resume and folder is not None:
        values = results.read_config(folder)
    else:
        values = _demo_values()
    values = config.apply_settings(values, options.settings)
    # Mistakes are reported by the run, together with those that only it can find.
    parsed = config.parse(values)
    if folder is None:
        name = parsed.config.experiment.name
        folder = (
            results.last_path(Path("runs"), name)
            if options.resume
            else results.free_path(Path("runs"), name)
        )
    with _say_how_to_resume(folder):
        result = _run_watched(values, folder, resume=options.resume)
    for note in result.notes:
        print(f"note: {note}", file=sys.stderr)
    _print_table(result.table(), parsed.config.experiment.name)
    print(f"report: {folder / 'report.html'}")


def _demo_values() -> dict[str, Any]:
    from holdout.experiments.demo import demo_values

    return demo_values()


@contextlib.contextmanager
def _say_how_to_resume(folder: Path) -> Iterator[None]:
    from holdout.results import CONFIG

    try:
        yield
    except KeyboardInterrupt:
        if (folder / CONFIG).exists():
            # The folder holds its config, so nothing else needs to be said again.
            command = shlex.join(["holdout", "run", "--out", str(folder), "--resume"])
            print(
                f"\nEverything done so far is kept. Go on with:\n  {command}",
                file=sys.stderr,
            )
        raise


def _run_watched(values: dict[str, Any], folder: Path, *, resume: bool) -> "Result":
    from rich.console import Console

    from holdout.experiments.runner import run

    # The bar goes to standard error, so that standard output holds the result alone.
    console = Console(stderr=True)
    if not console.is_terminal:
        return run(values, out=folder, resume=resume, watch=_print_line)
    from rich.progress import (
        BarColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.percentage:3.0f} %"),
        TimeElapsedColumn(),
        TextColumn("left:"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )
    with bar:
        task = bar.add_task("checking the config, loading the data", total=None)
        shown = {"curve": "", "accuracy": ""}

        def watch(progress: "RoundProgress") -> None:
            record = progress.record
            curve = f"{record.rule} ({record.attack}, seed {record.seed})"
            if curve != shown["curve"]:
                shown.update(curve=curve, accuracy="")
            if record.accuracy is not None:
                shown["accuracy"] = f", accuracy {100 * record.accuracy:.1f} %"
            bar.update(
                task,
                description=f"{curve}: round {record.round}{shown['accuracy']}",
                completed=progress.rounds_done,
                total=progress.rounds_total,
            )

        return run(values, out=folder, resume=resume, watch=watch)


def _print_line(progress: "RoundProgress") -> None:
    record = progress.record
    if record.accuracy is not None:
        share = 100 * progress.rounds_done / progress.rounds_total
        print(
            f"{share:3.0f} %  {record.rule} ({record.attack}, seed {record.seed}): "
            f"round {record.round}, accuracy {100 * record.accuracy:.1f} %",
            file=sys.stderr,
            flush=True,
        )


def _print_table(rows: Sequence[Any], title: str) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"Test accuracy at the end ({title})", title_justify="left")
    table.add_column("rule", no_wrap=True)
    for column in ("without attack", "under attack", "drop"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        accuracy = "-" if row.accuracy is None else f"{100 * row.accuracy:.1f} %"
        if row.accuracy is not None and row.spread is not None:
            accuracy += f" ± {100 * row.spread:.1f}"
        if row.diverged:
            accuracy += " (diverged)"
        unattacked = row.attack == "none"
        table.add_row(
            row.label,
            accuracy if unattacked else "",
            "" if unattacked else accuracy,
            "" if unattacked or row.drop is None else f"{row.drop:.1f} points",
        )
    # A rule's name is the user's: no part of it is markup.
    Console(markup=False, emoji=False).print(table)
