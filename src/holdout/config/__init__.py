"""The config of an experiment: strict TOML into frozen values, all mistakes reported at once.

`parse` checks types and ranges (`sections`) and how the values fit each other. Whether a rule,
attack, model or data set of a given name exists, and whether a rule is feasible with these numbers,
is known only further up: `holdout.experiments.plan` adds those checks to the same list of mistakes.
"""

from holdout.config.parsing import (
    Parsed,
    apply_settings,
    parse,
    plain_message,
    read_file,
    with_defaults,
)
from holdout.config.sections import (
    AttackSection,
    Config,
    DataSection,
    ExperimentSection,
    FederationSection,
    ModelSection,
    Section,
    Share,
    TrackSection,
    TrainingSection,
    VoteSection,
)

__all__ = [
    "AttackSection",
    "Config",
    "DataSection",
    "ExperimentSection",
    "FederationSection",
    "ModelSection",
    "Parsed",
    "Section",
    "Share",
    "TrackSection",
    "TrainingSection",
    "VoteSection",
    "apply_settings",
    "parse",
    "plain_message",
    "read_file",
    "with_defaults",
]
