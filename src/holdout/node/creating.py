"""`holdout network create`, in one step with a given beacon, in two with shares of all members."""

import argparse

from holdout.errors import UserError
from holdout.node.genesis import (
    SETUP,
    DataSection,
    ModelSection,
    usual_parameters,
)
from holdout.node.members import (
    draft_network,
    finish_network,
    first_model,
    gather,
)
from holdout.node.weights import describe_model, read_tensors

BEACON_BYTES = 32


def create(options: argparse.Namespace) -> str:
    """Do what the options say; what to tell the user."""
    folder = options.folder
    beacon = None if options.beacon is None else _beacon(options.beacon)
    if options.members:
        _draft(options)
    elif not (folder / SETUP).exists():
        raise UserError("a new network needs --members")
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


def _draft(options: argparse.Namespace) -> None:
    members = gather(options.members)
    n = len(members)
    byzantine = (n - 1) // 3 if options.byzantine is None else options.byzantine
    try:
        shape = tuple(int(side) for side in options.shape.split(","))
    except ValueError:
        raise UserError(f"a shape is whole numbers with commas; got {options.shape!r}") from None
    model: tuple[ModelSection, bytes]
    if options.weights is not None:
        model = describe_model(options.model, read_tensors(options.weights))
    else:
        model = first_model(options.model, shape, options.classes, options.seed)
    draft_network(
        options.folder,
        members,
        name=options.name,
        parameters=usual_parameters(n, byzantine, options.learning_rate),
        model=model,
        data=DataSection(
            description=options.description, shape=list(shape), classes=options.classes
        ),
    )
