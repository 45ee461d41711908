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
from holdout.errors import PluginError, UserError
from holdout.node.commands import add_commands

if TYPE_CHECKING:
    from holdout.experiments.reproduce import Figure

EXIT_OK, EXIT_FAILURE, EXIT_USER, EXIT_INTERRUPTED = 0, 1, 2, 130


def run_command(arguments: Sequence[str]) -> int:
    """Run one command; the exit code."""
    try:
        options = _parser().parse_args(arguments)
        code = int(options.run(options) or EXIT_OK)
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
    return code


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
    _add_settings(run)
    run.add_argument(
        "--out", type=Path, metavar="DIR", help="run folder (default: runs/NAME, -2, -3, ...)"
    )
    run.add_argument(
        "--resume", action="store_true", help="go on with an interrupted run of the same config"
    )
    run.set_defaults(run=_run)

    again = commands.add_parser(
        "reproduce",
        help="the paper's figures on the full data",
        description="Run the paper's experiments on MNIST or CIFAR-10 and draw its figure. "
        "In full this takes long (CIFAR-10: many hours); it can be stopped and resumed.",
        allow_abbrev=False,
    )
    again.add_argument("figure", choices=["mnist", "cifar10"])
    again.add_argument(
        "--data", type=Path, required=True, metavar="DIR", help="folder with the standard files"
    )
    again.add_argument(
        "--quick",
        action="store_true",
        help="in minutes: fewer rounds, one seed; CIFAR-10 with a larger learning rate and fewer "
        "holdout samples. The titles say so",
    )
    _add_settings(again)
    again.add_argument("--out", type=Path, metavar="DIR", help="default: runs/paper-FIGURE")
    again.add_argument("--resume", action="store_true", help="go on with an interrupted run")
    again.set_defaults(run=_reproduce)

    report = commands.add_parser(
        "report",
        help="make tables and figures again, from results alone",
        description="Make accuracy.png and report.html of each run folder again.",
        allow_abbrev=False,
    )
    report.add_argument("folders", nargs="+", type=Path, metavar="RUN_DIR")
    report.set_defaults(run=_report)

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
        metavar="D",
        help="the probability of failure over all rounds that you accept",
    )
    plan.add_argument(
        "--committee", type=_count, metavar="K", help="judge a committee of this size"
    )
    plan.add_argument(
        "--decentralized", action="store_true", help="plan a network without a server instead"
    )
    plan.add_argument(
        "--delta-safety",
        type=_probability,
        metavar="D",
        help="with --decentralized: that some round gets two blocks (default: 1e-6)",
    )
    plan.add_argument(
        "--delta-progress",
        type=_probability,
        metavar="D",
        help="with --decentralized: that some round misses a quorum or an honest majority "
        "(default: 1e-3)",
    )
    plan.add_argument("--json", action="store_true", help="print one JSON document, nothing else")
    plan.set_defaults(run=_plan)
    _add_simulate(commands)
    add_commands(commands)
    return parser


def _add_simulate(commands: Any) -> None:
    simulate = commands.add_parser(
        "simulate",
        help="the decentralized protocol under faults, from seeds",
        description="Run the decentralized protocol on a simulated network with random faults and "
        "liars, and check that nothing that must hold is broken. Exit code 1 if something is.",
        allow_abbrev=False,
    )
    which = simulate.add_mutually_exclusive_group(required=True)
    which.add_argument("--seeds", type=_seed_range, metavar="A..B", help="B is not included")
    which.add_argument("--seed", type=_seed, metavar="S", help="one run")
    simulate.add_argument("--workers", type=_count, required=True, metavar="N")
    simulate.add_argument(
        "--byzantine",
        type=_share,
        required=True,
        metavar="F",
        help="a share below 1/3 such as 0.25 or 1/4, or a whole number of workers",
    )
    simulate.add_argument("--rounds", type=_count, default=1, metavar="R", help="default: 1")
    simulate.add_argument(
        "--faults",
        default="all",
        metavar="LIST",
        help="all, none, or names with commas between them: kinds of faults and behaviours of "
        "liars (docs/simulation.md)",
    )
    simulate.add_argument("--mode", choices=["all", "shuffle", "self"], default="all")
    simulate.add_argument(
        "--type", choices=["safety", "liveness"], help="default: every third run is for liveness"
    )
    simulate.add_argument("--proposers", type=_count, metavar="K", help="default: as planned")
    simulate.add_argument("--voters", type=_count, metavar="K", help="default: as planned")
    simulate.add_argument("--trace", action="store_true", help="with --seed: all that happens")
    simulate.add_argument(
        "--json", action="store_true", help="print one JSON document, nothing else"
    )
    simulate.set_defaults(run=_simulate)


def _add_settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        dest="settings",
        metavar="SECTION.KEY=VALUE",
        help="put a value over the config's; may be given several times",
    )


def _count(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        _refuse(f"must be a whole number; got {text!r}")
    if value < 1:
        _refuse(f"must be at least 1; got {value}")
    return value


def _share(text: str) -> Fraction | int:
    from holdout.shares import read_share

    try:
        return read_share(text)
    except ValueError as error:
        _refuse(f"{error}; got {text!r}")


def _seed(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        _refuse(f"must be a whole number; got {text!r}")
    if value < 0:
        _refuse(f"must not be negative; got {value}")
    return value


def _seed_range(text: str) -> range:
    first, dots, last = text.partition("..")
    if not dots:
        _refuse(f"must be two whole numbers with dots between them, as 0..100; got {text!r}")
    return range(_seed(first), _seed(last))


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
    from holdout.experiments import sizes_central, sizes_decentralized

    central = {"--delta": options.delta, "--committee": options.committee}
    decentralized = {
        "--delta-safety": options.delta_safety,
        "--delta-progress": options.delta_progress,
    }
    foreign = central if options.decentralized else decentralized
    for name, value in foreign.items():
        if value is not None:
            raise UserError(
                f"{name} does not go with --decentralized; say {' and '.join(decentralized)}"
                if options.decentralized
                else f"{name} needs --decentralized; without it say --delta"
            )
    plan: sizes_decentralized.LotteryPlan | sizes_central.CommitteePlan
    if options.decentralized:
        plan = sizes_decentralized.plan(
            workers=options.workers,
            byzantine=options.byzantine,
            rounds=options.rounds,
            delta_safety=options.delta_safety,
            delta_progress=options.delta_progress,
        )
    elif options.delta is None:
        raise UserError("plan needs --delta D, or --decentralized")
    else:
        plan = sizes_central.plan(
            workers=options.workers,
            byzantine=options.byzantine,
            rounds=options.rounds,
            delta=options.delta,
            committee=options.committee,
        )
    print(plan.as_json() if options.json else plan.as_text())


def _simulate(options: argparse.Namespace) -> int:
    from holdout.experiments.simulate import make_plan, show, simulate
    from holdout.terminal import counting

    one = options.seed is not None
    if options.trace and not one:
        raise UserError("--trace shows one run: give --seed S, not --seeds")
    plan = make_plan(
        seeds=range(options.seed, options.seed + 1) if one else options.seeds,
        workers=options.workers,
        byzantine=options.byzantine,
        rounds=options.rounds,
        faults=options.faults,
        mode=options.mode,
        run_type=options.type,
        proposers=options.proposers,
        voters=options.voters,
    )
    for note in plan.notes():
        print(f"note: {note}", file=sys.stderr)
    if options.trace:
        report, trace = show(plan, options.seed)
        print("\n".join(trace.lines), file=sys.stderr if options.json else sys.stdout)
    else:
        with counting("runs") as watch:
            report = simulate(plan, watch=watch)
    print(report.as_json() if options.json else report.as_text())
    if not report.is_complete:
        print(f"stopped after {report.runs} of {len(plan.seeds)} runs", file=sys.stderr)
    if report.violations:
        return EXIT_FAILURE
    return EXIT_OK if report.is_complete else EXIT_INTERRUPTED


def _report(options: argparse.Namespace) -> None:
    from holdout.experiments.curves import final_table, group
    from holdout.experiments.headlines import unfinished
    from holdout.experiments.report import write_report
    from holdout.results import CONFIG, read_run
    from holdout.terminal import print_table

    for folder in options.folders:
        if not (folder / CONFIG).exists() and _report_figure(folder):
            continue
        page = write_report(folder)
        found = read_run(folder)
        missing = unfinished(group(found.rounds), found.config)
        for sentence in missing:
            _say_note(sentence)
        print_table(final_table(found.rounds), folder.resolve().name, so_far=bool(missing))
        print(f"report: {page}")


def _report_figure(folder: Path) -> bool:
    """What `reproduce` made; whether it is that."""
    from holdout.experiments.curves import group
    from holdout.experiments.headlines import unfinished
    from holdout.experiments.reproduce import FIGURES, draw, figure_in
    from holdout.results import read_run

    name = figure_in(folder)
    if name is None:
        return False
    runs = {panel.name: read_run(folder / panel.name) for panel in FIGURES[name]}
    missing = [
        f"{panel}: {sentence}"
        for panel, found in runs.items()
        for sentence in unfinished(group(found.rounds), found.config)
    ]
    for sentence in missing:
        _say_note(sentence)
    _print_figure(draw(name, folder), so_far=bool(missing))
    return True


def _print_figure(figure: "Figure", *, so_far: bool = False) -> None:
    from holdout.terminal import print_table

    for title, rows in figure.tables:
        print_table(rows, title, so_far=so_far)
    print(f"figure: {figure.path}")


def _say_note(note: str) -> None:
    print(f"note: {note}", file=sys.stderr)


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
    from holdout.experiments.runner import run
    from holdout.terminal import print_table, watching

    # The folder holds its config, so nothing else needs to be said again.
    again = ["holdout", "run", "--out", str(folder), "--resume"]
    with _say_how_to_resume(folder / results.CONFIG, again), watching() as watch:
        result = run(values, out=folder, resume=options.resume, watch=watch(""), say=_say_note)
    print_table(result.table(), parsed.config.experiment.name)
    print(f"report: {folder / 'report.html'}")


def _reproduce(options: argparse.Namespace) -> None:
    from holdout.experiments.reproduce import QUICK, reproduce
    from holdout.terminal import watching

    out = options.out or Path("runs") / f"paper-{options.figure}{'-quick' * options.quick}"
    settings = [*(QUICK[options.figure] if options.quick else []), *options.settings]
    flags = [*(["--quick"] * options.quick), *(f"--set={setting}" for setting in options.settings)]
    again = ["holdout", "reproduce", options.figure, "--data", str(options.data), *flags]
    with (
        _say_how_to_resume(out, [*again, "--out", str(out), "--resume"]),
        watching() as watch,
    ):
        figure = reproduce(
            options.figure,
            data=options.data,
            out=out,
            settings=settings,
            resume=options.resume,
            watch=lambda panel: watch(f"{panel.name}: "),
        )
    _print_figure(figure)


def _demo_values() -> dict[str, Any]:
    from holdout.experiments.demo import demo_values

    return demo_values()


@contextlib.contextmanager
def _say_how_to_resume(begun: Path, command: Sequence[str]) -> Iterator[None]:
    try:
        yield
    except (KeyboardInterrupt, PluginError):
        if begun.exists():
            print(
                f"\nEverything done so far is kept. Go on with:\n  {shlex.join(command)}",
                file=sys.stderr,
            )
        raise
