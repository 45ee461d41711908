"""How the values of a config must fit each other, whatever each is by itself."""

from fractions import Fraction
from typing import TypeAlias

from holdout.config.sections import Config
from holdout.shares import write_share

Relation: TypeAlias = tuple[tuple[str, ...], bool, str]
"""The keys involved, whether they fit, and what to say if not."""


def relations(config: Config) -> list[Relation]:
    """All of them."""
    data, training, federation, vote = (
        config.data,
        config.training,
        config.federation,
        config.vote,
    )
    workers, proposers, voters = federation.workers, federation.proposers, federation.voters
    rules, seeds = config.experiment.rules, config.experiment.seeds
    drawn = ("federation.proposers", "federation.voters", "federation.workers")
    majorities = (proposers // 2 + 1, voters // 2 + 1)
    honest_needed = sum(majorities) if federation.disjoint else max(majorities)
    return [
        (
            ("experiment.rules",),
            len(set(rules)) == len(rules),
            f"experiment.rules = {rules}: each rule once",
        ),
        (
            ("experiment.seeds",),
            len(set(seeds)) == len(seeds),
            f"experiment.seeds = {seeds}: each seed once",
        ),
        (
            (*drawn, "federation.disjoint"),
            not federation.disjoint or proposers + voters <= workers,
            f"federation.proposers + federation.voters = {proposers} + {voters}: at most "
            f"federation.workers = {workers} when federation.disjoint = true",
        ),
        (
            (*drawn, "federation.disjoint"),
            federation.disjoint or max(proposers, voters) <= workers,
            f"federation.proposers, federation.voters = {proposers}, {voters}: each at most "
            f"federation.workers = {workers}",
        ),
        (
            ("federation.byzantine", "federation.workers"),
            federation.byzantine_workers <= workers,
            f"federation.byzantine = {write_share(federation.byzantine)}: at most the "
            f"{workers} workers",
        ),
        (
            ("federation.assumed_byzantine", "federation.workers"),
            federation.f < Fraction(1, 2),
            f"federation.assumed_byzantine = {write_share(federation.assumed_byzantine)}: the "
            f"assumed share f must be below 1/2; got f = {write_share(federation.f)}",
        ),
        (
            (*drawn, "federation.disjoint", "federation.byzantine"),
            not federation.redraw_until_honest_majority
            or workers - federation.byzantine_workers >= honest_needed,
            f"federation.redraw_until_honest_majority = true: an honest majority of proposers and "
            f"of voters needs {honest_needed} honest workers; got federation.workers = {workers}, "
            f"federation.byzantine = {write_share(federation.byzantine)}",
        ),
        (
            ("training.batch_size", "data.samples_per_worker"),
            training.batch_size <= data.samples_per_worker,
            f"training.batch_size = {training.batch_size}: at most data.samples_per_worker = "
            f"{data.samples_per_worker}",
        ),
        (
            ("vote.samples", "data.samples_per_worker"),
            vote.samples <= data.samples_per_worker,
            f"vote.samples = {vote.samples}: at most data.samples_per_worker = "
            f"{data.samples_per_worker}",
        ),
        (
            ("vote.scoring", "vote.bound"),
            vote.scoring == "exact" or vote.bound,
            "vote.scoring = 'first-order': needs vote.bound = true, since a linear score rewards "
            "length without end",
        ),
        *_of_mode(config),
    ]


def _of_mode(config: Config) -> list[Relation]:
    """What agreement without a server asks for, and what has no meaning there, or only there."""
    federation, liars = config.federation, config.federation.byzantine_workers
    workers, assumed = federation.workers, federation.byzantine_assumed
    if federation.mode == "central":
        return [
            (
                ("attack.equivocate",),
                not config.attack.equivocate,
                "attack.equivocate = true: needs federation.mode = 'decentralized', since a server "
                "takes one version",
            )
        ]
    return [
        (
            ("federation.disjoint",),
            not federation.disjoint,
            "federation.disjoint = true: must be false in mode 'decentralized', since every worker "
            "draws its own lots",
        ),
        (
            ("federation.redraw_until_honest_majority",),
            not federation.redraw_until_honest_majority,
            "federation.redraw_until_honest_majority = true: must be false in mode "
            "'decentralized', since nobody can draw again",
        ),
        (
            ("training.momentum",),
            config.training.momentum == 0,
            f"training.momentum = {config.training.momentum}: must be 0 in mode 'decentralized', "
            "since there is no server to have it",
        ),
        (
            ("vote.bound",),
            config.vote.bound,
            "vote.bound = false: must be true in mode 'decentralized', where the bound is part of "
            "the chain",
        ),
        *(
            (
                (f"federation.{key}", "federation.workers"),
                workers >= 3 * count + 1,
                f"federation.{key} = {write_share(value)}: agreement needs n >= 3B + 1 workers, of "
                f"which B may lie; got n={workers}, B={count}",
            )
            for key, value, count in (
                ("byzantine", federation.byzantine, liars),
                ("assumed_byzantine", federation.assumed_byzantine, assumed),
            )
        ),
        (
            ("attack.equivocate", "federation.byzantine", "federation.assumed_byzantine"),
            not config.attack.equivocate or liars <= assumed,
            f"attack.equivocate = true: at most floor(assumed_byzantine * n) = {assumed} of the "
            f"workers may lie, or the network halts when it has caught more; got {liars}",
        ),
    ]
