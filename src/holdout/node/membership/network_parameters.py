"""The parameters of a new network: by the tables for its size, by hand where somebody knows better.

How many members propose and vote in a round follows from how many there are and how many may lie
(`holdout.agreement.sizing`). Where a draw would leave out less than a tenth of them, everybody
takes part: rounds then end as soon as all have been heard. Sizes below the tables are allowed and
said, when the network is created and when a node starts.
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
from holdout.node.membership.genesis import Parameters, read_toml
from holdout.shares import byzantine_count, read_share

ROUNDS = 1000
"""What may go wrong is counted over so many, unless told otherwise."""
LEFT_OUT_MIN = Fraction(1, 10)
TABLE = "parameters"


def usual_parameters(n: int, byzantine: int, learning_rate: float) -> Parameters:
    """Everybody proposes, votes and may lead: right for small networks."""
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
    """What a file says of the parameters, under the same names as in the genesis file."""
    values = read_toml(path)
    table = values.pop(TABLE, None)
    if not isinstance(table, dict) or values:
        raise UserError(f"{path} must hold a table [{TABLE}], as a genesis file does, and no more")
    return table


def plan_parameters(n: int, given: Mapping[str, Any], rounds: int = ROUNDS) -> Parameters:
    """What is given, and for the rest what the tables say for n members.

    Raises:
        UserError: Something given is not as it should be, or cannot work.
    """
    # What is given must be right before anything is made of it; the rest is filled in meanwhile.
    asked = _checked({**_PLACES, "byzantine": (n - 1) // 3, **given})
    liars = sizing.check_population(n, asked.byzantine)
    mode = Mode(asked.mode) if "mode" in given else sizing.usual_mode(n)
    draw, risk = RoleDraw(asked.role_draw), Risk(rounds=rounds)
    planned = sizing.sizes(n=n, f=asked.byzantine, risk=risk, mode=mode, role_draw=draw)
    size = asked.voters if "voters" in given else _worth(planned.voters.size, n)
    voters = sizing.judge_voters(n, liars, min(size, n), risk, draw)
    if not {"ballots_min", "byzantine_voters_max"} <= set(given):
        _check_voters(voters, n, asked.byzantine)
    filled: dict[str, Any] = {
        "byzantine": asked.byzantine,
        "mode": str(mode),
        "proposers": _worth(planned.proposers, n),
        "voters": size,
        "leaders": planned.leaders,
        "ballots_min": voters.ballots_min,
        "byzantine_voters_max": voters.byzantine_max,
        "learning_rates": [0.1],
    }
    if mode is not Mode.ALL:
        filled |= {"quorum": planned.committee.quorum, "committee": planned.committee.size}
    return _checked({**filled, **given})


_PLACES = {
    "proposers": 1,
    "voters": 1,
    "leaders": 1,
    "ballots_min": 0,
    "byzantine_voters_max": 0,
    "learning_rates": [0.1],
}


def _worth(size: int, n: int) -> int:
    """A draw, or everybody where it would spare hardly anyone."""
    return n if n - size < LEFT_OUT_MIN * n else size


def _check_voters(voters: Voters, n: int, byzantine: Fraction | int) -> None:
    """Without a number given by hand, too few voters would make every round one without a step."""
    few, many = voters.ballots_min, voters.byzantine_max
    if not sizing.ballots_suffice(sizing.as_share(byzantine, n), few, many):
        raise UserError(
            f"{voters.size} voters of {n} members, of which {byzantine_count(byzantine, n)} may"
            f" lie, are below the tables: honest ballots ({few} at least) do not outweigh the"
            f" liars' ({many} at most). Give ballots_min and byzantine_voters_max by hand (0"
            " switches that floor off), or more voters"
        )


def _checked(values: Mapping[str, Any]) -> Parameters:
    try:
        return Parameters.model_validate(values)
    except ValidationError as error:
        raise ConfigError(
            [
                f"{TABLE}.{'.'.join(map(str, detail['loc']))}: {detail['msg']}"
                for detail in error.errors()
            ]
        ) from None


def notes_on(params: Params, rounds: int = ROUNDS) -> tuple[str, ...]:
    """What these parameters do not guarantee; empty if nothing."""
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
    """How many of n members lie, from a share or a number."""
    try:
        return byzantine_count(read_share(text), n)
    except ValueError as error:
        raise UserError(f"--byzantine {error}; got {text!r}") from None
