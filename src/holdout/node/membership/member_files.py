"""What members hand to each other before there is a network: who they are, and their shares."""

from hashlib import sha256
from pathlib import Path

import tomli_w

from holdout.agreement.codec import blob, text
from holdout.agreement.ed25519 import Ed25519Verifier
from holdout.config import Section
from holdout.errors import UserError
from holdout.node.membership.genesis import (
    Hex32,
    Member,
    MemberName,
    Network,
    read_section,
    sorted_keys,
)
from holdout.node.membership.identity import Identity, commitment, read_request
from holdout.results import to_json, write_atomic


def member_of(identity: Identity, *, name: str, address: str) -> Member:
    """A member's public part."""
    keys = identity.signer.public
    return Member(
        name=name,
        address=address,
        signing=keys.signing.hex(),
        vrf=keys.vrf.hex(),
        commitment=commitment(identity.share).hex(),
    )


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
    """The file that a member hands to whoever creates the network; signed by itself."""
    values = {
        "member": member.model_dump(mode="json", exclude_none=True),
        "request": identity.request.decode("ascii"),
        "proof": identity.signer.sign(_claim(member, identity.request)).hex(),
    }
    write_atomic(path, tomli_w.dumps(values, multiline_strings=True).encode())


def read_member(path: Path) -> tuple[Member, bytes]:
    """A member's public part and its certificate request, both proven to be its own."""
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


class _ShareFile(Section):
    setup: Hex32
    name: MemberName
    share: Hex32


def write_share_file(path: Path, network: Network, name: str, identity: Identity) -> None:
    """Reveal this member's share of the beacon, for this network alone."""
    member = network.members[network.index(name)]
    if member.keys != identity.signer.public:
        raise UserError(f"the network {network.name} knows {name} by other keys than these")
    values = {"setup": network.setup.hex(), "name": name, "share": identity.share.hex()}
    write_atomic(path, tomli_w.dumps(values).encode())


def read_share_file(path: Path, network: Network) -> tuple[str, bytes]:
    """A member's name and its share, revealed for this network."""
    file = read_section(_ShareFile, path)
    if file.setup != network.setup.hex():
        raise UserError(f"{path} was revealed for another network, or another version of this one")
    return file.name, bytes.fromhex(file.share)
