"""A member's side of a new network: its folder, and the two files that it hands to the others.

member.toml   public keys, address and certificate request (`holdout node init`)
a share file  its share of the beacon, once the roster is closed (`holdout node reveal`)
"""

import re
from hashlib import sha256
from pathlib import Path

import tomli_w

from holdout import dotted
from holdout.agreement.codec import blob, text
from holdout.agreement.ed25519 import Ed25519Verifier
from holdout.config import Section
from holdout.errors import UserError
from holdout.node.membership.genesis import (
    ADDRESS,
    Hex32,
    Member,
    MemberName,
    Network,
    read_section,
    sorted_keys,
)
from holdout.node.membership.identity import (
    Identity,
    commitment,
    create_identity,
    read_identity,
    read_request,
)
from holdout.node.membership.settings import DEMO_WORKER, SETTINGS, read_settings, write_settings
from holdout.results import to_json, write_atomic

KEYS, MEMBER = "keys", "member.toml"


def init_node(
    folder: Path,
    *,
    name: str,
    address: str,
    listen: str | None = None,
    make_worker: str = DEMO_WORKER,
    like: Path | None = None,
) -> None:
    """Make a new member's folder: keys, certificate request, `node.toml` and `member.toml`.

    Args:
        folder: Where it is made.
        name: The member's name.
        address: Where others reach it.
        listen: Where it listens; None: at the address.
        make_worker: The function that makes its worker.
        like: A folder of the same member, whose `node.toml` is taken; keys are new. Where it
            listens is changed if `listen` says so, or if it listened at an address that it leaves.
    """
    if (folder / KEYS).exists() or (folder / SETTINGS).exists():
        raise UserError(f"{folder} is a node already; its keys are never replaced")
    for given in (address, listen or address):
        if not ADDRESS.fullmatch(given):
            raise UserError(f"an address is HOST:PORT, with a port from 1 to 65535; got {given!r}")
    dotted.split(make_worker)
    if like is not None and read_settings(like).node.name != name:
        raise UserError(f"{like} is the folder of another member than {name}")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    identity = create_identity(folder / KEYS, name)
    write_settings(folder, name=name, listen=listen or address, make_worker=make_worker)
    if like is not None:
        listen = listen or _new_listen(like, address)
        write_atomic(folder / SETTINGS, _settings_like(like, listen))
    read_settings(folder)
    write_member(folder / MEMBER, identity, _member(identity, name, address))


def _new_listen(like: Path, address: str) -> str:
    """Where the member of this folder listens once it is reached at another address."""
    listen = read_settings(like).node.listen
    if not (like / MEMBER).exists():
        return listen
    return address if listen == read_member(like / MEMBER)[0].address else listen


def _settings_like(like: Path, listen: str) -> bytes:
    """The `node.toml` of a folder, but for where the node listens."""
    settings, old = (like / SETTINGS).read_text("utf-8"), read_settings(like).node.listen
    if listen == old:
        return settings.encode()
    line = rf"(?m)^(\s*listen\s*=\s*)([\"']){re.escape(old)}\2"
    settings, count = re.subn(line, lambda found: f'{found[1]}"{listen}"', settings, count=1)
    if not count:
        raise UserError(f"listen in {like / SETTINGS} is not one line, so it cannot be changed")
    return settings.encode()


def _member(identity: Identity, name: str, address: str) -> Member:
    keys = identity.signer.public
    return Member(
        name=name,
        address=address,
        signing=keys.signing.hex(),
        vrf=keys.vrf.hex(),
        commitment=commitment(identity.share).hex(),
    )


# -- member.toml ----------------------------------------------------------------------------------


class _MemberFile(Section):
    member: Member
    request: str
    proof: str


def _claim(member: Member, request: bytes) -> bytes:
    return (
        text("member")
        + blob(to_json(sorted_keys(member.model_dump(mode="json"))).encode())
        + blob(sha256(request).digest())
    )


def write_member(path: Path, identity: Identity, member: Member) -> None:
    """Write the file for whoever creates the network, signed by the member."""
    values = {
        "member": member.model_dump(mode="json", exclude_none=True),
        "request": identity.request.decode("ascii"),
        "proof": identity.signer.sign(_claim(member, identity.request)).hex(),
    }
    write_atomic(path, tomli_w.dumps(values, multiline_strings=True).encode())


def read_member(path: Path) -> tuple[Member, bytes]:
    """A member's public part and its certificate request; its signature covers both."""
    file = read_section(_MemberFile, path)
    request = file.request.encode("ascii", errors="replace")
    try:
        proof = bytes.fromhex(file.proof)
    except ValueError:
        proof = b""
    key = bytes.fromhex(file.member.signing)
    if not Ed25519Verifier().signature(key, _claim(file.member, request), proof):
        raise UserError(f"{path} is not signed by the member that it names")
    read_request(request, file.member.name)
    return file.member, request


# -- shares of the beacon -------------------------------------------------------------------------


class _ShareFile(Section):
    setup: Hex32
    name: MemberName
    share: Hex32


def reveal(folder: Path, setup: Path, out: Path) -> None:
    """Write this member's share of the beacon, for the network of this setup file alone."""
    name = read_settings(folder).node.name
    network, identity = Network.read(setup), read_identity(folder / KEYS)
    check_keys(network, name, identity)
    values = {"setup": network.setup.hex(), "name": name, "share": identity.share.hex()}
    write_atomic(out, tomli_w.dumps(values).encode())


def read_share_file(path: Path, network: Network) -> tuple[str, bytes]:
    """A member's name and its share, revealed for this network."""
    file = read_section(_ShareFile, path)
    if file.setup != network.setup.hex():
        raise UserError(f"{path} was revealed for another network, or another version of this one")
    return file.name, bytes.fromhex(file.share)


def check_keys(network: Network, name: str, identity: Identity) -> None:
    """Refuse keys that are not the ones under which the network knows this member."""
    if network.members[network.index(name)].keys != identity.signer.public:
        raise UserError(f"the network {network.name} knows {name} by other keys than these")
