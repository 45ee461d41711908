"""Creating a network, from the members' public parts to the genesis file.

holdout network create --members ...   setup.toml, the first model, a certificate for each member
holdout network create --reveals ...   genesis.toml, once all shares of the beacon are revealed

With a beacon from outside, both happen in one step.

How many members propose and vote in a round follows from how many there are and how many may lie
(`holdout.agreement.sizing`), or is given by hand. If a draw would leave out less than a tenth of
them, everybody takes part: rounds then end as soon as all have been heard. Sizes below the tables
are allowed, with a warning when the network is created and whenever a node starts.
"""

import secrets
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from holdout.agreement import sizing
from holdout.agreement.guarantees import shortfalls
from holdout.agreement.params import Mode, Params, RoleDraw
from holdout.agreement.sizing import CommitteeSize, NetworkSizes, Risk, Voters
from holdout.errors import ConfigError, UserError
from holdout.node.membership.genesis import (
    GENESIS,
    SETUP,
    DataDescription,
    Member,
    ModelDescription,
    Network,
    Parameters,
    PredecessorSection,
    mistakes_in,
    read_toml,
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
from holdout.results import write_atomic
from holdout.shares import byzantine_count, read_share

BEACON_BYTES = 32
DRAW = "draw"
"""The beacon that whoever creates the network draws, and is trusted not to choose."""
MEMBERS_MIN = 4
"""The smallest network in which one member may lie or be away."""
AUTHORITY_FOLDER, CERTIFICATES = "authority", "certificates"
ROUNDS = 1000
"""How many rounds a network is planned for, unless told otherwise."""
LEFT_OUT_MIN = Fraction(1, 10)
"""A draw must leave out at least this share of the members."""
TABLE = "parameters"


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
    shape: str | None,
    classes: int,
    description: str,
    seed: int,
    beacon: str | None,
    reveals: Sequence[Path],
    few: bool = False,
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
        shape: The shape of one sample, such as "1,28,28"; a new network must have one.
        classes: How many classes the data has.
        description: What data members hold.
        seed: Draws the first weights.
        beacon: Public random bytes in hexadecimal, or "draw"; None: it is made of shares.
        reveals: Files with all members' shares of the beacon.
        few: Allow fewer than four members, of which none may lie or be away.
    """
    public = None if beacon is None else read_beacon(beacon)
    notes: list[str] = []
    if members:
        gathered = gather(members)
        check_count(len(gathered), few=few)
        sides = _shape(shape)
        given = {} if parameters_file is None else read_parameters(parameters_file)
        planned = plan_parameters(len(gathered), {**given, **parameters}, rounds)
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
        if (folder / GENESIS).exists():
            raise UserError(f"{folder} holds a network already")
        return (
            f"made {folder / SETUP}. Members look at it and reveal their shares of the beacon"
            f" (`holdout node reveal DIR {folder / SETUP} SHARE.toml`); then run"
            f" `holdout network create {folder} --reveals SHARE.toml ...`"
        ), notes
    network = finish_network(folder, reveals=reveals, beacon=public)
    return (
        f"network {network.name}, {len(network.members)} members, of which"
        f" {network.params.byzantine} may lie: {network.identity}. `holdout network bundle"
        f" {folder}` writes each member's bundle, with which it joins"
    ), notes


def check_count(members: int, *, few: bool) -> None:
    """Refuse a network in which nobody may lie or be away, unless that is meant."""
    if members < MEMBERS_MIN and not few:
        raise UserError(
            f"with fewer than {MEMBERS_MIN} members nobody may lie or be away, or rounds stop; got"
            f" {members} (--fewer-than-four allows it)"
        )


def read_beacon(text: str) -> bytes:
    """The beacon that this text names."""
    if text == DRAW:
        return secrets.token_bytes(BEACON_BYTES)
    try:
        beacon = bytes.fromhex(text)
    except ValueError:
        beacon = b""
    if len(beacon) != BEACON_BYTES:
        raise UserError(
            f'a beacon is {2 * BEACON_BYTES} hexadecimal digits, or "{DRAW}"; got {text!r}'
        )
    return beacon


def _shape(text: str | None) -> tuple[int, ...]:
    if text is None:
        raise UserError(
            "a new network needs --shape, the shape of one sample: 1,28,28 for the digits, or 4"
            " for rows of four numbers"
        )
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
    for place, (member, _) in enumerate(found):
        for other, _ in found[:place]:
            if other.address == member.address:
                raise UserError(
                    f"{other.name} and {member.name} have the same address, {member.address}"
                )
    return found


def draft_network(
    out: Path,
    members: Sequence[tuple[Member, bytes]],
    *,
    name: str,
    parameters: Parameters,
    model: tuple[ModelDescription, bytes],
    data: DataDescription,
    predecessor: PredecessorSection | None = None,
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
        predecessor=predecessor,
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


# -- parameters: from the tables for the network's size, or by hand --------------------------------


def usual_parameters(n: int, byzantine: int, learning_rate: float) -> Parameters:
    """Parameters for a small network: everybody proposes and votes."""
    return Parameters(
        byzantine=byzantine,
        proposers=n,
        voters=n,
        leaders=min(n, sizing.LEADERS),
        ballots_min=n - byzantine,
        byzantine_voters_max=byzantine,
        learning_rates=[learning_rate],
    )


def read_parameters(path: Path) -> dict[str, Any]:
    """The parameters in a file, named as in the genesis file."""
    values = read_toml(path)
    table = values.pop(TABLE, None)
    if not isinstance(table, dict) or values:
        raise UserError(
            f"{path} must hold a table [{TABLE}], as in a genesis file, and nothing else"
        )
    return table


def plan_parameters(n: int, given: Mapping[str, Any], rounds: int = ROUNDS) -> Parameters:
    """The given parameters, and for the rest what the tables say for n members.

    Raises:
        UserError: Something given is invalid, or cannot work.
    """
    # Check what is given before anything is derived from it, with placeholders for the rest.
    asked = _checked({**_PLACEHOLDERS, "byzantine": (n - 1) // 3, **given})
    liars = sizing.check_population(n, asked.byzantine)
    for role in ("proposers", "voters", "leaders"):
        if role in given and getattr(asked, role) > n:
            raise UserError(f"{n} members cannot have {getattr(asked, role)} {role}")
    mode = Mode(asked.mode) if "mode" in given else sizing.usual_mode(n)
    draw, risk = RoleDraw(asked.role_draw), Risk(rounds=rounds)
    planned = sizing.sizes(n=n, f=asked.byzantine, risk=risk, mode=mode, role_draw=draw)
    size = asked.voters if "voters" in given else _drawn_or_all(planned.voters.size, n)
    voters = sizing.judge_voters(n, liars, min(size, n), risk, draw)
    if not {"ballots_min", "byzantine_voters_max"} <= set(given):
        _check_voters(voters, n, asked.byzantine)
    filled: dict[str, Any] = {
        "byzantine": asked.byzantine,
        "mode": str(mode),
        "proposers": _drawn_or_all(planned.proposers, n),
        "voters": size,
        "leaders": planned.leaders,
        "ballots_min": voters.ballots_min,
        "byzantine_voters_max": voters.byzantine_max,
        "learning_rates": [0.1],
    }
    if mode is not Mode.ALL:
        filled |= {"quorum": planned.committee.quorum, "committee": planned.committee.size}
    return _checked({**filled, **given})


_PLACEHOLDERS = {
    "proposers": 1,
    "voters": 1,
    "leaders": 1,
    "ballots_min": 0,
    "byzantine_voters_max": 0,
    "learning_rates": [0.1],
}


def _drawn_or_all(size: int, n: int) -> int:
    """How many take part: a draw of this size, or everybody if it would spare hardly anyone."""
    return n if n - size < LEFT_OUT_MIN * n else size


def _check_voters(voters: Voters, n: int, byzantine: Fraction | int) -> None:
    """Refuse too few voters, unless their numbers were given by hand: no round would step."""
    few, many = voters.ballots_min, voters.byzantine_max
    if not sizing.ballots_suffice(sizing.as_share(byzantine, n), few, many):
        raise UserError(
            f"{voters.size} voters of {n} members, of which {byzantine_count(byzantine, n)} may"
            f" lie, are below the tables: honest ballots ({few} at least) do not outweigh the"
            f" liars' ({many} at most). Give more voters, or ballots_min and byzantine_voters_max"
            " by hand (0 switches that floor off)"
        )


def _checked(values: Mapping[str, Any]) -> Parameters:
    try:
        return Parameters.model_validate(values)
    except ValidationError as error:
        problems = [f"{TABLE}.{mistake}" for mistake in mistakes_in(error)]
        raise ConfigError(problems, where="the parameters") from None


def notes_on(params: Params, rounds: int = ROUNDS) -> tuple[str, ...]:
    """What these parameters do not guarantee."""
    n = params.workers
    committee = CommitteeSize(n if params.mode is Mode.ALL else params.committee, params.quorum)
    chosen = NetworkSizes(
        mode=params.mode,
        role_draw=params.role_draw,
        committee=committee,
        proposers=params.proposers,
        voters=Voters(params.voters, params.ballots_min, params.byzantine_voters_max),
        leaders=params.leaders,
    )
    return shortfalls(chosen, n=n, f=params.f, risk=Risk(rounds=rounds))


def read_byzantine(text: str, n: int) -> int:
    """How many of n members lie, from text with a share or a number."""
    try:
        return byzantine_count(read_share(text), n)
    except ValueError as error:
        raise UserError(f"--byzantine {error}; got {text!r}") from None
