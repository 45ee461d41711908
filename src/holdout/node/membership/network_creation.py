"""`holdout network create`, in one step with a given beacon, in two with shares of all members."""

import argparse
from typing import Any

from holdout.errors import UserError
from holdout.node.membership.genesis import SETUP, DataSection, ModelSection, Network
from holdout.node.membership.members import (
    draft_network,
    finish_network,
    first_model,
    gather,
)
from holdout.node.membership.network_parameters import notes_on, plan_parameters, read_parameters
from holdout.node.storage.model_files import describe_model, read_tensors

BEACON_BYTES = 32
SIZES = (
    "byzantine",
    "proposers",
    "voters",
    "leaders",
    "ballots_min",
    "byzantine_voters_max",
    "mode",
    "role_draw",
)
"""Options that stand for the parameters of these names."""


def create(options: argparse.Namespace) -> tuple[str, list[str]]:
    """Do what the options say; what to tell the user, and of what to warn."""
    folder = options.folder
    beacon = None if options.beacon is None else _beacon(options.beacon)
    notes: list[str] = []
    if options.members:
        network = _draft(options)
        notes = [f"not guaranteed: {note}" for note in notes_on(network.params, options.rounds)]
    elif not (folder / SETUP).exists():
        raise UserError("a new network needs --members")
    elif options.parameters is not None or _given(options):
        raise UserError(f"{folder / SETUP} exists: the parameters are chosen with --members, once")
    return _finish(options, beacon), notes


def _finish(options: argparse.Namespace, beacon: bytes | None) -> str:
    folder = options.folder
    if beacon is None and not options.reveals:
        return (
            f"made {folder / SETUP}. Members look at it and reveal their shares of the beacon"
            f" (`holdout node reveal DIR {folder / SETUP} SHARE.toml`); then run"
            f" `holdout network create {folder} --reveals SHARE.toml ...`"
        )
    network = finish_network(folder, reveals=options.reveals, beacon=beacon)
    return (
        f"network {network.name}, {len(network.members)} members, of which"
        f" {network.params.byzantine} may lie: {network.identity}. Members join with"
        f" `holdout node join DIR {folder}`"
    )


def _beacon(text: str) -> bytes:
    try:
        beacon = bytes.fromhex(text)
    except ValueError:
        beacon = b""
    if len(beacon) != BEACON_BYTES:
        raise UserError(f"a beacon is {2 * BEACON_BYTES} hexadecimal digits; got {text!r}")
    return beacon


def _given(options: argparse.Namespace) -> dict[str, Any]:
    """The parameters that options name."""
    named = {name: getattr(options, name) for name in SIZES}
    given = {name: value for name, value in named.items() if value is not None}
    if options.learning_rate is not None:
        given["learning_rates"] = [options.learning_rate]
    return given


def _draft(options: argparse.Namespace) -> Network:
    members = gather(options.members)
    given = {} if options.parameters is None else read_parameters(options.parameters)
    parameters = plan_parameters(len(members), {**given, **_given(options)}, options.rounds)
    try:
        shape = tuple(int(side) for side in options.shape.split(","))
    except ValueError:
        shape = ()
    if not shape or min(shape) < 1:
        raise UserError(f"a shape is whole numbers from 1 on, with commas; got {options.shape!r}")
    if options.classes < 1:
        raise UserError(f"there must be a class at least; got {options.classes}")
    model: tuple[ModelSection, bytes]
    if options.weights is not None:
        model = describe_model(options.model, read_tensors(options.weights))
    else:
        model = first_model(options.model, shape, options.classes, options.seed)
    return draft_network(
        options.folder,
        members,
        name=options.name,
        parameters=parameters,
        model=model,
        data=DataSection(
            description=options.description, shape=list(shape), classes=options.classes
        ),
    )
