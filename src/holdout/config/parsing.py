"""From TOML, or mappings like it, to a config: every mistake is found before any is reported."""

import difflib
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeAlias

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from holdout.config.sections import Config, Section
from holdout.errors import ConfigError
from holdout.shares import write_share

BYTES_MAX = 1 << 20
"""A longer file is not a config; it may not even have an end."""

RULES = "rules"
"""The section that holds a table for each rule."""

Relation: TypeAlias = tuple[tuple[str, ...], bool, str]
"""The keys involved, whether they fit, and what to say if not."""


@dataclass(frozen=True, slots=True)
class Parsed:
    """A config as far as it could be understood, and every mistake found so far.

    Keys with a mistake hold their default; `wrong` names them, so that later checks stay silent
    about what has been reported already.
    """

    config: Config
    problems: tuple[str, ...]
    wrong: frozenset[str]
    misfits: tuple[str, ...] = ()
    """The problems that lie in a combination of values."""

    def checked(self) -> Config:
        """The config, or a ConfigError with all problems."""
        if self.problems:
            raise ConfigError(self.problems, misfits=self.misfits)
        return self.config


def parse(values: Mapping[str, Any]) -> Parsed:
    """Check nested plain values, as TOML gives them."""
    problems: list[str] = []
    wrong: set[str] = set()
    remaining = _with_defaults_of_mode(_deep_copy(values))
    try:
        config = Config.model_validate(remaining)
    except ValidationError as error:
        for detail in error.errors():
            # A union reports once for each alternative: the first two parts name the key.
            section, *names = (str(part) for part in detail["loc"][:2])
            key = ".".join([section, *names])
            if key not in wrong:
                problems.append(_describe(detail, section, names, remaining))
            wrong.add(key)
            if names and isinstance(remaining.get(section), dict):
                remaining[section].pop(names[0], None)
            else:
                remaining.pop(section, None)
        config = Config.model_validate(remaining)
    misfits = tuple(
        message
        for keys, holds, message in _relations(config)
        if not wrong.intersection(keys) and not holds
    )
    return Parsed(config, (*problems, *misfits), frozenset(wrong), misfits)


def _with_defaults_of_mode(values: dict[str, Any]) -> dict[str, Any]:
    """Fill in two keys whose defaults differ where there is no server."""
    federation = values.get("federation")
    if isinstance(federation, dict) and federation.get("mode") == "decentralized":
        federation.setdefault("disjoint", False)
        experiment = values.setdefault("experiment", {})
        if isinstance(experiment, dict):
            experiment.setdefault("rules", ["holdout"])
    return values


def read_file(path: Path) -> dict[str, Any]:
    """The values of a TOML file."""
    try:
        with path.open("rb") as file:
            content = file.read(BYTES_MAX + 1)
        if len(content) > BYTES_MAX:
            raise ConfigError([f"{path}: no config: it holds more than {BYTES_MAX} bytes"])
        # Some editors put a byte order mark in front, which TOML does not allow.
        return tomllib.loads(content.decode("utf-8-sig"))
    except OSError as error:
        raise ConfigError([f"{path}: cannot be read ({error.strerror})"]) from error
    except (ValueError, RecursionError) as error:
        raise ConfigError([f"{path}: not TOML ({error})"]) from error


def apply_settings(values: Mapping[str, Any], settings: list[str]) -> dict[str, Any]:
    """The values with settings put over them, as `--set` does on the command line.

    Args:
        values: A config as nested mappings; it is not changed.
        settings: Each is "section.key=value", where the value is TOML or else taken as text.

    >>> from holdout import apply_settings
    >>> apply_settings({"data": {"name": "mnist"}}, ["data.alpha=0.1", "attack.name=bomb"])
    {'data': {'name': 'mnist', 'alpha': 0.1}, 'attack': {'name': 'bomb'}}
    """
    result = _deep_copy(values)
    problems = []
    for setting in settings:
        key, equals, text = setting.partition("=")
        parts = path_of(key.strip())
        if not equals or len(parts) < 2 or not all(parts):  # noqa: PLR2004
            problems.append(f"--set {setting}: must be section.key=value")
            continue
        *path, last = parts
        section: Any = result
        for name in path:
            section = section.setdefault(name, {}) if isinstance(section, dict) else None
        if isinstance(section, dict):
            section[last] = read_value(text.strip())
        else:
            problems.append(f"--set {setting}: {'.'.join(path)} is not a section")
    if problems:
        raise ConfigError([*problems, *parse(result).problems])
    return result


def path_of(key: str) -> list[str]:
    """The names that lead to a value; that of a rule may hold dots itself.

    >>> path_of("data.alpha"), path_of("rules.my.module:trim.keep"), path_of("data.alpha.beta")
    (['data', 'alpha'], ['rules', 'my.module:trim', 'keep'], [])
    """
    section, _, rest = key.partition(".")
    if section == RULES and "." in rest:
        name, _, parameter = rest.rpartition(".")
        return [section, name, parameter]
    return [section, rest] if "." not in rest else []


def read_value(text: str) -> Any:
    """What a text stands for in TOML; the text itself if it is none."""
    try:
        values = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    # Text with a line break could smuggle in more than one value.
    return values["value"] if len(values) == 1 else text


_CUSTOM = 'custom code as "package.module:name"'
_TRACKED = "must be true, false or text that is not empty"
_MEANT: Mapping[str, str] = {
    "attack.gamma": 'must be a non-negative number, "adaptive", "krum" or "krum-unsquared"',
    "data.augment": f"must be {_CUSTOM}",
    "data.partition": "must be 'iid', 'balanced', 'dirichlet', 'shards', 'gamma', 'extreme', "
    f"'quantity', 'file' or {_CUSTOM}",
    "experiment.device": "must be 'cpu', 'cuda', 'cuda:1' or another number, or 'mps'",
    "training.loss": f"must be 'cross-entropy', 'mse' or {_CUSTOM}",
    "track.mlflow": _TRACKED,
    "track.tensorboard": _TRACKED,
    "training.schedule": f"must be 'constant', 'inverse', 'step', 'cosine' or {_CUSTOM}",
}
"""Messages for unions and patterns, for which pydantic's own are poor."""


def _describe(
    detail: ErrorDetails, section: str, names: Sequence[str], values: Mapping[str, Any]
) -> str:
    key = ".".join([section, *names])
    value = values.get(section, detail["input"])
    for name in names:
        value = value[name] if isinstance(value, Mapping) and name in value else detail["input"]
    message = plain_message(detail)
    match detail["type"]:
        case "extra_forbidden":
            given = f" = {value!r}" if names else ""
            return f"{key}{given}: unknown key{_suggest(section, names)}"
        case "model_type" | "model_attributes_type":
            message = "must be a section"
        case "dict_type":
            message = "must be a table of parameters"
        case "too_short" | "string_too_short":
            message = "must not be empty"
        case _ if key in _MEANT:
            message = _MEANT[key]
        case "string_pattern_mismatch":
            message = (
                "must consist of letters, digits, '.', '_' and '-', "
                "and start with a letter or digit"
            )
    return f"{key} = {value!r}: {message}"


def plain_message(detail: ErrorDetails) -> str:
    """What pydantic says of a mistake, in our words."""
    message = detail["msg"].removeprefix("Value error, ")
    return message.replace("Input should", "must").replace("String should", "must")


def _suggest(section: str, names: Sequence[str]) -> str:
    fields: Mapping[str, Any] = Config.model_fields
    if names:
        owner = fields[section].annotation
        assert issubclass(owner, Section)  # noqa: S101
        fields = owner.model_fields
    close = difflib.get_close_matches(names[0] if names else section, list(fields), n=1)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; the {'keys' if names else 'sections'} are {', '.join(fields)}"


def _deep_copy(values: Mapping[str, Any]) -> dict[str, Any]:
    return {str(k): _deep_copy(v) if isinstance(v, Mapping) else v for k, v in values.items()}


def _relations(config: Config) -> list[Relation]:
    """How the values must fit each other, whatever each is by itself."""
    federation, vote = config.federation, config.vote
    workers, proposers, voters = federation.workers, federation.proposers, federation.voters
    rules, seeds = config.experiment.rules, config.experiment.seeds
    drawn = ("federation.proposers", "federation.voters", "federation.workers")
    majorities = (proposers // 2 + 1, voters // 2 + 1)
    honest_needed = sum(majorities) if federation.disjoint else max(majorities)
    return [
        (
            ("experiment.rules",),
            len(set(rules)) == len(rules),
            f"experiment.rules = {rules}: must name each rule once",
        ),
        (
            ("experiment.seeds",),
            len(set(seeds)) == len(seeds),
            f"experiment.seeds = {seeds}: must name each seed once",
        ),
        (
            (*drawn, "federation.disjoint"),
            not federation.disjoint or proposers + voters <= workers,
            f"federation.proposers + federation.voters = {proposers} + {voters}: must be at "
            f"most federation.workers = {workers} when federation.disjoint = true",
        ),
        (
            (*drawn, "federation.disjoint"),
            federation.disjoint or max(proposers, voters) <= workers,
            f"federation.proposers, federation.voters = {proposers}, {voters}: must each be "
            f"at most federation.workers = {workers}",
        ),
        (
            ("federation.byzantine", "federation.workers"),
            federation.byzantine_workers <= workers,
            f"federation.byzantine = {write_share(federation.byzantine)}: must be at most the "
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
        *_size_relations(config),
        (
            ("vote.scoring", "vote.bound"),
            vote.scoring == "exact" or vote.bound,
            "vote.scoring = 'first-order': needs vote.bound = true, since a linear score rewards "
            "ever longer updates",
        ),
        *_mode_relations(config),
    ]


def _size_relations(config: Config) -> list[Relation]:
    """How training and its data must fit; sizes that were not given are chosen later, to fit."""
    data, training, vote = config.data, config.training, config.vote
    given = {
        key: value
        for section, key, value in (
            (training, "training.batch_size", training.batch_size),
            (vote, "vote.samples", vote.samples),
        )
        if key.partition(".")[2] in section.model_fields_set
    }
    unequal = data.partition in ("quantity", "file") or ":" in data.partition
    return [
        *(
            (
                (key, "data.samples_per_worker", "data.partition"),
                unequal or value <= data.samples_per_worker,
                f"{key} = {value}: must be at most data.samples_per_worker = "
                f"{data.samples_per_worker}",
            )
            for key, value in given.items()
        ),
        (
            ("data.partition", "data.partition_file"),
            data.partition != "file" or data.partition_file is not None,
            "data.partition = 'file': data.partition_file must name the file",
        ),
        (
            ("training.local_steps", "training.local_epochs"),
            not training.local_epochs or training.local_steps == 1,
            f"training.local_epochs = {training.local_epochs}: must be 0 where "
            f"training.local_steps = {training.local_steps} says how far a proposer goes",
        ),
        (
            ("training.schedule", "training.milestones"),
            training.schedule != "step" or bool(training.milestones),
            "training.schedule = 'step': training.milestones must name at least one round",
        ),
        (
            ("training.milestones",),
            training.milestones == sorted(set(training.milestones)),
            f"training.milestones = {training.milestones}: must grow from one to the next",
        ),
        (
            ("training.learning_rate_min", "training.learning_rate"),
            training.schedule != "cosine" or training.learning_rate_min <= training.learning_rate,
            f"training.learning_rate_min = {training.learning_rate_min}: must be at most "
            f"training.learning_rate = {training.learning_rate}",
        ),
    ]


def _mode_relations(config: Config) -> list[Relation]:
    """What agreement without a server needs, and what has a meaning in only one of the modes."""
    federation, liars = config.federation, config.federation.byzantine_workers
    workers, assumed = federation.workers, federation.byzantine_assumed
    if federation.mode == "central":
        return [
            (
                ("attack.equivocate",),
                not config.attack.equivocate,
                "attack.equivocate = true: needs federation.mode = 'decentralized', since a server "
                "accepts only one version",
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
            "since there is no server to keep it",
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


def with_defaults(values: dict[str, Any], *, like: Mapping[str, Any]) -> dict[str, Any]:
    """The values, with the defaults of keys that only `like` has, newer than the folder."""
    parsed = parse(values)
    if parsed.problems:
        return values
    defaults = parsed.config.as_dict()
    return {
        section: {k: v for k, v in defaults[section].items() if k in like.get(section, {})}
        | values.get(section, {})
        for section in {**values, **like}
    }
