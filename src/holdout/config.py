"""The config of an experiment: strict TOML into frozen values, all mistakes reported at once.

`parse` checks types, ranges and how the numbers fit each other. Whether a rule, attack, model or
data set of a given name exists, and whether a rule is feasible with these numbers, is known only
further up: `holdout.experiments.plan` adds those checks to the same list of mistakes.
"""

import difflib
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    StringConstraints,
    ValidationError,
)
from pydantic_core import ErrorDetails

from holdout.errors import ConfigError
from holdout.shares import byzantine_count, read_share, write_share


def _plain(value: object) -> object:
    """A value that TOML and JSON can both hold; NaN and infinity are none."""
    match value:
        case bool() | int() | str():
            return value
        case float() if math.isfinite(value):
            return value
        case list():
            return [_plain(item) for item in value]
        case dict() if all(isinstance(key, str) for key in value):
            return {key: _plain(item) for key, item in value.items()}
    raise ValueError("must be text, a finite number, true, false, or a list or table of these")


def _whole(value: object) -> object:
    """Python takes True and 1.0 for 1; we do not."""
    if type(value) is not int:
        raise ValueError("must be a whole number")
    return value


Share = Annotated[
    Fraction | int,
    BeforeValidator(read_share),
    PlainSerializer(write_share, return_type=float | int | str),
]
Count = Annotated[int, Field(ge=1)]
Name = Annotated[str, StringConstraints(min_length=1)]
FolderName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]


def _nan_as_name(value: object) -> object:
    """TOML takes the name of the attack `nan`, written without quotes, for a number."""
    return "nan" if isinstance(value, float) and math.isnan(value) else value


AttackName = Annotated[Name, BeforeValidator(_nan_as_name)]


class Section(BaseModel):
    """A table of the config: immutable, strictly typed, no unknown keys, nothing infinite."""

    model_config = ConfigDict(
        frozen=True, strict=True, extra="forbid", allow_inf_nan=False, validate_default=True
    )


class Experiment(Section):
    """What is compared, for how long, how often."""

    name: FolderName = "mnist-alie"
    """Names the run folder."""
    rules: Annotated[list[Name], Field(min_length=1)] = [
        "mean",
        "trimmed-mean",
        "krum",
        "holdout-paper",
        "holdout",
    ]
    rounds: Count = 100
    seeds: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)] = [0]
    """Each seed draws other liars, shards, committees and initial weights."""
    evaluate_every: Count = 5
    """Test accuracy is measured so often, and always after the last round."""
    baseline: bool = True
    """Also run the mean without attack: the upper bound."""
    threads: Annotated[int, Field(ge=0, le=1024)] = 0
    """Of torch; 0: one per core. Too many are far slower on shared cores."""


class Data(Section):
    """Which data, and who holds which rows."""

    name: Name = "mnist"
    path: Name | None = None
    """Folder with the standard files; without it the cache, then a checked download."""
    normalise: bool = True
    partition: Literal["iid", "balanced", "dirichlet", "shards"] = "iid"
    alpha: Annotated[float, Field(gt=0)] = 0.5
    """Dirichlet only: the smaller, the fewer labels a worker sees."""
    labels_per_worker: Count = 2
    """Shards only."""
    samples_per_worker: Count = 2000
    """The paper's m; without repetition inside a worker, workers may overlap."""


class Model(Section):
    """What is trained."""

    name: Name = "mlp"


class Training(Section):
    """The SGD step."""

    batch_size: Count = 83
    learning_rate: Annotated[float, Field(gt=0)] = 0.1
    schedule: Literal["constant", "inverse"] = "constant"
    """inverse: eta_t = learning_rate / t, the theorem's 1 / (2 alpha t)."""
    local_steps: Count = 1
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Of the server's step; candidates of a vote stay w - eta * g."""


class Federation(Section):
    """Who takes part, who lies, who is drawn."""

    mode: Literal["central", "decentralized"] = "central"
    """decentralized: no server; workers agree on each model over a simulated network."""
    workers: Count = 100
    byzantine: Share = Fraction(33, 100)
    """The true share."""
    assumed_byzantine: Share = Fraction(33, 100)
    """The f that the rules are told."""
    proposers: Count = 30
    voters: Count = 30
    disjoint: bool = True
    """Nobody both proposes and votes. Without a server draws are independent: there, false."""
    redraw_until_honest_majority: bool = False
    """What the authors' experiments do; no real server can."""

    @property
    def byzantine_workers(self) -> int:
        """How many workers are Byzantine."""
        return byzantine_count(self.byzantine, self.workers)

    @property
    def f(self) -> Fraction:
        """The assumed Byzantine fraction, exact."""
        if isinstance(self.assumed_byzantine, int):
            return Fraction(self.assumed_byzantine, self.workers)
        return self.assumed_byzantine

    @property
    def byzantine_assumed(self) -> int:
        """B, the number of liars that an agreement without a server must stand."""
        return byzantine_count(self.assumed_byzantine, self.workers)


class Vote(Section):
    """How voters judge."""

    samples: Count = 2000
    """The paper's m_c: holdout samples, drawn afresh each round."""
    gate: Literal["median", "zero", "none"] = "median"
    """Of the rule `holdout`, like `quorum`, `bound` and `scoring`; `holdout-paper` has none."""
    quorum: Literal["majority", "paper"] = "majority"
    bound: bool = True
    scoring: Literal["exact", "first-order"] = "exact"
    """first-order: one gradient a voter instead of N_p evaluations."""


class Attack(Section):
    """What Byzantine workers do; an attack's own parameters are further keys."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Annotated[Any, BeforeValidator(_plain)]]

    name: AttackName = "alie"
    gamma: Annotated[float, Field(ge=0)] | Literal["adaptive", "krum"] = "adaptive"
    gamma_max: Annotated[float, Field(ge=0)] = 30.0
    passing: Literal["any", "all"] = "any"
    direction: Annotated[Literal[1, -1], BeforeValidator(_whole)] = 1
    knowledge: Literal["omniscient", "coalition", "last-round"] = "omniscient"
    voters: Name = "coalition"
    equivocate: bool = False
    """Decentralized only: in each round half of the liars sign two versions of what they send."""

    @property
    def parameters(self) -> Mapping[str, object]:
        """The keys that only the named attack knows."""
        return dict(self.__pydantic_extra__ or {})


class Config(Section):
    """A whole experiment."""

    experiment: Experiment = Experiment()
    data: Data = Data()
    model: Model = Model()
    training: Training = Training()
    federation: Federation = Federation()
    vote: Vote = Vote()
    attack: Attack = Attack()

    def as_dict(self) -> dict[str, Any]:
        """Plain values, complete: what `config.toml` and `summary.json` hold."""
        return self.model_dump(exclude_none=True)

    def as_toml(self) -> str:
        """The same as a TOML document."""
        return tomli_w.dumps(self.as_dict())


@dataclass(frozen=True, slots=True)
class Parsed:
    """A config as far as it could be understood, and every mistake found so far.

    Keys with a mistake hold their default; `wrong` names them, so that later checks stay silent
    about what was complained of already.
    """

    config: Config
    problems: tuple[str, ...]
    wrong: frozenset[str]

    def checked(self) -> Config:
        """The config, or a ConfigError with all problems."""
        if self.problems:
            raise ConfigError(self.problems)
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
    problems.extend(
        message
        for keys, holds, message in _relations(config)
        if not wrong.intersection(keys) and not holds
    )
    return Parsed(config, tuple(problems), frozenset(wrong))


def _with_defaults_of_mode(values: dict[str, Any]) -> dict[str, Any]:
    """Two keys that are left out mean something else where there is no server."""
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
            return tomllib.load(file)
    except OSError as error:
        raise ConfigError([f"{path}: cannot be read ({error.strerror})"]) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError([f"{path}: not TOML ({error})"]) from error


def apply_settings(values: Mapping[str, Any], settings: list[str]) -> dict[str, Any]:
    """The values with each `section.key=value` put over them; values are TOML, or else text."""
    result = _deep_copy(values)
    problems = []
    for setting in settings:
        key, equals, text = setting.partition("=")
        parts = key.strip().split(".")
        if not equals or len(parts) != 2 or not all(parts):  # noqa: PLR2004
            problems.append(f"--set {setting}: must be section.key=value")
            continue
        section = result.setdefault(parts[0], {})
        if isinstance(section, dict):
            section[parts[1]] = _read_value(text.strip())
        else:
            problems.append(f"--set {setting}: {parts[0]} is no section")
    if problems:
        raise ConfigError([*problems, *parse(result).problems])
    return result


def _read_value(text: str) -> Any:
    try:
        values = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    # Text with a line break could smuggle in more than one value.
    return values["value"] if len(values) == 1 else text


def _relations(config: Config) -> list[tuple[tuple[str, ...], bool, str]]:
    """How numbers must fit each other: the keys involved, whether they do, what to say if not."""
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
        *_relations_of_mode(config),
    ]


def _relations_of_mode(config: Config) -> list[tuple[tuple[str, ...], bool, str]]:
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


def _describe(
    detail: ErrorDetails, section: str, names: Sequence[str], values: Mapping[str, Any]
) -> str:
    key = ".".join([section, *names])
    value = values.get(section, detail["input"])
    for name in names:
        value = value[name] if isinstance(value, Mapping) and name in value else detail["input"]
    message = detail["msg"].removeprefix("Value error, ").replace("Input should", "must")
    match detail["type"]:
        case "extra_forbidden":
            given = f" = {value!r}" if names else ""
            return f"{key}{given}: unknown key{_suggest(section, names)}"
        case "model_type" | "model_attributes_type":
            message = "must be a section"
        case "too_short" | "string_too_short":
            message = "must not be empty"
        case "string_pattern_mismatch":
            message = "must be letters, digits, '.', '_' and '-', starting with a letter or digit"
        case _ if key == "attack.gamma":
            message = 'must be a number that is not negative, "adaptive" or "krum"'
    return f"{key} = {value!r}: {message}"


def _suggest(section: str, names: Sequence[str]) -> str:
    fields: Mapping[str, Any] = Config.model_fields
    if names:
        owner = fields[section].annotation
        assert issubclass(owner, Section)  # noqa: S101
        fields = owner.model_fields
    close = difflib.get_close_matches(names[0] if names else section, list(fields), n=1)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; there are {', '.join(fields)}"


def _deep_copy(values: Mapping[str, Any]) -> dict[str, Any]:
    return {str(k): _deep_copy(v) if isinstance(v, Mapping) else v for k, v in values.items()}
