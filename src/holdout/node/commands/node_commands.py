"""The commands `holdout node ...`: one member of a network."""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from holdout.errors import AuditError, UserError
from holdout.node.commands.parsing import (
    EXIT_FAILURE,
    folder_command,
    make_parser,
    positive,
    say,
    writing,
)


def add_node(commands: Any) -> None:
    """Add `holdout node` and what it does."""
    node = make_parser(commands, "node", "run one member of a network that has no server")
    what = node.add_subparsers(dest="what", required=True, metavar="WHAT")

    init = folder_command(
        what, "init", "make a member's folder: keys, certificate request, node.toml", _init, "DIR"
    )
    init.add_argument("--name", required=True, help="the member's name, in its certificate too")
    init.add_argument(
        "--address", required=True, metavar="HOST:PORT", help="where others reach this node"
    )
    init.add_argument(
        "--listen", metavar="HOST:PORT", help="where it listens (default: the address)"
    )
    init.add_argument(
        "--worker",
        metavar="PACKAGE.MODULE:NAME",
        help="the function that makes the member's worker (default: the demo's)",
    )

    init.add_argument(
        "--like",
        type=Path,
        metavar="DIR",
        help="take settings from this folder, of the same member in an earlier network",
    )

    reveal = folder_command(
        what, "reveal", "reveal this member's share of the beacon for a setup file", _reveal, "DIR"
    )
    reveal.add_argument("setup", type=Path, metavar="SETUP.toml")
    reveal.add_argument("out", type=Path, metavar="OUT.toml")

    join = folder_command(what, "join", "make the node a member of a network, once", _join, "DIR")
    join.add_argument("network", type=Path, metavar="BUNDLE", help="or the network's folder")

    check = folder_command(
        what, "check", "try everything the node needs, and say what is wrong", _check, "DIR"
    )
    check.add_argument("--json", action="store_true", help="print one JSON document")

    run = folder_command(what, "run", "run the node until SIGTERM or Ctrl-C", _run, "DIR")
    run.add_argument("--until", type=positive, metavar="ROUND", help="take part up to this round")
    run.add_argument(
        "--join",
        type=Path,
        metavar="BUNDLE",
        help="join with this bundle first, if the node belongs to no network yet",
    )

    status = folder_command(what, "status", "show how the running node is doing", _status, "DIR")
    status.add_argument("--json", action="store_true", help="print one JSON document")

    verify = folder_command(
        what, "verify", "verify the whole chain of certificates, offline", _verify, "DIR"
    )
    verify.add_argument(
        "--full", action="store_true", help="also execute again every round that is still kept"
    )

    verify.add_argument(
        "--before",
        nargs="+",
        type=Path,
        default=[],
        metavar="OLD_DIR",
        help="nodes of the networks before this one, newest first: verify their chains too",
    )

    backup = folder_command(
        what, "backup", "copy the folder of a node, also while it runs", _backup, "DIR"
    )
    backup.add_argument("out", type=Path, metavar="OUT_DIR")

    export = folder_command(
        what, "export", "write the model of a round as a safetensors file", _export, "DIR"
    )
    export.add_argument("--round", type=int, metavar="R", help="default: the newest")
    export.add_argument("out", type=Path, metavar="MODEL.safetensors")


def _init(options: argparse.Namespace) -> int:
    from holdout.node.membership.members import MEMBER, init_node
    from holdout.node.membership.settings import DEMO_WORKER

    with writing():
        init_node(
            options.folder,
            name=options.name,
            address=options.address,
            listen=options.listen,
            make_worker=options.worker or DEMO_WORKER,
            like=options.like,
        )
    say(f"made {options.folder}; hand {options.folder / MEMBER} to whoever creates the network")
    return 0


def _reveal(options: argparse.Namespace) -> int:
    from holdout.node.membership.members import reveal

    with writing():
        reveal(options.folder, options.setup, options.out)
    say(f"revealed in {options.out}")
    return 0


def _join(options: argparse.Namespace) -> int:
    from holdout.node.runtime.folder import join

    with writing():
        network = join(options.folder, options.network)
    say(f"joined {network.name}, {network.identity}")
    return 0


def _check(options: argparse.Namespace) -> int:
    from holdout.node.runtime.check import check_node

    found = check_node(options.folder)
    if options.json:
        say(json.dumps([item.as_dict() for item in found], indent=2))
    else:
        say("\n".join(f"{item.outcome:6}{item.what:13}{item.said}" for item in found))
    return EXIT_FAILURE if any(item.is_wrong for item in found) else 0


def _run(options: argparse.Namespace) -> int:
    from holdout.node.runtime.folder import has_joined, join
    from holdout.node.runtime.node import run_node

    if options.join is not None and not has_joined(options.folder):
        with writing():
            network = join(options.folder, options.join)
        sys.stderr.write(f"holdout: joined {network.name}, {network.identity}\n")
    run_node(options.folder, until=options.until)
    return 0


def _status(options: argparse.Namespace) -> int:
    from holdout.node.runtime.status import ask_status

    status = ask_status(options.folder)
    if options.json:
        say(json.dumps(status, indent=2))
        return 0
    certificate = status["certificate"]
    accuracy = status["accuracy"]
    lines = {
        "node": f"{status['node']} (worker {status['worker']})",
        "network": status["network"],
        "round": f"{status['round']}, period {status['period']}"
        + (" (observer)" if status["observer"] else ""),
        "model": status["model"],
        "accuracy": "-" if accuracy is None else f"{100 * accuracy:.1f} %",
        "certificate": "none yet"
        if certificate is None
        else f"round {certificate['round']} by {', '.join(certificate['signers'])}",
        "heard": ", ".join(status["heard"]) or "nobody",
        "left": ", ".join(status["left"]) or "nobody",
        "evidence": ", ".join(f"{name} ({n})" for name, n in status["evidence"].items()) or "none",
    }
    rows = [*lines.items(), *_more(status)]
    say("\n".join(f"{name:12}{value}" for name, value in rows))
    return 0


def _more(status: dict[str, Any]) -> list[tuple[str, str]]:
    """What is told of a node's work and troubles, as far as there is something to tell."""
    from holdout.node.runtime.alarms import alarms_of

    lines = {"slow": ", ".join(status["slow"]) or "nobody"}
    failures = status["worker_failures"]
    if failures:
        why = f": {status['worker_failed']}" if status["worker_failed"] else ", works again"
        lines["worker"] = f"failures: {failures}{why}"
    for name, counts in (
        ("rejected", status["rejected"]),
        ("refused", {**status["refused"], **status["refused_messages"]}),
        ("dropped", status["dropped"]),
        ("unanswered", status["unanswered"]),
    ):
        if counts:
            lines[name] = ", ".join(f"{reason} ({count})" for reason, count in counts.items())
    memory = status["memory"]
    lines["memory"] = f"{memory['node'] >> 20} MB, worker {memory['learner'] >> 20} MB"
    seconds = {name: value for name, value in status["seconds"].items() if name != "up"}
    whole = max(status["seconds"]["up"], 1e-9)
    shares = [f"{name} {100 * value / whole:.0f} %" for name, value in seconds.items() if value]
    lines["time"] = ", ".join(shares) or "-"
    stored = status["stored"]
    reach = ", ".join(f"{kind} from round {first}" for kind, first in stored["oldest"].items())
    lines["stored"] = f"{stored['bytes'] >> 20} MB ({stored['free'] >> 20} MB free): {reach}"
    lines["valid until"] = status["certificate_expires"]
    return [*lines.items(), *((alarm.level, alarm.text) for alarm in alarms_of(status))]


def _verify(options: argparse.Namespace) -> int:
    from holdout.node.storage.audit import audit, opened
    from holdout.node.storage.succession import audit_seams

    try:
        with opened(options.folder) as (store, network):
            result = audit(store, network.genesis, full=options.full)
        seams = audit_seams(options.folder, options.before)
    except AuditError as error:
        sys.stderr.write(f"holdout: not verified: {error}{os.linesep}")
        return EXIT_FAILURE
    again = ""
    if options.full:
        again = f", {result.executed} executed again"
        if result.tallied:
            again += f", {result.tallied} only counted again: their gradients are gone"
    say(
        f"{result.rounds} rounds verified ({result.steps} steps{again}); the model is"
        f" {result.model.hex()}. {result.kept[0].upper()}{result.kept[1:]}"
    )
    for seam in seams:
        whole = "" if seam.chain is None else f"; its {seam.chain.rounds} rounds are verified too"
        say(
            f"It succeeds {seam.old.name}, {seam.old.identity}, after round {seam.round}, which"
            f" {seam.signers} of {len(seam.old.members)} members certified{whole}"
        )
    return 0


def _backup(options: argparse.Namespace) -> int:
    from holdout.node.storage.backup import back_up

    with writing():
        height = back_up(options.folder, options.out)
    say(
        f"{options.out}: up to round {height}. It holds secret keys. To restore, put it in place of"
        " the lost folder and run the node: it watches until it is safe to vote"
    )
    return 0


def _export(options: argparse.Namespace) -> int:
    from holdout.node.storage.audit import export

    if options.out.exists():
        raise UserError(f"{options.out} is there already; name another file or remove it")
    with writing():
        digest = export(options.folder, options.round, options.out)
    say(f"{options.out}: model {digest.hex()}")
    return 0
