"""`holdout simulate`: the protocol without a server, under faults and liars, from seeds."""

import argparse
import sys

from holdout.commands.shared import (
    EXIT_FAILURE,
    EXIT_INTERRUPTED,
    EXIT_OK,
    Subparsers,
    count,
    print_note,
    seed,
    seed_range,
    share,
)
from holdout.errors import UserError


def add_command(commands: Subparsers) -> None:
    """Add the parser."""
    parser = commands.add_parser(
        "simulate",
        help="the decentralized protocol under faults, from seeds",
        description="Run the decentralized protocol on a simulated network with random faults and "
        "liars, and check everything that must hold. Exit code 1 if something does not.",
        allow_abbrev=False,
    )
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--seeds", type=seed_range, metavar="A..B", help="B is not included")
    which.add_argument("--seed", type=seed, metavar="S", help="one run")
    parser.add_argument("--workers", type=count, required=True, metavar="N")
    parser.add_argument(
        "--byzantine",
        type=share,
        required=True,
        metavar="F",
        help="a share below 1/3 such as 0.25 or 1/4, or a whole number of workers",
    )
    parser.add_argument("--rounds", type=count, default=1, metavar="R", help="default: 1")
    parser.add_argument(
        "--faults",
        default="all",
        metavar="LIST",
        help="all, none, or comma-separated names of faults and of liars' behaviours "
        "(docs/simulation.md)",
    )
    parser.add_argument("--mode", choices=["all", "shuffle", "self"], default="all")
    parser.add_argument(
        "--type", choices=["safety", "liveness"], help="default: every third run is for liveness"
    )
    parser.add_argument("--proposers", type=count, metavar="K", help="default: as planned")
    parser.add_argument("--voters", type=count, metavar="K", help="default: as planned")
    parser.add_argument("--trace", action="store_true", help="with --seed: print all that happens")
    parser.add_argument("--json", action="store_true", help="print one JSON document, nothing else")
    parser.set_defaults(run=_simulate)


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
        print_note(note)
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
