"""The commands `holdout network ...`: whoever creates a network and signs its certificates."""

import argparse
import sys
from pathlib import Path
from typing import Any

from holdout.node.commands.parsing import folder_command, make_parser, positive, say, writing

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


def add_network(commands: Any) -> None:
    """Add `holdout network` and what it does."""
    network = make_parser(commands, "network", "create a network from its members' public parts")
    what = network.add_subparsers(dest="what", required=True, metavar="WHAT")
    create = folder_command(
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

    _add_succeed(what)

    bundle = folder_command(
        what,
        "bundle",
        "write what each member needs to join into one file, without any secret",
        _bundle,
        "NETWORK_DIR",
    )
    bundle.add_argument("members", nargs="*", metavar="MEMBER", help="default: all members")
    bundle.add_argument("--out", type=Path, metavar="DIR", help="default: NETWORK_DIR/bundles")

    certify = folder_command(
        what,
        "certify",
        "sign members' certificates again, before they expire",
        _certify,
        "NETWORK_DIR",
    )
    certify.add_argument("members", nargs="+", type=Path, metavar="MEMBER")


def _add_succeed(what: Any) -> None:
    after = folder_command(
        what,
        "succeed",
        "make a network that goes on where another ended, with other members or parameters",
        _succeed,
        "OLD_NODE_DIR",
    )
    after.add_argument(
        "--members",
        nargs="+",
        type=Path,
        required=True,
        metavar="MEMBER",
        help="all, also old ones",
    )
    after.add_argument("--out", type=Path, required=True, metavar="NETWORK_DIR")
    after.add_argument("--name", help="default: the old one's")
    after.add_argument("--byzantine", metavar="F", help="how many members may lie")
    after.add_argument("--beacon", metavar="HEX", help="as with `network create`")
    after.add_argument("--fewer-than-four", action="store_true", help="as with `network create`")
    _add_parameters(after)


def _succeed(options: argparse.Namespace) -> int:
    from holdout.node.membership.network_creation import read_parameters
    from holdout.node.storage.succession import succeed

    with writing():
        given = {} if options.parameters is None else read_parameters(options.parameters)
        network, notes = succeed(
            options.folder,
            options.out,
            members=options.members,
            name=options.name,
            parameters={**given, **_given_parameters(options)},
            beacon=options.beacon,
            few=options.fewer_than_four,
        )
    for note in notes:
        sys.stderr.write(f"holdout: {note}\n")
    end = network.file.predecessor
    said = "" if end is None else f" goes on after round {end.round} of {end.network}"
    say(
        f"{network.name}{said}. "
        + (
            f"`holdout network bundle {options.out}` writes each member's bundle"
            if options.beacon is not None
            else f"Members reveal their shares of {options.out}/setup.toml, as with a new network"
        )
    )
    return 0


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
        "--rounds", type=positive, default=1000, metavar="T", help="how many rounds to plan for"
    )


def _create(options: argparse.Namespace) -> int:
    from holdout.node.membership.network_creation import create

    with writing():
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
    say(said)
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

    with writing():
        written = write_bundles(options.folder, options.members, options.out)
    for path in written:
        say(f"made {path}; its member runs `holdout node run DIR --join {path.name}`")
    return 0


def _certify(options: argparse.Namespace) -> int:
    from holdout.node.membership.network_creation import certify

    with writing():
        signed = certify(options.folder, options.members)
    for path in signed:
        say(f"signed {path}; the member puts it at keys/tls.crt in its folder")
    return 0
