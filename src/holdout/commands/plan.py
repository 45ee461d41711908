"""`holdout plan`: how large committees must be, and how likely a draw is bad."""

import argparse
from typing import TYPE_CHECKING

from holdout.commands.shared import Subparsers, count, coverage, probability, share
from holdout.errors import UserError

if TYPE_CHECKING:
    from holdout.experiments.sizes import CommitteePlan, NetworkPlan


def add_command(commands: Subparsers) -> None:
    """Add the parser."""
    parser = commands.add_parser(
        "plan",
        help="committee sizes and failure probabilities, bound and exact",
        description="How large must a committee be, and how likely is a bad draw?",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--workers", type=count, required=True, metavar="N", help="how many workers there are"
    )
    parser.add_argument(
        "--byzantine",
        type=share,
        required=True,
        metavar="F",
        help="a share below 1/2 such as 0.33 or 1/3, or a whole number of workers",
    )
    parser.add_argument(
        "--rounds", type=count, required=True, metavar="T", help="how many rounds are planned"
    )
    parser.add_argument(
        "--delta",
        type=probability,
        metavar="D",
        help="the probability of failure over all rounds that you accept",
    )
    parser.add_argument(
        "--committee", type=count, metavar="K", help="judge a committee of this size"
    )
    parser.add_argument(
        "--coverage",
        type=coverage,
        metavar="C",
        help="the share of honest voters that can judge a class: how many liars votes by class "
        "withstand, with --committee the exact odds",
    )
    parser.add_argument(
        "--decentralized", action="store_true", help="plan a network without a server instead"
    )
    parser.add_argument(
        "--delta-safety",
        type=probability,
        metavar="D",
        help="with --decentralized: the probability you accept that some round gets two blocks "
        "(default: 1e-6)",
    )
    parser.add_argument(
        "--delta-progress",
        type=probability,
        metavar="D",
        help="with --decentralized: the probability you accept that some round misses a quorum or "
        "an honest majority (default: 1e-3)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document, nothing else")
    parser.set_defaults(run=_plan)


def _plan(options: argparse.Namespace) -> None:
    made = _decentralized(options) if options.decentralized else _central(options)
    print(made.as_json() if options.json else made.as_text())


def _central(options: argparse.Namespace) -> "CommitteePlan":
    from holdout.experiments.sizes import plan_committee

    for name in ("delta_safety", "delta_progress"):
        if getattr(options, name) is not None:
            raise UserError(f"{_option(name)} needs --decentralized; without it, use --delta")
    if options.delta is None:
        raise UserError("plan needs --delta D, or --decentralized")
    return plan_committee(
        workers=options.workers,
        byzantine=options.byzantine,
        rounds=options.rounds,
        delta=options.delta,
        committee=options.committee,
        coverage=options.coverage,
    )


def _decentralized(options: argparse.Namespace) -> "NetworkPlan":
    from holdout.experiments.sizes import plan_network

    for name in ("delta", "committee", "coverage"):
        if getattr(options, name) is not None:
            raise UserError(
                f"{_option(name)} cannot be used with --decentralized; use --delta-safety and "
                "--delta-progress"
            )
    return plan_network(
        workers=options.workers,
        byzantine=options.byzantine,
        rounds=options.rounds,
        delta_safety=options.delta_safety,
        delta_progress=options.delta_progress,
    )


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")
