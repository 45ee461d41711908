"""`holdout sweep`: every rule against its worst attack, in one picture."""

import argparse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdout.commands.shared import (
    EXIT_FAILURE,
    EXIT_OK,
    Subparsers,
    add_settings,
    count,
    explain_resuming,
    print_note,
)
from holdout.errors import UserError

if TYPE_CHECKING:
    from holdout.sweeps.runner import SweepResult

SHIPPED = ("vote-family", "wrong-share")
"""Sweeps that come with the package and are run by name."""


def add_command(commands: Subparsers) -> None:
    """Add the parser."""
    parser = commands.add_parser(
        "sweep",
        help="every rule against its worst attack: heat maps over a grid of settings",
        description="Run a grid of experiments, two or more curves at a time, and draw what each "
        "rule's worst attack leaves. It can be stopped and resumed; curves are shared by sweeps.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "sweep",
        nargs="?",
        metavar="SWEEP.toml",
        help=f"a sweep file, or {' or '.join(SHIPPED)}, which come with holdout",
    )
    parser.add_argument(
        "--byzfl",
        type=Path,
        metavar="CONFIG.json",
        help="in place of a sweep file: a config of ByzFL 0.0.11",
    )
    add_settings(parser)
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="folder (default: runs/NAME, -2, -3, ...)"
    )
    parser.add_argument(
        "--store",
        type=Path,
        metavar="DIR",
        help="where all sweeps keep their curves (default: curves beside the folder)",
    )
    parser.add_argument(
        "--jobs", type=count, metavar="N", help="curves at a time, one thread each (default: cores)"
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="go on with an interrupted sweep, and try failed curves again",
    )
    parser.add_argument(
        "--quick", action="store_true", help="a cut-down version, by the file's [quick]"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="only estimate the number of curves, time and disk"
    )
    parser.add_argument(
        "--yes",
        action="store_true",
        help="begin even if there are more curves than sweep.curves_max",
    )
    parser.set_defaults(run=_sweep)


def _values(options: argparse.Namespace) -> Mapping[str, Any]:
    """The sweep that the options ask for, as TOML gives it."""
    from holdout.config import read_file
    from holdout.sweeps.sweep_folder import read_folder

    if options.byzfl is not None:
        return _byzfl_values(options)
    if options.sweep is not None:
        path = Path(options.sweep)
        if options.sweep in SHIPPED and not path.exists():
            path = Path(str(files("holdout.experiments").joinpath(f"{options.sweep}.toml")))
        if not path.exists():
            known = " and ".join(SHIPPED)
            raise UserError(f"{path}: there is no such file; {known} come with holdout")
        return read_file(path)
    if options.resume and options.out is not None:
        return read_folder(options.out)
    raise UserError("sweep needs SWEEP.toml, or --out DIR --resume to go on with one")


def _byzfl_values(options: argparse.Namespace) -> Mapping[str, Any]:
    """The sweep that a ByzFL config asks for; notes say what differs."""
    from holdout.sweeps.byzfl_config import read_byzfl

    if options.sweep is not None:
        raise UserError("sweep takes SWEEP.toml or --byzfl CONFIG.json, not both")
    values, notes = read_byzfl(options.byzfl)
    for note in notes:
        print_note(note)
    return values


def _sweep(options: argparse.Namespace) -> int:
    values = _values(options)
    from holdout.sweeps.runner import prepare
    from holdout.terminal import print_sweep, sweeping

    # The folder of a quick cut holds the cut itself.
    quick = options.quick and not (options.sweep is None and options.byzfl is None)
    with sweeping() as watch:
        prepared = prepare(
            values,
            settings=options.settings,
            quick=quick,
            out=options.out,
            store=options.store,
            jobs=options.jobs,
            resume=options.resume,
        )
        if not options.dry_run:
            begun: list[Path] = []
            with _explaining(options, begun):
                result = prepared.run(
                    yes=options.yes, watch=watch, say=print_note, begun=begun.append
                )
    if options.dry_run:
        print(prepared.size().as_text())
        return EXIT_OK
    print_sweep(result)
    return _exit_code(result)


@contextmanager
def _explaining(options: argparse.Namespace, begun: list[Path]) -> Iterator[None]:
    """If the sweep is stopped once its folder is there, print how to go on."""
    try:
        yield
    except BaseException as error:
        if not begun:
            raise
        again = ["holdout", "sweep", "--out", str(begun[0]), "--resume"]
        for name in ("store", "jobs"):
            if (value := getattr(options, name)) is not None:
                again += [f"--{name}", str(value)]
        with explain_resuming(begun[0], again):
            raise error from None


def _exit_code(result: "SweepResult") -> int:
    return EXIT_FAILURE if result.failed else EXIT_OK
