"""Creating a network, from the members' public parts to the genesis file.

holdout network create --members ...   setup.toml, the first model, a certificate for each member
holdout network create --reveals ...   genesis.toml, once all shares of the beacon are revealed

With a beacon from outside, both happen in one step.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from holdout.errors import UserError
from holdout.node.membership.genesis import (
    GENESIS,
    SETUP,
    DataDescription,
    Member,
    ModelDescription,
    Network,
    Parameters,
)
from holdout.node.membership.identity import Authority
from holdout.node.membership.members import MEMBER, read_member, read_share_file
from holdout.node.membership.model_files import (
    MODEL,
    describe_model,
    first_model,
    read_tensors,
    save_model,
)
from holdout.node.membership.network_parameters import notes_on, plan_parameters, read_parameters
from holdout.results import write_atomic

BEACON_BYTES = 32
AUTHORITY_FOLDER, CERTIFICATES = "authority", "certificates"


def create(
    folder: Path,
    *,
    members: Sequence[Path],
    name: str,
    parameters: Mapping[str, Any],
    parameters_file: Path | None,
    rounds: int,
    model: str,
    weights: Path | None,
    shape: str,
    classes: int,
    description: str,
    seed: int,
    beacon: str | None,
    reveals: Sequence[Path],
) -> tuple[str, list[str]]:
    """Create a network, or finish one; what to tell the user, and what to warn of.

    Args:
        folder: Where the network's files are written.
        members: Files or folders of all members; none: finish the network that is set up here.
        name: The network's name.
        parameters: Values for some of the `Parameters`; they override those of the file.
        parameters_file: A file with a table [parameters].
        rounds: How many rounds the sizes are planned for.
        model: A built-in model, or a custom one as "package.module:factory".
        weights: A file with the first weights; None: they are drawn from the seed.
        shape: The shape of one sample, such as "1,28,28".
        classes: How many classes the data has.
        description: What data members hold.
        seed: Draws the first weights.
        beacon: Public random bytes in hexadecimal; None: it is made of shares.
        reveals: Files with all members' shares of the beacon.
    """
    public = None if beacon is None else _beacon(beacon)
    notes: list[str] = []
    if members:
        gathered = gather(members)
        given = {} if parameters_file is None else read_parameters(parameters_file)
        planned = plan_parameters(len(gathered), {**given, **parameters}, rounds)
        sides = _shape(shape)
        if classes < 1:
            raise UserError(f"there must be at least one class; got {classes}")
        network = draft_network(
            folder,
            gathered,
            name=name,
            parameters=planned,
            model=first_model(model, sides, classes, seed)
            if weights is None
            else describe_model(model, read_tensors(weights)),
            data=DataDescription(description=description, shape=list(sides), classes=classes),
        )
        notes = [f"not guaranteed: {note}" for note in notes_on(network.params, rounds)]
    elif not (folder / SETUP).exists():
        raise UserError("a new network needs --members")
    elif parameters_file is not None or parameters:
        raise UserError(f"{folder / SETUP} exists: the parameters are chosen with --members, once")
    if public is None and not reveals:
        return (
            f"made {folder / SETUP}. Members look at it and reveal their shares of the beacon"
            f" (`holdout node reveal DIR {folder / SETUP} SHARE.toml`); then run"
            f" `holdout network create {folder} --reveals SHARE.toml ...`"
        ), notes
    network = finish_network(folder, reveals=reveals, beacon=public)
    return (
        f"network {network.name}, {len(network.members)} members, of which"
        f" {network.params.byzantine} may lie: {network.identity}. Members join with"
        f" `holdout node join DIR {folder}`"
    ), notes


def _beacon(text: str) -> bytes:
    try:
        beacon = bytes.fromhex(text)
    except ValueError:
        beacon = b""
    if len(beacon) != BEACON_BYTES:
        raise UserError(f"a beacon is {2 * BEACON_BYTES} hexadecimal digits; got {text!r}")
    return beacon


def _shape(text: str) -> tuple[int, ...]:
    try:
        shape = tuple(int(side) for side in text.split(","))
    except ValueError:
        shape = ()
    if not shape or min(shape) < 1:
        raise UserError(f"a shape is comma-separated whole numbers, each at least 1; got {text!r}")
    return shape


def gather(paths: Sequence[Path]) -> list[tuple[Member, bytes]]:
    """All members' public parts and certificate requests, ordered by name."""
    found = [read_member(path / MEMBER if path.is_dir() else path) for path in paths]
    found.sort(key=lambda item: item[0].name)
    names = [member.name for member, _ in found]
    if len(set(names)) < len(names):
        raise UserError(f"two members have the same name: {', '.join(names)}")
    return found


def draft_network(
    out: Path,
    members: Sequence[tuple[Member, bytes]],
    *,
    name: str,
    parameters: Parameters,
    model: tuple[ModelDescription, bytes],
    data: DataDescription,
) -> Network:
    """Write the network without its beacon, all members' certificates and the first model."""
    if any((out / file).exists() for file in (GENESIS, SETUP)):
        raise UserError(f"{out} holds a network already")
    draft = Network.draft(
        name=name,
        members=[member for member, _ in members],
        parameters=parameters,
        model=model[0],
        data=data,
    )
    _ = draft.params  # Refuse what could never agree, before anything is made.
    out.mkdir(parents=True, exist_ok=True)
    authority = Authority.create(out / AUTHORITY_FOLDER, name)
    network = draft.with_authority(authority.certificate)
    (out / CERTIFICATES).mkdir(exist_ok=True)
    for member, request in members:
        _write_certificate(out, authority, member.name, request)
    save_model(out / MODEL, model[0], model[1], {"holdout": "w_1"})
    network.write(out / SETUP)
    return network


def finish_network(
    out: Path, *, reveals: Sequence[Path] = (), beacon: bytes | None = None
) -> Network:
    """Write the genesis file, with a given beacon or one made of everybody's share."""
    draft = Network.read(out / SETUP)
    if (out / GENESIS).exists():
        raise UserError(f"{out / GENESIS} exists already")
    if beacon is not None:
        network = draft.with_beacon(beacon)
    else:
        network = draft.with_shares(dict(read_share_file(path, draft) for path in reveals))
    network.write(out / GENESIS)
    return Network.read(out / GENESIS)


def certify(out: Path, paths: Sequence[Path]) -> list[Path]:
    """Sign new certificates for members of an existing network, say before the old ones expire."""
    network = Network.read(out / GENESIS)
    authority = Authority.read(out / AUTHORITY_FOLDER)
    written = []
    for member, request in gather(paths):
        if network.members[network.index(member.name)].keys != member.keys:
            raise UserError(f"the network {network.name} knows {member.name} by other keys")
        written.append(_write_certificate(out, authority, member.name, request))
    return written


def _write_certificate(out: Path, authority: Authority, name: str, request: bytes) -> Path:
    path = out / CERTIFICATES / f"{name}.crt"
    write_atomic(path, authority.issue(request, name))
    return path
