"""The parameters of a new network: from the tables for its size, or by hand.

How many members propose and vote in a round follows from how many there are and how many may lie
(`holdout.agreement.sizing`). If a draw would leave out less than a tenth of them, everybody takes
part: rounds then end as soon as all have been heard. Sizes below the tables are allowed, with a
warning when the network is created and whenever a node starts.
"""

from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from holdout.agreement import sizing
from holdout.agreement.guarantees import shortfalls
from holdout.agreement.params import Mode, Params, RoleDraw
from holdout.agreement.sizing import CommitteeSize, NetworkSizes, Risk, Voters
from holdout.errors import ConfigError, UserError
from holdout.node.membership.genesis import Parameters, mistakes_in, read_toml
from holdout.shares import byzantine_count, read_share

ROUNDS = 1000
"""How many rounds a network is planned for, unless told otherwise."""
LEFT_OUT_MIN = Fraction(1, 10)
"""A draw must leave out at least this share of the members."""
TABLE = "parameters"


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
        raise ConfigError([f"{TABLE}.{mistake}" for mistake in mistakes_in(error)]) from None


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
