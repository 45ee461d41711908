"""Becoming a member: keys, the public part, joining a network; and creating one.

holdout node init       keys, certificate request, node.toml, member.toml
holdout network create  the members' public parts -> setup.toml (or at once genesis.toml),
                        certificates for all, the first model
holdout node reveal     each member's share of the beacon, once setup.toml is fixed
holdout network create --reveals ...     genesis.toml
holdout node join       the genesis file, the certificate, and the store, made once
"""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holdout import dotted
from holdout.errors import UserError
from holdout.node.membership.genesis import (
    ADDRESS,
    GENESIS,
    SETUP,
    DataSection,
    Member,
    ModelSection,
    Network,
    Parameters,
)
from holdout.node.membership.identity import (
    AUTHORITY,
    CERTIFICATE,
    Authority,
    certificate_fault,
    create_identity,
    read_identity,
)
from holdout.node.membership.member_files import (
    member_of,
    read_member,
    read_share_file,
    write_member,
    write_share_file,
)
from holdout.node.runtime.settings import SETTINGS, read_settings, write_settings
from holdout.node.storage.model_files import MODEL, describe_model, load_model, save_model
from holdout.node.storage.store import FOLDER, Store, locked
from holdout.results import write_atomic

KEYS, MEMBER = "keys", "member.toml"
AUTHORITY_FOLDER, CERTIFICATES = "authority", "certificates"


def init_node(
    folder: Path,
    *,
    name: str,
    address: str,
    listen: str | None = None,
    make_worker: str = "holdout.node.localnet.demo_worker:make_worker",
    more: str = "",
) -> Member:
    """A new member's folder."""
    if (folder / KEYS).exists() or (folder / SETTINGS).exists():
        raise UserError(f"{folder} is a node already; its keys are never made anew")
    for given in (address, listen or address):
        if not ADDRESS.fullmatch(given):
            raise UserError(f"an address is HOST:PORT; got {given!r}")
    dotted.split(make_worker)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    identity = create_identity(folder / KEYS, name)
    member = member_of(identity, name=name, address=address)
    write_settings(folder, name=name, listen=listen or address, make_worker=make_worker, more=more)
    read_settings(folder)
    write_member(folder / MEMBER, identity, member)
    return member


def gather(paths: Sequence[Path]) -> list[tuple[Member, bytes]]:
    """The public parts of all members, from their files or folders, in the order of names."""
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
    model: tuple[ModelSection, bytes],
    data: DataSection,
) -> Network:
    """The network without its beacon; certificates for all members; the first model."""
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
        certificate = authority.issue(request, member.name)
        write_atomic(out / CERTIFICATES / f"{member.name}.crt", certificate)
    save_model(out / MODEL, model[0], model[1], {"holdout": "w_1"})
    network.write(out / SETUP)
    return network


def finish_network(
    out: Path, *, reveals: Sequence[Path] | None = None, beacon: bytes | None = None
) -> Network:
    """The genesis file, from the setup and either a given beacon or everybody's share of it."""
    draft = Network.read(out / SETUP)
    if (out / GENESIS).exists():
        raise UserError(f"{out / GENESIS} exists already")
    if beacon is not None:
        network = draft.with_beacon(beacon)
    else:
        network = draft.with_shares(dict(read_share_file(path, draft) for path in reveals or ()))
    network.write(out / GENESIS)
    return Network.read(out / GENESIS)


def certify(out: Path, paths: Sequence[Path]) -> list[Path]:
    """New certificates for members of a network that exists, say because the old ones expire."""
    network = Network.read(out / GENESIS)
    authority = Authority.read(out / AUTHORITY_FOLDER)
    written = []
    for member, request in gather(paths):
        if network.members[network.index(member.name)].keys != member.keys:
            raise UserError(f"the network {network.name} knows {member.name} by other keys")
        written.append(out / CERTIFICATES / f"{member.name}.crt")
        write_atomic(written[-1], authority.issue(request, member.name))
    return written


def reveal(folder: Path, setup: Path, out: Path) -> None:
    """This member's share of the beacon, for the network that the setup file describes."""
    settings = read_settings(folder)
    write_share_file(out, Network.read(setup), settings.node.name, read_identity(folder / KEYS))


def join(folder: Path, network_folder: Path) -> Network:
    """Make the node a member: genesis file, certificate, first model, and its store, once."""
    settings = read_settings(folder)
    identity = read_identity(folder / KEYS)
    network = Network.read(network_folder / GENESIS)
    name = settings.node.name
    if network.members[network.index(name)].keys != identity.signer.public:
        raise UserError(f"the network {network.name} knows {name} by other keys than these")
    model = load_model(network_folder / MODEL, network.file.model)
    certificate = network_folder / CERTIFICATES / f"{name}.crt"
    authority = network.file.authority.certificate.encode("ascii")
    try:
        content = certificate.read_bytes()
    except OSError as error:
        raise UserError(f"{certificate} cannot be read: {error.strerror}") from None
    fault = certificate_fault(content, authority, name)
    if fault is not None:
        raise UserError(f"{certificate}: {fault}")
    with locked(folder):
        if (folder / GENESIS).exists():
            known = Network.read(folder / GENESIS).identity
            again = "this network" if known == network.identity else "another network"
            # A second registration would pass for a first start, and forget votes.
            raise UserError(
                f"{folder} has joined {again} before; a store is made once. If it is lost, start"
                " the node all the same: it watches until it is safe to vote"
            )
        Store.create(folder / FOLDER, network.genesis, model)
        write_atomic(folder / KEYS / CERTIFICATE, content)
        write_atomic(folder / KEYS / AUTHORITY, authority)
        shutil.copyfile(network_folder / MODEL, folder / MODEL)
        # Last: a node with a genesis file has a store.
        shutil.copyfile(network_folder / GENESIS, folder / GENESIS)
    return network


def first_model(
    name: str, shape: tuple[int, ...], classes: int, seed: int
) -> tuple[ModelSection, bytes]:
    """A model of `holdout.learning.models` (or own code) with fresh weights, for the genesis."""
    from holdout.dotted import resolve
    from holdout.learning.models import MODELS, build
    from holdout.seeds import stream

    factory: Any = MODELS[name] if name in MODELS else resolve(name)
    module = build(factory, shape, classes, seed=stream(seed, "weights").generator_seed())
    tensors = {key: p.detach().numpy() for key, p in module.named_parameters()}
    return describe_model(name, tensors)
