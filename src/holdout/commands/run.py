"""`holdout run`: one experiment, from a config, or the built-in demo."""

import argparse
import sys
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any

from holdout.commands.shared import (
    EXIT_FAILURE,
    EXIT_OK,
    Subparsers,
    add_settings,
    count,
    explain_resuming,
    print_note,
)


def add_command(commands: Subparsers) -> None:
    """Add the parser."""
    parser = commands.add_parser(
        "run",
        help="run an experiment; without a config, the built-in demo",
        description="Run an experiment: some rules, one attack, one or several seeds. "
        "Without a config: the built-in demo, offline, about a minute.",
        allow_abbrev=False,
    )
    parser.add_argument("config", nargs="?", type=Path, metavar="CONFIG.toml")
    add_settings(parser)
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="run folder (default: runs/NAME, -2, -3, ...)"
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="go on with a run, interrupted or finished; --set may add rounds, rules and seeds",
    )
    parser.add_argument(
        "--save-every",
        type=count,
        metavar="N",
        help="also keep the model of every N-th round (experiment.save_every)",
    )
    parser.add_argument(
        "--changed-code",
        action="store_true",
        help="with --resume: go on although custom code has changed; the report says so",
    )
    parser.set_defaults(run=_run)


def demo_values() -> dict[str, Any]:
    """The config of the demo, as TOML gives it."""
    return tomllib.loads(files("holdout.experiments").joinpath("demo.toml").read_text("utf-8"))


def _values(options: argparse.Namespace) -> dict[str, Any]:
    """The config that the options ask for, as TOML gives it."""
    from holdout import config, results

    if options.config is not None:
        values = config.read_file(options.config)
    elif options.resume and options.out is not None:
        values = results.read_config(options.out)
    else:
        values = demo_values()
    settings = list(options.settings)
    if options.save_every is not None:
        settings.append(f"experiment.save_every={options.save_every}")
    return config.apply_settings(values, settings)


def _run(options: argparse.Namespace) -> int:
    from holdout import results
    from holdout.errors import RunFailed, UserError

    if options.changed_code and not options.resume:
        raise UserError("--changed-code is for --resume: a new run takes the code as it is")
    folder: Path | None = options.out
    values = _values(options)
    from holdout.experiments.heterogeneity_report import heterogeneity_lines
    from holdout.experiments.runner import run_plan, tried_plan
    from holdout.experiments.watchers import CallersWatcher
    from holdout.folder_names import claim_path, last_path
    from holdout.terminal import print_table, watching

    said: list[str] = []

    def say(note: str) -> None:
        said.append(note)
        print_note(note)

    failed = None
    with watching() as watch:
        plan = tried_plan(values)
        name = plan.config.experiment.name
        if folder is None:
            find_path = last_path if options.resume else claim_path
            folder = find_path(Path("runs"), name)
        # The folder holds its config, so nothing else needs to be given again.
        again = ["holdout", "run", "--out", str(folder), "--resume"]
        with explain_resuming(folder / results.CONFIG, again):
            try:
                result = run_plan(
                    plan,
                    out=folder,
                    resume=options.resume,
                    watch=CallersWatcher(watch("")),
                    say=say,
                    changed_code=options.changed_code,
                )
            except RunFailed as error:
                result, failed = error.result, error
    print_table(result.table(), name)
    for line in heterogeneity_lines(results.read_run(result)):
        print(line)
    for note in result.notes:
        if note not in said:
            print(f"note: {note}")
    print(f"report: {folder / 'report.html'}")
    if failed is not None:
        print(f"holdout: {failed}", file=sys.stderr)
        return EXIT_FAILURE
    return EXIT_OK
