"""`holdout reproduce`: the paper's figures on the full data."""

import argparse
from pathlib import Path

from holdout.commands.shared import Subparsers, add_settings, explain_resuming, print_note


def add_command(commands: Subparsers) -> None:
    """Add the parser."""
    parser = commands.add_parser(
        "reproduce",
        help="the paper's figures on the full data",
        description="Run the paper's experiments on MNIST or CIFAR-10 and draw its figure. "
        "In full this takes long (CIFAR-10: many hours); it can be stopped and resumed.",
        allow_abbrev=False,
    )
    parser.add_argument("figure", choices=["mnist", "cifar10"])
    parser.add_argument(
        "--data", type=Path, required=True, metavar="DIR", help="folder with the standard files"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="take only minutes: fewer rounds, one seed; CIFAR-10 with a larger learning rate and "
        "fewer holdout samples. The titles say so",
    )
    add_settings(parser)
    parser.add_argument("--out", type=Path, metavar="DIR", help="default: runs/paper-FIGURE")
    parser.add_argument("--resume", action="store_true", help="continue an interrupted run")
    parser.set_defaults(run=_reproduce)


def _reproduce(options: argparse.Namespace) -> None:
    from holdout.experiments.reproduce import QUICK, reproduce
    from holdout.terminal import print_figure, watching

    out = options.out or Path("runs") / f"paper-{options.figure}{'-quick' * options.quick}"
    settings = [*(QUICK[options.figure] if options.quick else []), *options.settings]
    flags = [*(["--quick"] * options.quick), *(f"--set={setting}" for setting in options.settings)]
    again = ["holdout", "reproduce", options.figure, "--data", str(options.data), *flags]
    with (
        explain_resuming(out, [*again, "--out", str(out), "--resume"]),
        watching() as watch,
    ):
        figure = reproduce(
            options.figure,
            data=options.data,
            out=out,
            settings=settings,
            resume=options.resume,
            watch=lambda panel: watch(f"{panel.name}: "),
            say=print_note,
        )
    print_figure(figure)
