"""The commands `holdout node ...`, `holdout network ...` and `holdout localnet`.

Parsing and printing only, like `holdout.cli`, which adds these commands to its own. What is slow to
import is imported by the command that needs it.
"""

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdout.errors import AuditError, LocalnetFailed, UserError

EXIT_FAILURE = 1


def add_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """The parsers; each sets `run` to the function that does the work."""
    _add_node(commands)
    _add_network(commands)
    _add_localnet(commands)


def _parser(commands: Any, name: str, about: str) -> argparse.ArgumentParser:
    made: argparse.ArgumentParser = commands.add_parser(
        name, help=about, description=about[0].upper() + about[1:] + ".", allow_abbrev=False
    )
    return made


def _add_node(commands: Any) -> None:
    node = _parser(commands, "node", "run one member of a network without a server")
    what = node.add_subparsers(dest="what", required=True, metavar="WHAT")

    init = _parser(what, "init", "make a member's folder: keys, certificate request, node.toml")
    init.add_argument("folder", type=Path, metavar="DIR")
    init.add_argument("--name", required=True, help="the member's name, in its certificate too")
    init.add_argument(
        "--address", required=True, metavar="HOST:PORT", help="where others reach this node"
    )
    init.add_argument("--listen", metavar="HOST:PORT", help="where it listens (default: address)")
    init.add_argument(
        "--worker",
        default="holdout.node.localnet.demo_worker:make_worker",
        metavar="PACKAGE.MODULE:NAME",
        help="the member's own code",
    )
    init.set_defaults(run=_init)

    reveal = _parser(what, "reveal", "reveal this member's share of the beacon for a setup file")
    reveal.add_argument("folder", type=Path, metavar="DIR")
    reveal.add_argument("setup", type=Path, metavar="SETUP.toml")
    reveal.add_argument("out", type=Path, metavar="OUT.toml")
    reveal.set_defaults(run=_reveal)

    join = _parser(what, "join", "make the node a member of a network: its store is made, once")
    join.add_argument("folder", type=Path, metavar="DIR")
    join.add_argument("network", type=Path, metavar="NETWORK_DIR")
    join.set_defaults(run=_join)

    run = _parser(what, "run", "run the node until SIGTERM or Ctrl-C")
    run.add_argument("folder", type=Path, metavar="DIR")
    run.add_argument("--until", type=_positive, metavar="ROUND", help="take part up to this round")
    run.set_defaults(run=_run)

    status = _parser(what, "status", "ask the running node how it is")
    status.add_argument("folder", type=Path, metavar="DIR")
    status.add_argument("--json", action="store_true", help="print one JSON document")
    status.set_defaults(run=_status)

    verify = _parser(what, "verify", "re-verify the whole chain of certificates, offline")
    verify.add_argument("folder", type=Path, metavar="DIR")
    verify.add_argument(
        "--full", action="store_true", help="execute again every round that is still kept"
    )
    verify.set_defaults(run=_verify)

    export = _parser(what, "export", "write the model of a round as a safetensors file")
    export.add_argument("folder", type=Path, metavar="DIR")
    export.add_argument("--round", type=int, metavar="R", help="default: the newest")
    export.add_argument("out", type=Path, metavar="MODEL.safetensors")
    export.set_defaults(run=_export)


def _add_network(commands: Any) -> None:
    network = _parser(commands, "network", "create a network from its members' public parts")
    what = network.add_subparsers(dest="what", required=True, metavar="WHAT")
    create = _parser(
        what, "create", "gather members into a genesis file, and sign their certificates"
    )
    create.add_argument("folder", type=Path, metavar="NETWORK_DIR")
    create.add_argument(
        "--members", nargs="+", type=Path, metavar="MEMBER", help="member.toml files or folders"
    )
    create.add_argument("--name", default="holdout", help="the network's name")
    create.add_argument(
        "--byzantine",
        metavar="F",
        help="members that may lie, a share or a number (default: (n-1)/3)",
    )
    _add_parameters(create)
    create.add_argument("--model", default="mlp", help="mlp, lenet5 or package.module:factory")
    create.add_argument(
        "--weights", type=Path, metavar="W1.safetensors", help="first weights (default: drawn)"
    )
    create.add_argument("--shape", default="1,28,28", metavar="A,B,C", help="shape of one sample")
    create.add_argument("--classes", type=int, default=10)
    create.add_argument("--description", default="", help="what data members hold, in words")
    create.add_argument("--seed", type=int, default=0, help="draws the first weights")
    beacon = create.add_mutually_exclusive_group()
    beacon.add_argument("--beacon", metavar="HEX", help="32 public random bytes, fixed in advance")
    beacon.add_argument(
        "--reveals", nargs="+", type=Path, metavar="SHARE", help="every member's revealed share"
    )
    create.set_defaults(run=_create)

    certify = _parser(what, "certify", "sign members' certificates again, before they expire")
    certify.add_argument("folder", type=Path, metavar="NETWORK_DIR")
    certify.add_argument("members", nargs="+", type=Path, metavar="MEMBER")
    certify.set_defaults(run=_certify)


def _add_parameters(create: argparse.ArgumentParser) -> None:
    sizes = create.add_argument_group(
        "parameters", "what is not given follows from the number of members and of liars"
    )
    sizes.add_argument(
        "--parameters", type=Path, metavar="FILE.toml", help="a table [parameters], as in a genesis"
    )
    sizes.add_argument("--learning-rate", type=float, metavar="ETA", help="default: 0.1")
    sizes.add_argument("--proposers", type=int, metavar="N", help="expected in a round (tau_P)")
    sizes.add_argument("--voters", type=int, metavar="N", help="expected in a round (tau_V)")
    sizes.add_argument("--leaders", type=int, metavar="N", help="expected in a period (tau_L)")
    sizes.add_argument(
        "--ballots-min", type=int, metavar="N", help="a block with fewer makes no step (M_min)"
    )
    sizes.add_argument(
        "--byzantine-voters-max",
        type=int,
        metavar="N",
        help="an update needs one approval more than this (b_max)",
    )
    sizes.add_argument("--mode", choices=["all", "shuffle", "self"], help="who agrees")
    sizes.add_argument("--role-draw", choices=["self", "fixed"], help="how roles are drawn")
    sizes.add_argument(
        "--rounds", type=_positive, default=1000, metavar="T", help="for how many rounds to plan"
    )


def _add_localnet(commands: Any) -> None:
    local = _parser(commands, "localnet", "run a whole network as processes on this machine")
    local.add_argument("--nodes", type=_positive, default=7)
    local.add_argument("--byzantine", default="0", help="nodes that lie, a share or a number")
    local.add_argument("--rounds", type=_positive, default=20)
    local.add_argument("--out", type=Path, metavar="DIR", help="default: runs/localnet, -2, ...")
    local.add_argument(
        "--lies",
        default="coalition,equivocate",
        help="coalition, equivocate, withhold, garbage, replay, impersonate, flood, silent",
    )
    local.add_argument("--attack", default="sign-flip", help="what liars propose")
    local.add_argument("--seed", type=int, default=0)
    local.add_argument(
        "--delay", type=_positive, default=300, metavar="MS", help="bound for messages"
    )
    local.add_argument("--seconds-max", type=_positive, metavar="S")
    local.add_argument(
        "--full", action="store_true", help="keep everything and execute all rounds again"
    )
    local.set_defaults(run=_localnet)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError
    return value


_positive.__name__ = "number from 1 on"  # What argparse calls it where it is none.


@contextlib.contextmanager
def _writing() -> Iterator[None]:
    """A file or folder that cannot be written is the user's to mend."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{error.filename or 'a file'}: {error.strerror or error}") from None


# -- what they do ---------------------------------------------------------------------------------


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _init(options: argparse.Namespace) -> int:
    from holdout.node.membership.members import MEMBER, init_node

    with _writing():
        init_node(
            options.folder,
            name=options.name,
            address=options.address,
            listen=options.listen,
            make_worker=options.worker,
        )
    _say(f"made {options.folder}; hand {options.folder / MEMBER} to whoever creates the network")
    return 0


def _reveal(options: argparse.Namespace) -> int:
    from holdout.node.membership.members import reveal

    with _writing():
        reveal(options.folder, options.setup, options.out)
    _say(f"revealed in {options.out}")
    return 0


def _join(options: argparse.Namespace) -> int:
    from holdout.node.membership.members import join

    with _writing():
        network = join(options.folder, options.network)
    _say(f"joined {network.name}, {network.identity}")
    return 0


def _run(options: argparse.Namespace) -> int:
    from holdout.node.runtime.node import run_node

    run_node(options.folder, until=options.until)
    return 0


def _status(options: argparse.Namespace) -> int:
    from holdout.node.runtime.status import ask_status

    status = ask_status(options.folder)
    if options.json:
        _say(json.dumps(status, indent=2))
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
    refused = {**status["refused"], **status["refused_messages"]}
    if refused:
        lines["refused"] = ", ".join(f"{kind} ({n})" for kind, n in refused.items())
    lines["valid until"] = status["certificate_expires"]
    if status["halted"]:
        lines["halted"] = status["halted"]
    _say("\n".join(f"{name:12}{value}" for name, value in lines.items()))
    return 0


def _verify(options: argparse.Namespace) -> int:
    from holdout.node.storage.audit import audit
    from holdout.node.storage.offline import opened

    try:
        with opened(options.folder) as (store, network):
            result = audit(store, network.genesis, full=options.full)
    except AuditError as error:
        sys.stderr.write(f"holdout: not verified: {error}{os.linesep}")
        return EXIT_FAILURE
    again = ""
    if options.full:
        again = f", {result.executed} executed again, {result.tallied} tallied again"
    _say(
        f"{result.rounds} rounds verified ({result.steps} steps{again}); the model is"
        f" {result.model.hex()}"
    )
    return 0


def _export(options: argparse.Namespace) -> int:
    from holdout.node.storage.offline import export

    with _writing():
        digest = export(options.folder, options.round, options.out)
    _say(f"{options.out}: model {digest.hex()}")
    return 0


def _create(options: argparse.Namespace) -> int:
    from holdout.node.membership.network_creation import create

    with _writing():
        said, notes = create(options)
    for note in notes:
        sys.stderr.write(f"holdout: {note}\n")
    _say(said)
    return 0


def _certify(options: argparse.Namespace) -> int:
    from holdout.node.membership.members import certify

    with _writing():
        signed = certify(options.folder, options.members)
    for path in signed:
        _say(f"signed {path}; the member puts it at keys/tls.crt in its folder")
    return 0


def _localnet(options: argparse.Namespace) -> int:
    from holdout.node.localnet.lying_node import read_behaviours
    from holdout.node.localnet.network import LocalnetPlan, run
    from holdout.node.membership.network_parameters import read_byzantine
    from holdout.results import free_path

    plan = LocalnetPlan(
        folder=options.out or free_path(Path("runs"), "localnet"),
        nodes=options.nodes,
        byzantine=read_byzantine(options.byzantine, options.nodes),
        rounds=options.rounds,
        lies=read_behaviours(options.lies),
        attack=options.attack,
        seed=options.seed,
        delay_ms=options.delay,
        seconds_max=options.seconds_max,
        keep_everything=options.full,
    )
    try:
        line = run(plan)
    except LocalnetFailed as error:
        sys.stderr.write(f"holdout: the network failed: {error}{os.linesep}")
        return EXIT_FAILURE
    _say(line)
    return 0
