"""The command `holdout localnet`: a whole network on this machine."""

import argparse
import contextlib
import os
import sys
from pathlib import Path
from typing import Any

from holdout.errors import LocalnetFailed, UserError
from holdout.node.commands.parsing import EXIT_FAILURE, make_parser, positive, say, writing
from holdout.node.localnet import LIES


def add_localnet(commands: Any) -> None:
    """Add `holdout localnet`."""
    local = make_parser(commands, "localnet", "run a whole network as processes on this machine")
    local.add_argument("--nodes", type=positive, default=7, help="how many nodes (default: 7)")
    local.add_argument(
        "--byzantine", default="0", help="how many nodes lie, a share or a number (default: 0)"
    )
    local.add_argument("--rounds", type=positive, default=20, help="default: 20")
    local.add_argument("--out", type=Path, metavar="DIR", help="default: runs/localnet, -2, ...")
    local.add_argument(
        "--lies",
        default="coalition,equivocate",
        help=f"what liars do, one or more of {', '.join(LIES)}; default: coalition,equivocate",
    )
    local.add_argument("--attack", default="sign-flip", help="the attack that liars propose")
    local.add_argument("--seed", type=int, default=0, help="draws data shards and first weights")
    local.add_argument(
        "--delay",
        type=positive,
        default=300,
        metavar="MS",
        help="how long a message takes at most (default: 300)",
    )
    local.add_argument("--seconds-max", type=positive, metavar="S", help="give up after S seconds")
    local.add_argument(
        "--full",
        action="store_true",
        help="keep everything, and execute all rounds again at the end",
    )
    local.add_argument(
        "--page",
        nargs="?",
        const="",
        metavar="HOST:PORT",
        help="serve a live page of the whole network (default: a free port of this machine)",
    )
    local.set_defaults(run=_localnet)


def _localnet(options: argparse.Namespace) -> int:
    from holdout.folder_names import claim_path
    from holdout.node.localnet.launcher import LocalnetPlan, run
    from holdout.node.localnet.lying_node import read_lies
    from holdout.node.membership.network_creation import read_byzantine

    byzantine, lies = read_byzantine(options.byzantine, options.nodes), read_lies(options.lies)
    plan = LocalnetPlan(
        folder=options.out or claim_path(Path("runs"), "localnet"),
        nodes=options.nodes,
        byzantine=byzantine,
        rounds=options.rounds,
        lies=lies,
        attack=options.attack,
        seed=options.seed,
        delay_ms=options.delay,
        seconds_max=options.seconds_max,
        keep_everything=options.full,
        page=_page_address(options.page),
    )
    try:
        with writing():
            line = run(plan)
    except UserError:
        with contextlib.suppress(OSError):
            plan.folder.rmdir()  # If nothing was made in it.
        raise
    except LocalnetFailed as error:
        sys.stderr.write(f"holdout: the network failed: {error}{os.linesep}")
        return EXIT_FAILURE
    say(line)
    return 0


def _page_address(given: str | None) -> str | None:
    """Where the page is served; None: nowhere."""
    from holdout.node.localnet.launcher import free_ports
    from holdout.node.membership.genesis import ADDRESS

    if given is None:
        return None
    address = given or f"127.0.0.1:{free_ports(1)[0]}"
    if not ADDRESS.fullmatch(address):
        raise UserError(f"an address is HOST:PORT, with a port from 1 to 65535; got {address!r}")
    return address
