"""Every key of a config with its type, its range and its default."""

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    StringConstraints,
)

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


class ExperimentSection(Section):
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


class DataSection(Section):
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


class ModelSection(Section):
    """What is trained."""

    name: Name = "mlp"


class TrainingSection(Section):
    """The SGD step."""

    batch_size: Count = 83
    learning_rate: Annotated[float, Field(gt=0)] = 0.1
    schedule: Literal["constant", "inverse"] = "constant"
    """inverse: eta_t = learning_rate / t, the theorem's 1 / (2 alpha t)."""
    local_steps: Count = 1
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Of the server's step; candidates of a vote stay w - eta * g."""
    worker_momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """beta: each worker sends m_i = beta m_i + (1 - beta) g_i, updated when it proposes."""


class FederationSection(Section):
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


class VoteSection(Section):
    """How voters judge."""

    samples: Count = 2000
    """The paper's m_c: holdout samples, drawn afresh each round."""
    gate: Literal["median", "zero", "none"] = "median"
    """Of the rule `holdout`, like `quorum`, `bound` and `scoring`; `holdout-paper` has none."""
    quorum: Literal["majority", "paper"] = "majority"
    bound: bool = True
    scoring: Literal["exact", "first-order"] = "exact"
    """first-order: one gradient a voter instead of N_p evaluations."""


class AttackSection(Section):
    """What Byzantine workers do; an attack's own parameters are further keys."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Annotated[Any, BeforeValidator(_plain)]]

    name: AttackName = "alie"
    gamma: Annotated[float, Field(ge=0)] | Literal["adaptive", "krum", "krum-unsquared"] = (
        "adaptive"
    )
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

    experiment: ExperimentSection = ExperimentSection()
    data: DataSection = DataSection()
    model: ModelSection = ModelSection()
    training: TrainingSection = TrainingSection()
    federation: FederationSection = FederationSection()
    vote: VoteSection = VoteSection()
    attack: AttackSection = AttackSection()

    def as_dict(self) -> dict[str, Any]:
        """Plain values, complete: what `config.toml` and `summary.json` hold."""
        return self.model_dump(exclude_none=True)

    def as_toml(self) -> str:
        """The same as a TOML document."""
        return tomli_w.dumps(self.as_dict())
