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
    """A value that both TOML and JSON can hold, which leaves out NaN and infinity."""
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
CustomName = Annotated[str, StringConstraints(pattern=r"^[^\s:]+:[^\s:]+$")]
DeviceName = Annotated[str, StringConstraints(pattern=r"^(cpu|cuda(:[0-9]{1,3})?|mps)$")]
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
    """What is compared, for how long and how often."""

    name: FolderName = "mnist-alie"
    """Names the run folder."""
    rules: Annotated[list[Name], Field(min_length=1)] = [
        "mean",
        "trimmed-mean",
        "krum",
        "holdout-paper",
        "holdout",
    ]
    """What is compared: names of `holdout.voting.VOTES` or `holdout.rules.RULES`; the latter may
    stand after pre-aggregations as in "nnm+krum"; a custom rule is named "package.module:name"."""
    rounds: Count = 100
    """How many rounds each curve has; the paper's T."""
    seeds: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)] = [0]
    """Every seed draws different liars, shards, committees and initial weights."""
    evaluate_every: Count = 5
    """After how many rounds the model is measured on the test rows; it always is before the first
    round and after the last one."""
    save_every: Annotated[int, Field(ge=0)] = 0
    """After how many rounds the model is kept, besides the final one; 0: the final one alone."""
    baseline: bool = True
    """Also run the mean without attack, the upper bound."""
    threads: Annotated[int, Field(ge=0, le=1024)] = 0
    """Threads of torch; 0 means one per core. Too many are far slower on shared cores."""
    device: DeviceName = "cpu"
    """Where torch computes: `cpu`, `cuda`, `cuda:1`, ... or `mps`."""


class DataSection(Section):
    """Which data, and who holds which rows."""

    name: Name = "mnist"
    """`mnist`, `cifar10`, `mnist-5k` (offline), `idx`, `npz`, or a loader "package.module:name"."""
    path: Name | None = None
    """The folder with the files; without it the cache is used, filled by a checked download."""
    normalise: bool = True
    """Shift and scale each channel by the mean and deviation of the training rows."""
    partition: (
        Literal["iid", "balanced", "dirichlet", "shards", "gamma", "extreme", "quantity", "file"]
        | CustomName
    ) = "iid"
    """How rows are spread over the workers: `iid`; `balanced`, `dirichlet`, `shards`, `gamma` and
    `extreme` by their labels; `quantity` unequally many; `file`; or "package.module:name"."""
    alpha: Annotated[float, Field(gt=0)] = 0.5
    """For `dirichlet`: the smaller, the fewer labels a worker sees. For `quantity`: the smaller,
    the more unequal the sizes."""
    labels_per_worker: Count = 2
    """For `shards`: how many labels a worker sees."""
    gamma: Annotated[float, Field(ge=0, le=1)] = 0.5
    """For `gamma`: the share of a worker's rows that is drawn at random; the others come from rows
    sorted by label. 1 amounts to `iid`, 0 is `extreme`."""
    partition_file: Name | None = None
    """For `file`: a JSON list with a list of row numbers for each worker, or an npz file with an
    array for each, named 0, 1, ..."""
    samples_per_worker: Count = 2000
    """The paper's m; for `quantity` the mean. If you give none: 2000, or what the data set allows
    (half of it, if it has fewer rows; where no two workers hold the same row, a fair share). No
    worker holds a row twice. A `file` or custom code sets its own sizes."""
    augment: CustomName | None = None
    """Changes each training batch, never the rows that voters judge by or the test rows:
    "package.module:name", a function (x, y, generator) -> (x, y)."""
    root_samples: Annotated[int, Field(ge=0)] = 0
    """How many clean training rows the server holds for itself, for rules that ask them (`fltrust`,
    `zeno`, a custom one); workers may hold the same rows. 0: none."""


class ModelSection(Section):
    """What is trained."""

    name: Name = "mlp"
    """A name of `holdout.learning.MODELS`, or a factory "package.module:name"."""


class TrainingSection(Section):
    """The SGD step."""

    batch_size: Count = 83
    """The paper's B. If you give none: 83, or what the largest shard allows. A worker that holds
    fewer rows takes all of them."""
    learning_rate: Annotated[float, Field(gt=0)] = 0.1
    """The paper's eta."""
    schedule: Literal["constant", "inverse", "step", "cosine"] | CustomName = "constant"
    """How eta_t follows from eta: `constant`; `inverse`, eta / t, the theorem's 1 / (2 alpha t);
    `step`; `cosine`; or "package.module:name", a function (t, rounds, eta) -> eta_t. Without a
    server t counts steps, not rounds."""
    milestones: list[Count] = []
    """For `step`: after each of these rounds the rate is multiplied by `factor`."""
    factor: Annotated[float, Field(gt=0)] = 0.1
    """For `step`: what the rate is multiplied by."""
    learning_rate_min: Annotated[float, Field(ge=0)] = 0.0
    """For `cosine`: where the rate would be one round after the last."""
    loss: Literal["cross-entropy", "mse"] | CustomName = "cross-entropy"
    """What training lowers and voters judge by: `cross-entropy` for labels, `mse` for real-valued
    targets, or "package.module:name", a function (outputs, targets) -> a loss for each sample."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """Adds this times the weights to each gradient of training; voters judge without it."""
    local_steps: Count = 1
    """How many steps of SGD a proposer takes; with more than one it sends a pseudo-gradient."""
    local_epochs: Annotated[int, Field(ge=0)] = 0
    """How many passes over its own rows a proposer makes, in place of `local_steps`; 0: none. With
    unequal shards a pass has more steps for some than for others."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Momentum of the server's step; voters still judge w - eta * g."""
    worker_momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Each worker sends m_i = beta m_i + (1 - beta) g_i, updated when it proposes; this is beta."""


class FederationSection(Section):
    """Who takes part, who lies, who is drawn."""

    mode: Literal["central", "decentralized"] = "central"
    """With a truthful server, or with workers that agree on each model over a simulated network."""
    workers: Count = 100
    """How many workers there are."""
    byzantine: Share = Fraction(33, 100)
    """How many of them lie: a share such as 0.33 or "1/3", or a whole number of workers."""
    assumed_byzantine: Share = Fraction(33, 100)
    """How many liars the rules expect, written the same way; the paper's f."""
    proposers: Count = 30
    """Workers drawn to propose in a round; without a server, their expected number."""
    voters: Count = 30
    """Workers drawn to vote in a round; without a server, their expected number."""
    disjoint: bool = True
    """Nobody both proposes and votes. Without a server draws are independent, so it is false."""
    redraw_until_honest_majority: bool = False
    """Draw again until most are honest, as the authors' experiments do; no real server can."""
    worker: Name | None = None
    """What takes the place of each honest worker: "package.module:name", called with it."""

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
        """B, the number of liars that agreement without a server must withstand."""
        return byzantine_count(self.assumed_byzantine, self.workers)


class VoteSection(Section):
    """How voters judge."""

    samples: Count = 2000
    """How many of its samples a voter judges by, drawn afresh each round; the paper's m_c. If you
    give none: 2000, or what the largest shard allows. A voter that holds fewer takes all."""
    screen: bool = True
    """For `holdout`: lies that agree with each other more than honest updates do lose weight."""
    memory: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """For `holdout`: the share of the last round's holdout direction in the next."""
    gate: Literal["median", "zero", "none"] = "median"
    """What an approved update must pass: `holdout.voting.Gate`. This key and those below apply to
    ballots that name proposals: the rule `holdout-1` and, without a server, `holdout`.
    `holdout-paper` votes as published."""
    quorum: Literal["majority", "paper"] = "majority"
    """How many approvals an update needs: `holdout.voting.Quorum`."""
    bound: bool = True
    """Scale long updates down before anybody scores or averages them."""
    scoring: Literal["exact", "first-order"] = "exact"
    """For `holdout-1`: with `first-order` a voter computes one gradient instead of N_p losses."""


class AttackSection(Section):
    """What Byzantine workers do; parameters that only the named attack has are further keys."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Annotated[Any, BeforeValidator(_plain)]]

    name: AttackName = "alie"
    """A name of `holdout.attacks.ATTACKS`, `none`, or "package.module:name"."""
    gamma: Annotated[float, Field(ge=0)] | Literal["adaptive", "krum", "krum-unsquared"] = (
        "adaptive"
    )
    """How far the lie goes: a number, `adaptive` (as far as the rule lets through), or as far as
    `krum` or `krum-unsquared` would."""
    gamma_max: Annotated[float, Field(ge=0)] = 30.0
    """How far an adaptive attacker goes at most."""
    passing: Literal["any", "all"] = "any"
    """Whether one copy of the lie must get through, or every copy."""
    direction: Annotated[Literal[1, -1], BeforeValidator(_whole)] = 1
    """The sign of the lie."""
    knowledge: Literal["omniscient", "coalition", "last-round"] = "omniscient"
    """What liars know of the honest updates: all, what their data suggests, or last round's."""
    voters: Name = "coalition"
    """How liars vote: a name of `holdout.attacks.BALLOT_ATTACKS`, or "package.module:name"."""
    equivocate: bool = False
    """Without a server: in each round half of the liars sign two versions of what they send."""
    onset: Count = 1
    """The first round in which they lie; in rounds without a lie they propose and vote honestly."""
    ramp: Annotated[int, Field(ge=0)] = 0
    """Over this many rounds what they send turns from honest work into the lie, step by step."""
    every: Count = 1
    """From the onset on they lie only in one round out of this many."""
    dormant: Annotated[int, Field(ge=0)] = 0
    """After this many rounds with a lie they work honestly for good; 0 means never."""

    @property
    def parameters(self) -> Mapping[str, object]:
        """The keys that only the named attack has."""
        return dict(self.__pydantic_extra__ or {})


class RulesSection(Section):
    """Parameters of rules and pre-aggregations: a table for each, by its name."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, dict[str, Annotated[Any, BeforeValidator(_plain)]]]

    @property
    def tables(self) -> Mapping[str, Mapping[str, object]]:
        """For each name the parameters of the function that it stands for."""
        return dict(self.__pydantic_extra__ or {})


class TrackSection(Section):
    """Where else a run is recorded while it goes on; each key needs a package of its own."""

    tensorboard: bool | Name = False
    """Files for TensorBoard: true puts them into the run folder, text names another folder."""
    mlflow: bool | Name = False
    """MLflow: text is its tracking URI, true means the one that MLflow itself would take."""
    wandb: Literal["off", "offline", "online"] = "off"
    """Weights & Biases: `offline` writes files to be sent later, `online` sends."""


class Config(Section):
    """A whole experiment: every key with its type, range and default, checked and immutable.

    A TOML file or a nested mapping names only what differs from the defaults. `holdout.run` takes
    either as it is, and reports all mistakes at once.

    >>> from holdout import Config
    >>> config = Config(experiment={"rounds": 20})
    >>> config.experiment.rounds, config.federation.workers
    (20, 100)
    >>> print(config.as_toml().splitlines()[0])
    [experiment]
    """

    experiment: ExperimentSection = ExperimentSection()
    data: DataSection = DataSection()
    model: ModelSection = ModelSection()
    training: TrainingSection = TrainingSection()
    federation: FederationSection = FederationSection()
    vote: VoteSection = VoteSection()
    attack: AttackSection = AttackSection()
    rules: RulesSection = RulesSection()
    track: TrackSection = TrackSection()

    def as_dict(self) -> dict[str, Any]:
        """Plain values, complete: what `config.toml` and `summary.json` hold."""
        values = self.model_dump(exclude_none=True)
        # A run without such parameters has no such section.
        return {key: value for key, value in values.items() if key != "rules" or value}

    def as_given(self) -> dict[str, Any]:
        """Only what was given: the rest is open, and may be chosen to fit the data."""
        return self.model_dump(exclude_none=True, exclude_unset=True)

    def as_toml(self) -> str:
        """The same values as a TOML document."""
        return tomli_w.dumps(self.as_dict())
