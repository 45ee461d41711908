"""The network that a config asks for: its sizes, its constants, and what they do not guarantee.

Proposers and voters are as many as the config says, on average: every worker draws its own lots.
Everything else follows from n and f. Sizes below the tables of `agreement.sizing` are allowed: the
paper's are far below them. A run that has such sizes says so.
"""

from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache

from holdout.agreement import sizing
from holdout.agreement.guarantees import notes_on_sizes
from holdout.agreement.params import Params, RoleDraw, TallyRule
from holdout.agreement.sizing import NetworkSizes, Risk
from holdout.config import Config
from holdout.ids import Digest
from holdout.learning.schedules import rates_of

PAPER = "holdout-paper"
"""The rule whose ballots are full and counted to the letter."""


def sizes_of(config: Config) -> NetworkSizes:
    """The committee sizes of a run."""
    federation = config.federation
    n, f = federation.workers, federation.assumed_byzantine
    liars, mode = sizing.check_population(n, f), sizing.usual_mode(n)
    risk = Risk(rounds=config.experiment.rounds)
    return NetworkSizes(
        mode=mode,
        role_draw=RoleDraw.SELF,
        committee=sizing.committee(n, liars, risk, mode),
        proposers=federation.proposers,
        voters=sizing.voters_for(n, liars, federation.f, federation.voters, risk),
        leaders=min(n, sizing.LEADERS),
    )


def notes_on(config: Config) -> list[str]:
    """What a user should know before the run starts: sizes below the tables, and their price."""
    federation = config.federation
    if federation.mode != "decentralized":
        return []
    notes = []
    liars, assumed = federation.byzantine_workers, federation.byzantine_assumed
    if config.attack.name != "none" and liars > assumed:
        notes.append(
            f"{liars} of {federation.workers} workers lie, more than the B = {assumed} that the "
            "network is built for"
        )
    proposers, voters = _planned(federation.workers, federation.f, config.experiment.rounds)
    return notes + notes_on_sizes(
        sizes_of(config),
        (
            ("federation.proposers", federation.proposers, proposers),
            ("federation.voters", federation.voters, voters),
        ),
        n=federation.workers,
        f=federation.assumed_byzantine,
        risk=Risk(rounds=config.experiment.rounds),
    )


@lru_cache(maxsize=16)
def _planned(n: int, f: Fraction, rounds: int) -> tuple[int, int]:
    """The proposers and voters that the tables ask for."""
    planned = sizing.sizes(n=n, f=f, risk=Risk(rounds=rounds))
    return planned.proposers, planned.voters.size


def params_of(
    config: Config,
    rule: str,
    *,
    shapes: Sequence[Sequence[int]],
    model_first: Digest,
    radius_first: float,
) -> Params:
    """The constants of a run, the same for every worker."""
    return sizes_of(config).params(
        workers=config.federation.workers,
        f=config.federation.f,
        shapes=shapes,
        model_first=model_first,
        # By the number of steps, not of rounds: an empty round does not burn the schedule.
        rates=rates_of(config.training, rounds=config.experiment.rounds),
        radius_first=radius_first,
        tally=TallyRule.PAPER if rule == PAPER else TallyRule.COMPLETION,
    )
