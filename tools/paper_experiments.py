"""The experiments behind docs/results, as a literal table, and the order in which to run them.

An experiment is one of the paper's panels (`src/holdout/experiments/paper/*.toml`) with some
settings changed, as `holdout run CONFIG --set ...` does. Each of its rules and seeds has its own
run folder, so that a queue can stop anywhere and what is done can be published.
"""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from holdout.config import apply_settings
from holdout.experiments.reproduce import panel_values

PANELS = "src/holdout/experiments/paper"
BASELINES = ("trimmed-mean", "mean-around-median", "krum")
VOTES = ("holdout-paper", "holdout-1")
PAPER = ("mean", *BASELINES, *VOTES)
ROBUST = (
    *("mean", "trimmed-mean", "krum", "multi-krum", "median", "geometric-median"),
    *VOTES,
)
ATTACKS = (
    *("alie", "ipm", "sign-flip", "bomb", "rescale", "permute"),
    *("gaussian", "label-flip", "mimic", "zero", "nan"),
)
# Those that the published robustness tables do not hold: they came after the tables.
LATER_ATTACKS = (
    *("greedy", "jointly", "opt-alie", "opt-ipm"),
    *("min-max", "min-sum", "shift-back", "poisoned", "backdoor"),
)
BALLOTS = ("honest", "starve", "short", "blank", "random", "inverted")
GAMMAS = (2, 5, 10, 30, 100)

# Scoring time grows with m_c, and these tables are large; what a smaller m_c costs is measured too.
REDUCED = ("experiment.rounds=60", "vote.samples=500")
ROBUSTNESS = ("experiment.rounds=60", "vote.samples=200")
CIFAR = ("vote.samples=250",)
SKEWED = ("data.partition=dirichlet", "data.alpha=0.5")
VERY_SKEWED = ("data.partition=dirichlet", "data.alpha=0.1")
NOBODY = ("attack.name=none", "federation.byzantine=0")
RAW = "data.normalise=false"
# The authors' code (https://github.com/shaharazulay/holdout-sgd) as far as switches can copy it. It
# rounds up the number of liars that rules are told, to 10 of 30 and 4 of 12; so does f = 1/3.
BALANCED = "data.partition=balanced"
MILD = ("federation.redraw_until_honest_majority=true", BALANCED)
KRUM = "attack.gamma=krum"
THIRD = "federation.assumed_byzantine=1/3"
AUTHORS = (THIRD, *MILD, "attack.gamma=krum-unsquared")
AUTHORS_RULES = tuple("krum-unsquared" if rule == "krum" else rule for rule in PAPER)


# What the vote with joint ballots is measured by: every attack, both signs, searched ones, and
# lying voters that do more than the usual. Decision 15 has the seeds.
SECOND_VOTE = ("experiment.rounds=100", "experiment.evaluate_every=20", "vote.samples=200")
SETTINGS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "iid": (),
        "dirichlet-0.5": SKEWED,
        "dirichlet-0.1-20": (*VERY_SKEWED, "federation.byzantine=20"),
        "dirichlet-0.1": VERY_SKEWED,
    }
)
LIES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "none": NOBODY,
        "jointly": ("attack.name=jointly",),
        "alie-minus": ("attack.direction=-1",),
        "alie-plus": ("attack.direction=1",),
        "alie-minus-1.5": ("attack.gamma=1.5", "attack.direction=-1"),
        "alie-minus-0.75-honest": (
            *("attack.gamma=0.75", "attack.direction=-1", "attack.voters=honest"),
        ),
        "ipm": ("attack.name=ipm",),
        "ipm-0.5-starve": ("attack.name=ipm", "attack.gamma=0.5", "attack.voters=starve"),
        "sign-flip-inverted": ("attack.name=sign-flip", "attack.voters=inverted"),
        **{
            name: (f"attack.name={name}",)
            for name in (*ATTACKS, *LATER_ATTACKS)
            if name not in {"alie", "ipm", "jointly"}
        },
        "jointly-late": ("attack.name=jointly", "attack.onset=50"),
    }
)
COMPARED = (
    *("mean", "trimmed-mean", "median", "geometric-median", "krum", "multi-krum"),
    *("caf", "nnm+trimmed-mean", *VOTES, "holdout"),
)

# The lies of CIFAR-10, with committees of the paper's size and of the size that `holdout plan` asks
# for.
CIFAR_LIES = ("none", "alie-minus", "alie-plus", "ipm", "greedy")
CIFAR_COMMITTEES: Mapping[int, tuple[str, ...]] = MappingProxyType(
    {12: (), 40: ("federation.proposers=40", "federation.voters=40")}
)


@dataclass(frozen=True, slots=True)
class Experiment:
    """A panel of the paper with some settings changed."""

    name: str
    file: str
    """The name of its results file, without `.json`."""
    panel: str
    settings: tuple[str, ...] = ()
    rules: tuple[str, ...] = PAPER
    says: str = ""
    """What differs from the panel, in a few words, for the tables."""

    def values(self, *, rule: str, seed: int, data: Path) -> dict[str, Any]:
        """The config of one rule and seed."""
        chosen = [f'experiment.rules=["{rule}"]', f"experiment.seeds=[{seed}]"]
        fixed = ["experiment.baseline=false", "experiment.threads=1"]
        values = apply_settings(panel_values(self.panel), [*self.settings, *chosen, *fixed])
        values["data"]["path"] = str(data / values["data"]["name"])
        return values

    @property
    def rounds(self) -> int:
        """How many rounds each rule and seed runs."""
        planned = apply_settings(panel_values(self.panel), list(self.settings))
        return int(planned["experiment"]["rounds"])

    @property
    def command(self) -> str:
        """The command that runs the same rules, with the seeds of the panel."""
        sets = ["data.path=DIR", *self.settings]
        if tuple(panel_values(self.panel)["experiment"]["rules"]) != self.rules:
            sets.append(f"experiment.rules={json.dumps(self.rules)}")
        options = [part for setting in sets for part in ("--set", setting)]
        return shlex.join(["holdout", "run", f"{PANELS}/{self.panel}.toml", *options])


def _variant(name: str, says: str, *settings: str, **changes: Any) -> Experiment:
    given = {"panel": "mnist-right", "rules": (*BASELINES, *VOTES), **changes}
    return Experiment(name, "mnist-variants", settings=(*REDUCED, *settings), says=says, **given)


def _passing() -> Iterator[Experiment]:
    for gamma_max in GAMMAS:
        for passing in ("any", "all"):
            for direction in (1, -1):
                settings = (
                    f"attack.passing={passing}",
                    f"attack.gamma_max={gamma_max}",
                    f"attack.direction={direction}",
                )
                sign = "plus" if direction > 0 else "minus"
                yield Experiment(
                    f"passing-{passing}-{gamma_max}-{sign}",
                    "mnist-passing",
                    "mnist-right",
                    (*ROBUSTNESS, *settings),
                    VOTES,
                )


def _robustness(name: str, file: str, *settings: str) -> Iterator[Experiment]:
    common = (*ROBUSTNESS, *settings)
    # Rules are told f all the same: it shows what protection costs while nobody lies.
    unattacked = (*common, *NOBODY)
    yield Experiment(f"{name}-none", file, "mnist-any", unattacked, ROBUST, "nobody lies")
    for attack in ATTACKS:
        attacked = (*common, f"attack.name={attack}")
        yield Experiment(f"{name}-{attack}", file, "mnist-any", attacked, ROBUST, attack)


def _ballots(name: str, *settings: str) -> Iterator[Experiment]:
    for ballot in BALLOTS:
        voted = (*ROBUSTNESS, *settings, f"attack.voters={ballot}")
        yield Experiment(
            f"{name}-{ballot}", "robustness-ballots", "mnist-any", voted, VOTES, ballot
        )


def _vote(setting: str, *settings: str) -> Iterator[Experiment]:
    common = (*SECOND_VOTE, *settings)
    for name, lie in LIES.items():
        yield Experiment(
            f"vote-{setting}-{name}", "vote", "mnist-any", (*common, *lie), COMPARED, name
        )


def _cifar_vote(size: int, *settings: str) -> Iterator[Experiment]:
    for name in CIFAR_LIES:
        yield Experiment(
            f"vote-cifar10-{size}-{name}",
            "vote-cifar10",
            "cifar10-any",
            (*CIFAR, *settings, *LIES[name]),
            ("mean", "holdout-1", "holdout"),
            name,
        )


def _cifar(name: str, says: str, *settings: str, **changes: Any) -> Experiment:
    given = {"panel": "cifar10", "rules": VOTES, "settings": (*CIFAR, *settings), **changes}
    return Experiment(name, "cifar10", says=says, **given)


_ALL = (
    Experiment("mnist-left", "mnist", "mnist-left"),
    Experiment("mnist-right", "mnist", "mnist-right"),
    # Any copy or every copy matters to the votes alone; the other curves are the right panel's.
    Experiment("mnist-any", "mnist", "mnist-any", rules=VOTES),
    Experiment("mnist-authors", "mnist", "mnist-authors", rules=AUTHORS_RULES),
    Experiment("mnist-authors-none", "mnist", "mnist-left", (BALANCED,), ("mean",)),
    _variant("calm", "nobody lies, and the rules know it", panel="mnist-left", rules=PAPER),
    _variant("reference", "the right panel, cut down to 60 rounds and m_c = 500"),
    _variant("samples-2000", "m_c = 2000", "vote.samples=2000", rules=VOTES),
    _variant("samples-100", "m_c = 100", "vote.samples=100", rules=VOTES),
    _variant(
        "redraw",
        "committees drawn again until honest workers are the majority",
        "federation.redraw_until_honest_majority=true",
    ),
    _variant(
        "gamma-krum",
        "γ searched against Krum, whatever is deployed",
        "attack.gamma=krum",
        rules=PAPER,
    ),
    _variant("gamma-1.75", "γ = 1.75", "attack.gamma=1.75", rules=PAPER),
    _variant("minus", "the lie on the other side: μ - γσ", "attack.direction=-1", rules=PAPER),
    _variant("overlapping", "proposers may vote too", "federation.disjoint=false"),
    _variant("coalition", "the liars know their own gradients only", "attack.knowledge=coalition"),
    _variant("last-round", "the liars know the last round only", "attack.knowledge=last-round"),
    _variant("third", "the rules are told f = 1/3: 10 liars of 30 instead of 9", THIRD),
    _variant("mild", "redraw, balanced classes, γ against Krum", *MILD, KRUM, rules=PAPER),
    _variant(
        "authors",
        "as in the authors' code: f = 1/3, redraw, balanced classes, γ against Krum by distances "
        "that are not squared, and such a Krum",
        *AUTHORS,
        rules=AUTHORS_RULES,
    ),
    _variant(
        "authors-squared",
        "the same, but Krum squares its distances, the deployed one too",
        *(THIRD, *MILD, KRUM),
        rules=("mean", *BASELINES),
    ),
    _variant(
        "authors-quorum",
        "as in the authors' code, and HoldOut's quorum the paper's: two thirds, not a majority",
        *AUTHORS,
        "vote.quorum=paper",
        rules=("holdout-1",),
    ),
    _variant(
        "told-f",
        "nobody lies, the rules are told f = 0.33",
        "federation.assumed_byzantine=0.33",
        panel="mnist-left",
    ),
    *_passing(),
    *_robustness("robustness", "robustness"),
    *_ballots("ballots"),
    *_robustness("dirichlet-0.5", "robustness-dirichlet", *SKEWED),
    *_robustness("dirichlet-0.1", "robustness-dirichlet", *VERY_SKEWED),
    *_ballots("dirichlet-0.5-ballots", *SKEWED),
    *_ballots("dirichlet-0.1-ballots", *VERY_SKEWED),
    *(experiment for name, chosen in SETTINGS.items() for experiment in _vote(name, *chosen)),
    *(e for size, chosen in CIFAR_COMMITTEES.items() for e in _cifar_vote(size, *chosen)),
    _cifar("cifar10-none", "nobody lies", settings=NOBODY, rules=("mean",)),
    _cifar("cifar10-all", "all copies must pass", rules=PAPER),
    _cifar("cifar10-any", "any copy suffices", panel="cifar10-any"),
    _cifar(
        "cifar10-redraw",
        "committees drawn again until honest workers are the majority",
        "federation.redraw_until_honest_majority=true",
        rules=(*BASELINES, *VOTES),
    ),
    _cifar(
        "cifar10-krum",
        "γ searched against Krum, whatever is deployed",
        "attack.gamma=krum",
        rules=(*BASELINES, *VOTES),
    ),
    _cifar("cifar10-1.75", "γ = 1.75", "attack.gamma=1.75", rules=PAPER),
    _cifar("cifar10-third", "told f = 1/3: 4 liars of 12 instead of 3", THIRD),
    _cifar("cifar10-mild", "redraw, balanced classes, γ against Krum", *MILD, KRUM, rules=PAPER),
    _cifar("cifar10-authors", "as in the authors' code", *AUTHORS, rules=AUTHORS_RULES),
    _cifar(
        "cifar10-authors-none",
        "balanced classes, nobody lies",
        settings=(*NOBODY, BALANCED),
        rules=("mean",),
    ),
    _cifar(
        "cifar10-authors-quorum",
        "as in the authors' code, quorum two thirds",
        *AUTHORS,
        "vote.quorum=paper",
        rules=("holdout-1",),
    ),
    _cifar(
        "cifar10-authors-1000", "as in the authors' code, m_c = 1000", *AUTHORS, "vote.samples=1000"
    ),
    _cifar("cifar10-raw", "inputs not normalised", RAW),
    _cifar(
        "cifar10-raw-none",
        "inputs not normalised, nobody lies",
        settings=(*NOBODY, RAW),
        rules=("mean",),
    ),
    _cifar("cifar10-100", "m_c = 100", "vote.samples=100"),
    _cifar("cifar10-1000", "m_c = 1000", "vote.samples=1000"),
)
EXPERIMENTS: Mapping[str, Experiment] = MappingProxyType({e.name: e for e in _ALL})


@dataclass(frozen=True, slots=True)
class Step:
    """One rule and seed, to be run until a round (None: to its end)."""

    experiment: Experiment
    rule: str
    seed: int
    until: int | None = None

    def folder(self, runs: Path) -> Path:
        """Its run folder."""
        return runs / self.experiment.name / f"{self.rule}-{self.seed}"


def steps(
    names: Sequence[str], *, seeds: Sequence[int], until: int | None = None
) -> Iterator[Step]:
    """All rules and seeds of the experiments, seed by seed: seed 0 of all of them comes first."""
    for seed in seeds:
        for name in names:
            experiment = EXPERIMENTS[name]
            for rule in experiment.rules:
                yield Step(experiment, rule, seed, until)


def names_of(*files: str) -> list[str]:
    """The names of the experiments in some results files, in the order of the table."""
    return [name for name, experiment in EXPERIMENTS.items() if experiment.file in files]


def queue() -> Iterator[Step]:
    """All steps, what matters most first; a curve may come up again, to be run further."""
    mnist, cifar = names_of("mnist"), names_of("cifar10")
    robustness = names_of("robustness", "robustness-ballots")
    switches = names_of("mnist-variants", "mnist-passing")
    # A first seed of everything, then what the paper's figures need, then more seeds of the rest.
    yield from steps(mnist, seeds=range(2))
    yield from steps([*robustness, *switches], seeds=[0])
    yield from steps(mnist, seeds=range(5))
    yield from steps([*robustness, *switches], seeds=range(3))
    for until in range(100, 401, 100):
        yield from steps(cifar, seeds=[0], until=until)
    yield from steps(names_of("robustness-dirichlet"), seeds=range(3))
    yield from steps(cifar, seeds=range(3))
    # Seeds that chose nothing: decision 15.
    yield from steps(names_of("vote"), seeds=range(3, 8))
    yield from steps(names_of("vote-cifar10"), seeds=range(3, 6))
