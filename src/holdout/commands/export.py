"""`holdout export`: a trained model out of a run folder, as a safetensors file."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from holdout.commands.shared import Subparsers, count, seed
from holdout.errors import UserError

if TYPE_CHECKING:
    from holdout.runs import Run


def add_command(commands: Subparsers) -> None:
    """Add the parser."""
    parser = commands.add_parser(
        "export",
        help="write a trained model of a run as a safetensors file",
        description="Write the trained model of one curve of a run: its final one, or that of a "
        "round which `experiment.save_every` kept.",
        allow_abbrev=False,
    )
    parser.add_argument("folder", type=Path, metavar="RUN_DIR")
    parser.add_argument("--rule", required=True, metavar="RULE", help="the curve's rule")
    parser.add_argument("--seed", type=seed, metavar="S", help="default: the run's only seed")
    parser.add_argument(
        "--attack",
        metavar="NAME",
        help="default: the run's attack; none: the unattacked mean",
    )
    parser.add_argument("--round", type=count, metavar="N", help="default: the last one")
    parser.add_argument("out", type=Path, metavar="MODEL.safetensors")
    parser.set_defaults(run=_export)


def _export(options: argparse.Namespace) -> None:
    from holdout.curve_rows import CurveKey, planned_curves
    from holdout.results import read_run, write_atomic
    from holdout.saved_models import find_model, read, read_metadata

    run = read_run(options.folder)
    attack = options.attack or str(run.config.get("attack", {}).get("name", "none"))
    key = CurveKey(options.rule, attack, _seed(run, options.seed))
    path = find_model(options.folder, key, options.round, planned_curves(run.config))
    read(path)  # A damaged file is not passed on.
    if options.out.is_dir():
        raise UserError(f"{options.out} is a folder; name a file")
    if options.out.exists():
        raise UserError(f"{options.out} is there already; name another file or remove it")
    if not options.out.parent.is_dir():
        raise UserError(f"{options.out.parent} is not a folder")
    write_atomic(options.out, path.read_bytes())
    told = read_metadata(path)
    print(f"{options.out}: {key}, round {told.get('round')}, model {told.get('model')}")


def _seed(run: "Run", chosen: int | None) -> int:
    if chosen is not None:
        return chosen
    seeds = run.config.get("experiment", {}).get("seeds", [])
    if len(seeds) != 1:
        raise UserError(f"--seed must name one of the run's seeds: {', '.join(map(str, seeds))}")
    return int(seeds[0])
