"""The genesis file: what members agree on before the first round, and never change afterwards.

It holds the roster, the parameters, the digest of the first model (`model.safetensors`, which lies
beside it), a description of the data, and the beacon. The digest of all of it is the network's
identity and part of everything that is signed, so two members whose files differ at all do not
understand each other.

The beacon is random and unknown until the roster is closed, so that nobody can choose keys to suit
it. Either it comes from outside (a public random value whose time was announced before), or every
member commits to a share in advance and reveals it once the rest of the file is fixed.
"""

import re
import secrets
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
import tomli_w
from pydantic import Field, StringConstraints, ValidationError
from pydantic_core import ErrorDetails

from holdout.agreement.codec import blob, digest
from holdout.agreement.ed25519 import Ed25519Verifier
from holdout.agreement.keys import PublicKeys
from holdout.agreement.messages import WORKERS_MAX
from holdout.agreement.params import Genesis, Mode, Params, RoleDraw, TallyRule, quorum_of_all
from holdout.agreement.sizing import as_share
from holdout.agreement.sortition import LOOKBACK, REFRESH
from holdout.config import Section, Share, plain_message
from holdout.errors import UserError
from holdout.ids import Digest
from holdout.node.membership.identity import NAME, commitment
from holdout.results import to_json, write_atomic

GENESIS, SETUP = "genesis.toml", "setup.toml"
PORT = r"[1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5]"
NO_NETWORK = "belongs to no network yet; `holdout node join` makes it a member"
ADDRESS = re.compile(rf"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9.-]+):({PORT})")

S = TypeVar("S", bound=Section)
HEX32 = "^[0-9a-f]{64}$"
Hex32 = Annotated[str, StringConstraints(pattern=HEX32)]
Count = Annotated[int, Field(ge=0, le=1 << 31)]
Positive = Annotated[int, Field(ge=1, le=1 << 31)]
MemberName = Annotated[str, StringConstraints(pattern=f"^{NAME.pattern}$")]
Address = Annotated[str, StringConstraints(pattern=f"^{ADDRESS.pattern}$")]
_PATTERNS = {
    HEX32: "must be 64 hexadecimal digits",
    f"^{NAME.pattern}$": "must be up to 32 lower-case letters, digits and inner hyphens",
    f"^{ADDRESS.pattern}$": "must be HOST:PORT",
}
"""What to say of text that does not look as it should."""


class Member(Section):
    """A member's public part: what `holdout node init` makes and `network create` gathers."""

    name: MemberName
    address: Address
    """Where others reach it, HOST:PORT; a `node.toml` may say otherwise."""
    signing: Hex32
    vrf: Hex32
    commitment: Hex32
    """A hash of its share of the beacon."""
    share: Hex32 | None = None
    """The share itself, once revealed."""

    @property
    def keys(self) -> PublicKeys:
        """The member's public keys, for the roster."""
        return PublicKeys(bytes.fromhex(self.signing), bytes.fromhex(self.vrf))


class NetworkSection(Section):
    """The network's name and what makes it unique."""

    version: Literal[1] = 1
    """The version of the protocol."""
    name: MemberName
    nonce: Hex32
    """Fresh, so that votes of an earlier network with the same keys are worth nothing here."""
    beacon: Hex32 | None = None


class Parameters(Section):
    """The constants of `holdout.agreement.params.Params` that roster and model do not decide."""

    byzantine: Share
    """f, the assumed Byzantine share, or the number of Byzantine members."""
    proposers: Positive
    voters: Positive
    leaders: Positive
    ballots_min: Count
    byzantine_voters_max: Count
    learning_rates: Annotated[list[Annotated[float, Field(gt=0)]], Field(min_length=1)]
    """The learning rate of the first step, the second, ...; the last one stays."""
    mode: Literal["all", "shuffle", "self"] = "all"
    quorum: Positive | None = None
    """Derived if everybody is in the committee."""
    committee: Count = 0
    role_draw: Literal["self", "fixed"] = "self"
    inclusion_periods: Count = 1
    lookback: Positive = LOOKBACK
    refresh: Positive = REFRESH
    coordinate_max: Annotated[float, Field(gt=0)] = 1e6
    radius_first: Annotated[float, Field(ge=0)] = 0.0
    tally: Literal["completion", "paper"] = "completion"


class TensorShape(Section):
    """The name and the shape of one tensor of the model."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=200)]
    shape: list[Positive]


class ModelDescription(Section):
    """The model that is trained."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=200)]
    """A built-in model, or a custom one as "package.module:factory"."""
    digest: Hex32
    tensors: Annotated[list[TensorShape], Field(min_length=1, max_length=10_000)]

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of all tensors, in order."""
        return tuple(tuple(tensor.shape) for tensor in self.tensors)


class DataDescription(Section):
    """What data members hold: every member's worker must fit it."""

    description: Annotated[str, StringConstraints(max_length=10_000)]
    shape: list[Positive]
    """The shape of one sample."""
    classes: Positive


class AuthoritySection(Section):
    """The authority that signs members' certificates."""

    certificate: Annotated[str, StringConstraints(max_length=20_000)]


class PredecessorSection(Section):
    """The network that this one succeeds, and the certified end from which it goes on."""

    network: Hex32
    """Its identity."""
    round: Positive
    """The last round of it that counts."""
    seed: Hex32
    """By which that round was drawn."""
    header: Annotated[str, StringConstraints(pattern=r"^([0-9a-f]{2})+$", max_length=20_000)]
    """The block of that round in brief; it names the model."""
    certificate: Annotated[str, StringConstraints(pattern=r"^([0-9a-f]{2})+$", max_length=1 << 24)]
    """The votes of its members for that block."""


class _File(Section):
    network: NetworkSection
    parameters: Parameters
    model: ModelDescription
    data: DataDescription
    authority: AuthoritySection
    members: Annotated[list[Member], Field(min_length=1, max_length=WORKERS_MAX)]
    predecessor: PredecessorSection | None = None


@dataclass(frozen=True)
class Network:
    """The content of a genesis file, finished or still being made."""

    file: _File

    @classmethod
    def draft(
        cls,
        *,
        name: str,
        members: Sequence[Member],
        parameters: Parameters,
        model: ModelDescription,
        data: DataDescription,
        predecessor: PredecessorSection | None = None,
    ) -> "Network":
        """A network without authority and beacon, which cannot be used yet."""
        if not NAME.fullmatch(name):
            raise UserError(
                "a network's name is up to 32 lower-case letters, digits and inner hyphens;"
                f" got {name!r}"
            )
        section = NetworkSection(name=name, nonce=secrets.token_hex(32))
        hidden = [member.model_copy(update={"share": None}) for member in members]
        return cls(
            _File(
                network=section,
                parameters=parameters,
                model=model,
                data=data,
                authority=AuthoritySection(certificate=""),
                members=hidden,
                predecessor=predecessor,
            )
        )

    @property
    def name(self) -> str:
        """The network's name; unlike its identity, it need not be unique."""
        return self.file.network.name

    @property
    def members(self) -> Sequence[Member]:
        """All members, in the order of the roster."""
        return self.file.members

    def index(self, name: str) -> int:
        """A member's place in the roster."""
        for place, member in enumerate(self.members):
            if member.name == name:
                return place
        raise UserError(f"{name} is not a member of the network {self.name}")

    @cached_property
    def params(self) -> Params:
        """The constants of the agreement, checked."""
        given, model = self.file.parameters, self.file.model
        n = len(self.members)
        params = Params(
            workers=n,
            f=as_share(given.byzantine, n),
            quorum=given.quorum or quorum_of_all(n),
            proposers=given.proposers,
            voters=given.voters,
            leaders=given.leaders,
            ballots_min=given.ballots_min,
            byzantine_voters_max=given.byzantine_voters_max,
            dimension=sum(int(np.prod(shape, dtype=np.int64)) for shape in model.shapes),
            model_first=Digest(bytes.fromhex(model.digest)),
            rates=tuple(given.learning_rates),
            mode=Mode(given.mode),
            committee=given.committee,
            role_draw=RoleDraw(given.role_draw),
            inclusion_periods=given.inclusion_periods,
            lookback=given.lookback,
            refresh=given.refresh,
            shapes=model.shapes,
            coordinate_max=given.coordinate_max,
            radius_first=given.radius_first,
            tally=TallyRule(given.tally),
        )
        params.check()
        return params

    @cached_property
    def description(self) -> Digest:
        """The digest of the whole file without beacon and shares."""
        rest = self.file.model_dump(mode="json")
        rest["network"].pop("beacon")
        if rest["predecessor"] is None:
            # A network without one keeps the identity that it had before there were any.
            rest.pop("predecessor")
        for member in rest["members"]:
            member.pop("share")
        return digest("network-file", blob(to_json(sorted_keys(rest)).encode()))

    @property
    def setup(self) -> Digest:
        """The digest of what members see before they reveal their shares of the beacon."""
        return self._genesis(b"").setup

    @cached_property
    def genesis(self) -> Genesis:
        """The network, as the agreement core knows it."""
        beacon = self.file.network.beacon
        if beacon is None:
            raise UserError(
                f"the network {self.name} has no beacon yet: members must reveal their shares"
                " (`holdout node reveal`), then `holdout network create` is run again with them"
            )
        return self._genesis(bytes.fromhex(beacon))

    def _genesis(self, beacon: bytes) -> Genesis:
        roster = tuple(member.keys for member in self.members)
        return Genesis(self.params, roster, self.description, beacon)

    @property
    def identity(self) -> str:
        """The network's identity in hexadecimal."""
        return self.genesis.chain.hex()

    def with_authority(self, certificate: bytes) -> "Network":
        """The network with this authority's certificate."""
        section = AuthoritySection(certificate=certificate.decode("ascii"))
        return Network(self.file.model_copy(update={"authority": section}))

    def with_beacon(self, beacon: bytes) -> "Network":
        """The finished network, with a beacon from outside."""
        section = self.file.network.model_copy(update={"beacon": beacon.hex()})
        return Network(self.file.model_copy(update={"network": section}))

    def with_shares(self, shares: Mapping[str, bytes]) -> "Network":
        """The finished network, with a beacon made of all members' shares, which are checked."""
        missing = [member.name for member in self.members if member.name not in shares]
        if missing:
            raise UserError(f"shares of the beacon are missing: {', '.join(missing)}")
        members = [
            member.model_copy(update={"share": shares[member.name].hex()})
            for member in self.members
        ]
        revealed = Network(self.file.model_copy(update={"members": members}))
        problems = _beacon_problems(members)
        if problems:
            raise UserError("; ".join(problems))
        return revealed.with_beacon(_beacon(self.setup, members))

    # -- reading and writing ----------------------------------------------------------------------

    def write(self, path: Path) -> None:
        """Write the file, whole or not at all."""
        values = self.file.model_dump(mode="json", exclude_none=True)
        head = (
            "# A HoldOut SGD network. All members hold this very file: the digest of its content"
            "\n# is the network's identity. Do not edit it.\n\n"
        )
        write_atomic(path, (head + tomli_w.dumps(values)).encode())

    @classmethod
    def read(cls, path: Path) -> "Network":
        """Read and check a file; a UserError lists all mistakes."""
        network = cls(read_section(_File, path))
        problems = _problems(network)
        if problems:
            raise UserError("\n".join([f"{path} is not a valid genesis file:", *problems]))
        return network


def network_of(folder: Path) -> Network:
    """The network that the node of this folder is a member of; a UserError if of none."""
    if folder.is_dir() and not (folder / GENESIS).exists():
        raise UserError(f"{folder} {NO_NETWORK}")
    return Network.read(folder / GENESIS)


def sorted_keys(value: Any) -> Any:
    """The value with the keys of all tables sorted, so that equal content has equal bytes."""
    if isinstance(value, dict):
        return {key: sorted_keys(value[key]) for key in sorted(value)}
    return [sorted_keys(item) for item in value] if isinstance(value, list) else value


def read_toml(path: Path) -> dict[str, Any]:
    """The content of a TOML file; a UserError says why it cannot be read."""
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not TOML: {error}") from None


def read_section(kind: type[S], path: Path) -> S:
    """The content of a TOML file of this kind; a UserError lists all mistakes."""
    try:
        return kind.model_validate(read_toml(path))
    except ValidationError as error:
        listed = [f"  {mistake}" for mistake in mistakes_in(error)]
        raise UserError("\n".join([f"{path} has mistakes:", *listed])) from None


def mistakes_in(error: ValidationError) -> list[str]:
    """What is wrong, one line for each key."""
    return [_mistake(detail) for detail in error.errors()]


def _mistake(detail: ErrorDetails) -> str:
    key, value = ".".join(map(str, detail["loc"])), detail["input"]
    match detail["type"]:
        case "missing":
            return f"{key}: must be given"
        case "extra_forbidden":
            said = "unknown key"
        case _:
            pattern = str(detail.get("ctx", {}).get("pattern"))
            said = _PATTERNS.get(pattern, plain_message(detail))
    return f"{key}: {said}" if isinstance(value, dict | list) else f"{key} = {value!r}: {said}"


def _beacon(setup: Digest, members: Sequence[Member]) -> bytes:
    shares = b"".join(blob(bytes.fromhex(member.share or "")) for member in members)
    return digest("beacon", blob(setup), shares)


def _beacon_problems(members: Sequence[Member]) -> list[str]:
    return [
        f"the share of {member.name} is not what it committed to"
        for member in members
        if member.share is not None
        and commitment(bytes.fromhex(member.share)).hex() != member.commitment
    ]


def _problems(network: Network) -> list[str]:
    members, beacon = network.members, network.file.network.beacon
    verifier = Ed25519Verifier()
    problems = _beacon_problems(members)
    for what in ("name", "signing", "vrf"):
        values = [getattr(member, what) for member in members]
        if len(set(values)) < len(values):
            problems.append(f"two members have the same {what}")
    for member in members:
        fault = verifier.key_fault(member.keys)
        if fault is not None:
            problems.append(f"{member.name}: {fault}")
    shared = [member.share is not None for member in members]
    if any(shared) and not all(shared):
        problems.append("some shares of the beacon are missing")
    elif any(shared) and beacon != _beacon(network.setup, members).hex():
        problems.append("the beacon does not follow from the shares")
    return problems
