"""`holdout list`: what a config may name."""

import argparse
import json
from dataclasses import asdict

from holdout.commands.shared import Subparsers

KINDS = ("rules", "attacks", "partitions", "models", "data")


def add_command(commands: Subparsers) -> None:
    """Add the parser."""
    parser = commands.add_parser(
        "list",
        help="the rules, attacks, partitions, models or data sets that a config may name",
        description="What a config may name, with a line on each. Custom code is named "
        '"package.module:name" in every one of these places.',
        allow_abbrev=False,
    )
    parser.add_argument("what", choices=KINDS)
    parser.add_argument("--json", action="store_true", help="print one JSON document, nothing else")
    parser.set_defaults(run=_list)


def _list(options: argparse.Namespace) -> None:
    from holdout.experiments.catalogue import CATALOGUE, as_table

    entries = list(CATALOGUE[options.what]())
    print(json.dumps([asdict(entry) for entry in entries]) if options.json else as_table(entries))
