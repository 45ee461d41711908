"""The commands `holdout node ...`, `holdout network ...` and `holdout localnet`.

Parsing and printing only. What is slow to import is imported by the command that needs it.
"""

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from holdout.errors import AuditError, LocalnetFailed, UserError

EXIT_FAILURE = 1
PARAMETERS = (
    "byzantine",
    "proposers",
    "voters",
    "leaders",
    "ballots_min",
    "byzantine_voters_max",
    "mode",
    "role_draw",
)
"""Parameters of a network that `holdout network create` has an option for, of the same name."""


def add_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the parsers; each sets `run` to the function that does the work."""
    _add_node(commands)
    _add_network(commands)
    _add_localnet(commands)


def _parser(commands: Any, name: str, about: str) -> argparse.ArgumentParser:
    made: argparse.ArgumentParser = commands.add_parser(
        name, help=about, description=about[0].upper() + about[1:] + ".", allow_abbrev=False
    )
    return made


def _command(
    commands: Any, name: str, about: str, run: Callable[[argparse.Namespace], int], folder: str
) -> argparse.ArgumentParser:
    """The parser of a command on a folder."""
    made = _parser(commands, name, about)
    made.add_argument("folder", type=Path, metavar=folder)
    made.set_defaults(run=run)
    return made


def _add_node(commands: Any) -> None:
    node = _parser(commands, "node", "run one member of a network that has no server")
    what = node.add_subparsers(dest="what", required=True, metavar="WHAT")

    init = _command(
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

    reveal = _command(
        what, "reveal", "reveal this member's share of the beacon for a setup file", _reveal, "DIR"
    )
    reveal.add_argument("setup", type=Path, metavar="SETUP.toml")
    reveal.add_argument("out", type=Path, metavar="OUT.toml")

    join = _command(what, "join", "make the node a member of a network, once", _join, "DIR")
    join.add_argument("network", type=Path, metavar="BUNDLE", help="or the network's folder")

    check = _command(
        what, "check", "try everything the node needs, and say what is wrong", _check, "DIR"
    )
    check.add_argument("--json", action="store_true", help="print one JSON document")

    run = _command(what, "run", "run the node until SIGTERM or Ctrl-C", _run, "DIR")
    run.add_argument("--until", type=_positive, metavar="ROUND", help="take part up to this round")
    run.add_argument(
        "--join",
        type=Path,
        metavar="BUNDLE",
        help="join with this bundle first, if the node belongs to no network yet",
    )

    status = _command(what, "status", "show how the running node is doing", _status, "DIR")
    status.add_argument("--json", action="store_true", help="print one JSON document")

    verify = _command(
        what, "verify", "verify the whole chain of certificates, offline", _verify, "DIR"
    )
    verify.add_argument(
        "--full", action="store_true", help="also execute again every round that is still kept"
    )

    export = _command(
        what, "export", "write the model of a round as a safetensors file", _export, "DIR"
    )
    export.add_argument("--round", type=int, metavar="R", help="default: the newest")
    export.add_argument("out", type=Path, metavar="MODEL.safetensors")


def _add_network(commands: Any) -> None:
    network = _parser(commands, "network", "create a network from its members' public parts")
    what = network.add_subparsers(dest="what", required=True, metavar="WHAT")
    create = _command(
        what,
        "create",
        "make a genesis file from the members' files, and sign their certificates",
        _create,
        "NETWORK_DIR",
    )
    create.add_argument(
        "--members", nargs="+", type=Path, metavar="MEMBER", help="member.toml files or folders"
    )
    create.add_argument("--name", default="holdout", help="the network's name")
    create.add_argument(
        "--byzantine",
        metavar="F",
        help="how many members may lie, a share or a number (default: (n-1)/3)",
    )
    _add_parameters(create)
    create.add_argument("--model", default="mlp", help="mlp, lenet5 or package.module:factory")
    create.add_argument(
        "--weights",
        type=Path,
        metavar="W1.safetensors",
        help="the first weights (default: drawn from the seed)",
    )
    create.add_argument("--shape", metavar="A,B,C", help="shape of one sample; must be given")
    create.add_argument("--classes", type=int, default=10, help="how many classes the data has")
    create.add_argument("--description", default="", help="what data members hold, in words")
    create.add_argument("--seed", type=int, default=0, help="draws the first weights")
    create.add_argument(
        "--fewer-than-four",
        action="store_true",
        help="allow a network in which no member may lie or be away",
    )
    beacon = create.add_mutually_exclusive_group()
    beacon.add_argument(
        "--beacon",
        metavar="HEX",
        help="32 public random bytes whose source was announced in advance; or `draw`: the creator"
        " draws them, and is trusted not to choose",
    )
    beacon.add_argument(
        "--reveals", nargs="+", type=Path, metavar="SHARE", help="every member's revealed share"
    )

    bundle = _command(
        what,
        "bundle",
        "write what each member needs to join into one file, without any secret",
        _bundle,
        "NETWORK_DIR",
    )
    bundle.add_argument("members", nargs="*", metavar="MEMBER", help="default: all members")
    bundle.add_argument("--out", type=Path, metavar="DIR", help="default: NETWORK_DIR/bundles")

    certify = _command(
        what,
        "certify",
        "sign members' certificates again, before they expire",
        _certify,
        "NETWORK_DIR",
    )
    certify.add_argument("members", nargs="+", type=Path, metavar="MEMBER")


def _add_parameters(create: argparse.ArgumentParser) -> None:
    sizes = create.add_argument_group(
        "parameters", "whatever is not given follows from the numbers of members and liars"
    )
    sizes.add_argument(
        "--parameters", type=Path, metavar="FILE.toml", help="a table [parameters], as in a genesis"
    )
    sizes.add_argument("--learning-rate", type=float, metavar="ETA", help="default: 0.1")
    sizes.add_argument("--proposers", type=int, metavar="N", help="expected in a round (tau_P)")
    sizes.add_argument("--voters", type=int, metavar="N", help="expected in a round (tau_V)")
    sizes.add_argument("--leaders", type=int, metavar="N", help="expected in a period (tau_L)")
    sizes.add_argument(
        "--ballots-min",
        type=int,
        metavar="N",
        help="a block with fewer ballots makes no step (M_min)",
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
        "--rounds", type=_positive, default=1000, metavar="T", help="how many rounds to plan for"
    )


def _add_localnet(commands: Any) -> None:
    local = _parser(commands, "localnet", "run a whole network as processes on this machine")
    local.add_argument("--nodes", type=_positive, default=7, help="how many nodes (default: 7)")
    local.add_argument(
        "--byzantine", default="0", help="how many nodes lie, a share or a number (default: 0)"
    )
    local.add_argument("--rounds", type=_positive, default=20, help="default: 20")
    local.add_argument("--out", type=Path, metavar="DIR", help="default: runs/localnet, -2, ...")
    local.add_argument(
        "--lies",
        default="coalition,equivocate",
        help="coalition, equivocate, withhold, garbage, replay, impersonate, flood, silent",
    )
    local.add_argument("--attack", default="sign-flip", help="the attack that liars propose")
    local.add_argument("--seed", type=int, default=0, help="draws data shards and first weights")
    local.add_argument(
        "--delay",
        type=_positive,
        default=300,
        metavar="MS",
        help="how long a message takes at most (default: 300)",
    )
    local.add_argument("--seconds-max", type=_positive, metavar="S", help="give up after S seconds")
    local.add_argument(
        "--full",
        action="store_true",
        help="keep everything, and execute all rounds again at the end",
    )
    local.set_defaults(run=_localnet)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError
    return value


_positive.__name__ = "number from 1 on"  # What argparse calls it in its error message.


@contextlib.contextmanager
def _writing() -> Iterator[None]:
    """Turn a file or folder that cannot be read or written into a UserError."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{error.filename or 'a file'}: {error.strerror or error}") from None


# -- what the commands do -------------------------------------------------------------------------


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _init(options: argparse.Namespace) -> int:
    from holdout.node.membership.members import MEMBER, init_node
    from holdout.node.membership.settings import DEMO_WORKER

    with _writing():
        init_node(
            options.folder,
            name=options.name,
            address=options.address,
            listen=options.listen,
            make_worker=options.worker or DEMO_WORKER,
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
    from holdout.node.runtime.folder import join

    with _writing():
        network = join(options.folder, options.network)
    _say(f"joined {network.name}, {network.identity}")
    return 0


def _check(options: argparse.Namespace) -> int:
    from holdout.node.runtime.check import check_node

    found = check_node(options.folder)
    if options.json:
        _say(json.dumps([item.as_dict() for item in found], indent=2))
    else:
        _say("\n".join(f"{item.outcome:6}{item.what:13}{item.said}" for item in found))
    return EXIT_FAILURE if any(item.is_wrong for item in found) else 0


def _run(options: argparse.Namespace) -> int:
    from holdout.node.runtime.folder import has_joined, join
    from holdout.node.runtime.node import run_node

    if options.join is not None and not has_joined(options.folder):
        with _writing():
            network = join(options.folder, options.join)
        sys.stderr.write(f"holdout: joined {network.name}, {network.identity}\n")
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
    from holdout.node.storage.audit import audit, opened

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
    from holdout.node.storage.audit import export

    with _writing():
        digest = export(options.folder, options.round, options.out)
    _say(f"{options.out}: model {digest.hex()}")
    return 0


def _create(options: argparse.Namespace) -> int:
    from holdout.node.membership.network_creation import create

    with _writing():
        said, notes = create(
            options.folder,
            members=options.members or (),
            name=options.name,
            parameters=_given_parameters(options),
            parameters_file=options.parameters,
            rounds=options.rounds,
            model=options.model,
            weights=options.weights,
            shape=options.shape,
            classes=options.classes,
            description=options.description,
            seed=options.seed,
            beacon=options.beacon,
            reveals=options.reveals or (),
            few=options.fewer_than_four,
        )
    for note in notes:
        sys.stderr.write(f"holdout: {note}\n")
    _say(said)
    return 0


def _given_parameters(options: argparse.Namespace) -> dict[str, Any]:
    """The parameters that have an option, and were given."""
    named = {name: getattr(options, name) for name in PARAMETERS}
    given = {name: value for name, value in named.items() if value is not None}
    if options.learning_rate is not None:
        given["learning_rates"] = [options.learning_rate]
    return given


def _bundle(options: argparse.Namespace) -> int:
    from holdout.node.membership.bundles import write_bundles

    with _writing():
        written = write_bundles(options.folder, options.members, options.out)
    for path in written:
        _say(f"made {path}; its member runs `holdout node run DIR --join {path.name}`")
    return 0


def _certify(options: argparse.Namespace) -> int:
    from holdout.node.membership.network_creation import certify

    with _writing():
        signed = certify(options.folder, options.members)
    for path in signed:
        _say(f"signed {path}; the member puts it at keys/tls.crt in its folder")
    return 0


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
    )
    try:
        line = run(plan)
    except UserError:
        with contextlib.suppress(OSError):
            plan.folder.rmdir()  # If nothing was made in it.
        raise
    except LocalnetFailed as error:
        sys.stderr.write(f"holdout: the network failed: {error}{os.linesep}")
        return EXIT_FAILURE
    _say(line)
    return 0
