"""A node's folder: joined to a network once, read and checked at every start.

node.toml                        what the member decides for itself
keys/                            its secrets and certificates
genesis.toml, model.safetensors  the network and its first model
store/                           what must outlive a crash
status.sock                      while the node runs
"""

import shutil
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from holdout.agreement.params import Genesis
from holdout.errors import AuditError, UserError
from holdout.node.membership.bundles import network_files
from holdout.node.membership.genesis import GENESIS, Network, network_of
from holdout.node.membership.identity import (
    AUTHORITY,
    CERTIFICATE,
    Identity,
    certificate_end,
    certificate_fault,
    read_identity,
)
from holdout.node.membership.members import KEYS, check_keys
from holdout.node.membership.model_files import MODEL, load_model
from holdout.node.membership.network_creation import CERTIFICATES
from holdout.node.membership.seam import PREDECESSOR, check_seam, read_predecessor
from holdout.node.membership.settings import NodeSettings, read_settings
from holdout.node.storage.folder_lock import locked
from holdout.node.storage.store import FOLDER, Store
from holdout.results import write_atomic


@dataclass(frozen=True, slots=True)
class Folder:
    """A node's folder, read and checked; the store is opened elsewhere."""

    path: Path
    settings: NodeSettings
    identity: Identity
    network: Network
    worker: int
    """This member's place in the roster."""
    model: bytes
    """The first model, as canonical bytes."""
    expires: datetime
    """When the node's certificate ends: from then on nobody talks to it."""

    @property
    def genesis(self) -> Genesis:
        """The network, as the agreement core knows it."""
        return self.network.genesis


def join(folder: Path, source: Path) -> Network:
    """Make the node a member: copy genesis file, certificate and first model, create its store.

    Args:
        folder: The node's folder.
        source: The network's folder, or the member's bundle.
    """
    name = read_settings(folder).node.name
    identity = read_identity(folder / KEYS)
    with network_files(source, name) as network_folder:
        return _join(folder, network_folder, name, identity)


def has_joined(folder: Path) -> bool:
    """Whether the node is a member of a network already."""
    return (folder / GENESIS).exists()


def _join(folder: Path, network_folder: Path, name: str, identity: Identity) -> Network:
    network = Network.read(network_folder / GENESIS)
    check_keys(network, name, identity)
    model = load_model(network_folder / MODEL, network.file.model)
    old = _check_predecessor(network_folder, network)
    certificate, authority = _read_certificate(
        network_folder / CERTIFICATES / f"{name}.crt", network, name
    )
    with locked(folder):
        if has_joined(folder):
            known = Network.read(folder / GENESIS).identity
            again = "this network" if known == network.identity else "another network"
            # A second store would pass for a first start, and the node would forget its votes.
            raise UserError(
                f"{folder} has joined {again} before; a store is made once. If it is lost, start"
                " the node anyway: it watches until it is safe to vote"
            )
        Store.create(folder / FOLDER, network.genesis, model)
        write_atomic(folder / KEYS / CERTIFICATE, certificate)
        write_atomic(folder / KEYS / AUTHORITY, authority)
        shutil.copyfile(network_folder / MODEL, folder / MODEL)
        if old is not None:
            shutil.copyfile(network_folder / PREDECESSOR, folder / PREDECESSOR)
        # Last: a node with a genesis file has a store.
        shutil.copyfile(network_folder / GENESIS, folder / GENESIS)
    return network


def _check_predecessor(network_folder: Path, network: Network) -> Network | None:
    """The network before, if there is one: a member joins only what it really ended with."""
    try:
        old = read_predecessor(network_folder, network)
        if old is not None:
            check_seam(network, old)
    except AuditError as error:
        raise UserError(str(error)) from None
    return old


def read_folder(path: Path) -> Folder:
    """Read everything but the store; a UserError says what is missing or does not fit."""
    settings = read_settings(path)
    identity = read_identity(path / KEYS)
    network = network_of(path)
    name = settings.node.name
    check_keys(network, name, identity)
    strangers = sorted(set(settings.peers) - {member.name for member in network.members})
    if strangers:
        raise UserError(f"node.toml, [peers]: not members of the network: {', '.join(strangers)}")
    certificate, authority = _read_certificate(path / KEYS / CERTIFICATE, network, name)
    return Folder(
        path,
        settings,
        identity,
        network,
        network.index(name),
        load_model(path / MODEL, network.file.model),
        certificate_end(certificate, authority),
    )


def _read_certificate(path: Path, network: Network, name: str) -> tuple[bytes, bytes]:
    """A member's certificate and its authority's, checked."""
    authority = network.file.authority.certificate.encode("ascii")
    try:
        certificate = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    fault = certificate_fault(certificate, authority, name)
    if fault is not None:
        raise UserError(f"{path}: {fault}")
    return certificate, authority
