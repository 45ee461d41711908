"""From a config to what will be run: names looked up, mistakes reported, nothing done yet.

Own rules, attacks, models, data and workers are passed as objects (`Own`) or named in the config as
"package.module:name".
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_type_hints

import torch
from pydantic import ConfigDict, TypeAdapter, ValidationError
from torch import Tensor

from holdout.attacks import ATTACKS, BALLOT_ATTACKS, Attack, BallotAttack
from holdout.config import Config, Parsed, parse
from holdout.data.datasets import NAMES, Dataset, dataset_from, load, standardised
from holdout.data.partition import partition
from holdout.dotted import resolve
from holdout.errors import (
    ConfigError,
    DataError,
    DottedNameError,
    InfeasibleError,
    ModelError,
    PluginError,
)
from holdout.experiments.curves import NO_ATTACK
from holdout.ids import WorkerId
from holdout.learning import vector
from holdout.learning.models import MODELS, ModelFactory, build
from holdout.rules import RULES, Rule
from holdout.seeds import stream
from holdout.shares import write_share
from holdout.simulation.stage import Curve, Federation
from holdout.voting import Gate, Quorum, Terms, approve_count, draw_byzantine
from holdout.workers import HonestWorker, Recipe, Shard, Worker

VOTES = ("holdout-paper", "holdout")
CENTRAL = "holdout-central"
"""In mode `decentralized`: the same setting with a truthful server, for comparison."""
NEED_PATH = ("idx", "npz")
TRAINING_ROWS = {"mnist": 60_000, "cifar10": 50_000, "mnist-5k": 4_000}


@dataclass(frozen=True, slots=True)
class Own:
    """Code of the user's, as objects."""

    rules: Mapping[str, Rule] = field(default_factory=dict)
    attack: Attack | None = None
    ballots: BallotAttack | None = None
    model: ModelFactory | None = None
    data: Dataset | tuple[Any, Any, Any, Any] | None = None
    """A data set, or the arrays x_train, y_train, x_test, y_test; normalised as the config says."""
    worker: Callable[[HonestWorker], Worker] | None = None
    """Wraps or replaces each honest worker."""


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """An experiment that can be run: the curves of one seed after the other."""

    config: Config
    curves: Sequence[tuple[Curve, int]]
    """Each curve with its seed, in the order in which they are run."""
    own: Own
    factory: ModelFactory
    dataset: Dataset

    def federation(self, curve: Curve, seed: int) -> Federation:
        """Shards, liars and initial weights of a seed."""
        config, dataset = self.config, self.dataset
        workers = config.federation.workers
        byzantine: frozenset[WorkerId] = frozenset()
        if curve.act is not None:
            byzantine = draw_byzantine(workers, config.federation.byzantine_workers, seed)
        model = build(
            self.factory,
            dataset.shape,
            dataset.classes,
            seed=stream(seed, "weights").generator_seed(),
        )
        return Federation(
            config=config,
            seed=seed,
            model=model,
            initial_weights=vector.flatten(model),
            workers=self._workers(curve, seed, model, byzantine),
            byzantine=byzantine,
            x_test=dataset.x_test,
            y_test=dataset.y_test,
        )

    def _workers(
        self, curve: Curve, seed: int, model: torch.nn.Module, byzantine: frozenset[WorkerId]
    ) -> list[Worker]:
        config, dataset = self.config, self.dataset
        rows = partition(
            config.data.partition,
            dataset.y_train.numpy(),
            workers=config.federation.workers,
            samples_per_worker=config.data.samples_per_worker,
            classes=dataset.classes,
            seed=seed,
            alpha=config.data.alpha,
            labels_per_worker=config.data.labels_per_worker,
        )
        recipe = Recipe(
            config.training.batch_size, config.training.local_steps, config.vote.samples
        )
        poisoned = _poisoned(curve.act, dataset)
        workers: list[Worker] = []
        for number, own_rows in enumerate(rows):
            worker_id = WorkerId(number)
            labels = poisoned if worker_id in byzantine else dataset.y_train
            shard = Shard(dataset.x_train, labels, torch.from_numpy(own_rows))
            worker = HonestWorker(worker_id, model, shard, recipe, seed)
            honest = worker_id not in byzantine
            workers.append(self._own_worker(worker) if honest else worker)
        return workers

    def _own_worker(self, worker: HonestWorker) -> Worker:
        if self.own.worker is None:
            return worker
        try:
            made = self.own.worker(worker)
        except Exception as error:
            raise PluginError(f"own worker raised {type(error).__name__}: {error}") from error
        if not all(callable(getattr(made, name, None)) for name in ("propose", "vote")):
            raise PluginError(f"own worker must have propose and vote; got {type(made)!r}")
        return made


def make_plan(config: Config | Mapping[str, Any], own: Own | None = None) -> Plan:
    """Look everything up and load the data; a ConfigError lists all mistakes found."""
    own = own or Own()
    values = config.as_dict() if isinstance(config, Config) else dict(config)
    parsed = parse(_with_names(values, own))
    checks = _Checks(parsed, own)
    checks.own_names()
    curves = checks.curves()
    factory = checks.factory()
    checks.data_name()
    if parsed.problems or checks.problems:
        raise ConfigError([*parsed.problems, *checks.problems])
    config = parsed.config
    dataset = _load(config, own)
    plan = Plan(config, curves, own, factory, dataset)
    _check_fit(plan)
    return plan


def _load(config: Config, own: Own) -> Dataset:
    if own.data is None:
        path = Path(config.data.path) if config.data.path else None
        return load(config.data.name, path=path, normalise=config.data.normalise)
    dataset = own.data if isinstance(own.data, Dataset) else dataset_from("own", own.data)
    return standardised(dataset) if config.data.normalise else dataset


def terms_of(config: Config, rule: str) -> Terms:
    """The terms of the vote that a rule's name stands for."""
    if rule == "holdout-paper":
        # Without a server the bound is part of the chain, whatever the ballots look like.
        return replace(Terms.paper(config.federation.f), bound=is_decentralized(config, rule))
    return Terms(
        config.federation.f,
        gate=Gate(config.vote.gate),
        quorum_kind=Quorum(config.vote.quorum),
        bound=config.vote.bound,
        first_order=config.vote.scoring == "first-order",
    )


def is_decentralized(config: Config, rule: str) -> bool:
    """Whether the rule is run without a server; the unattacked mean never is."""
    return config.federation.mode == "decentralized" and rule in VOTES


class _Checks:
    """Look-ups that collect problems instead of raising them."""

    def __init__(self, parsed: Parsed, own: Own) -> None:
        self.config = parsed.config
        self.wrong = parsed.wrong
        self.own = own
        self.problems: list[str] = []

    def own_names(self) -> None:
        """A name that is taken would tell results of different rules apart no more."""
        taken = {*RULES, *VOTES, CENTRAL}
        self.problems.extend(
            f"own rule {name!r}: the name is taken by a built-in rule"
            for name in self.own.rules
            if name in taken
        )
        listed = self.config.experiment.rules
        self.problems.extend(
            f"own rule {name!r}: experiment.rules must list it; got {listed}"
            for name in self.own.rules
            if name not in listed and "experiment.rules" not in self.wrong
        )
        if self.own.attack is not None and self.config.attack.name == NO_ATTACK:
            self.problems.append(f"own attack {NO_ATTACK!r}: the name means that nobody lies")

    def curves(self) -> list[tuple[Curve, int]]:
        experiment = self.config.experiment
        act, ballot_attack = self._attack(), self._ballot_attack()
        lie = self.config.attack.name if act is not None else NO_ATTACK
        curves = [
            Curve(rule, method, lie, act, ballot_attack)
            for rule in experiment.rules
            if (method := self._method(rule)) is not None
        ]
        upper = Curve("mean", RULES["mean"], NO_ATTACK, None, BALLOT_ATTACKS["honest"])
        if experiment.baseline and not any(
            (c.rule, c.attack) == ("mean", lie) and act is None for c in curves
        ):
            curves.insert(0, upper)
        return [(curve, seed) for seed in experiment.seeds for curve in curves]

    def factory(self) -> ModelFactory:
        name = self.config.model.name
        if self.own.model is not None:
            return self.own.model
        return self._look_up("model.name", name, MODELS) or MODELS["mlp"]

    def data_name(self) -> None:
        name, known = self.config.data.name, dict.fromkeys(NAMES)
        if self.own.data is None:
            if ":" in name:
                self._resolve("data.name", name)
            elif name not in known:
                self._unknown("data.name", name, known)
            elif name in NEED_PATH and not self.config.data.path and "data.path" not in self.wrong:
                self.problems.append(f"data.name = {name!r}: data.path must say where the data is")
        rows, limit = self.config.data.samples_per_worker, TRAINING_ROWS.get(name)
        if self.own.data is None and limit is not None and rows > limit:
            self.problems.append(
                f"data.samples_per_worker = {rows}: at most the {limit} training rows of {name}"
            )

    def _method(self, rule: str) -> Rule | Terms | None:
        if rule in VOTES:
            return terms_of(self.config, rule)
        if self.config.federation.mode == "decentralized":
            if rule == CENTRAL:
                return terms_of(self.config, rule)
            self._no_server(rule)
            return None
        if rule in self.own.rules:
            return self.own.rules[rule]
        found: Rule | None = self._look_up("experiment.rules", rule, RULES, also=VOTES)
        if found is not None and rule in RULES:
            self._check_feasible(rule, found)
        return found

    def _no_server(self, rule: str) -> None:
        if "experiment.rules" not in self.wrong:
            self.problems.append(
                f"experiment.rules = {rule!r}: not in federation.mode = 'decentralized', where "
                f"workers vote; there are {', '.join(VOTES)} and, with a server for comparison, "
                f"{CENTRAL}"
            )

    def _check_feasible(self, rule: str, function: Rule) -> None:
        involved = ("proposers", "assumed_byzantine", "workers")
        if self.wrong.intersection({"federation", *(f"federation.{key}" for key in involved)}):
            return
        n, f = self.config.federation.proposers, self.config.federation.f
        if f >= Fraction(1, 2):  # Refused already, whatever the rule.
            return
        try:
            function(torch.zeros(n, 1), f=n - approve_count(n, f))
        except InfeasibleError as error:
            self.problems.append(
                f"experiment.rules = {rule!r}: infeasible with federation.proposers = {n} and "
                f"federation.assumed_byzantine = {write_share(f)}: {error}"
            )

    def _attack(self) -> Attack | None:
        settings = self.config.attack
        if self.own.attack is not None:
            self._no_parameters(settings.parameters)
            return self.own.attack
        if settings.name == NO_ATTACK:
            self._no_parameters(settings.parameters)
            return None
        kind = self._look_up("attack.name", settings.name, ATTACKS, also=(NO_ATTACK,))
        if kind is None:
            return None
        common = {
            "gamma": settings.gamma,
            "gamma_max": settings.gamma_max,
            "direction": settings.direction,
        }
        if settings.name in ATTACKS:
            return self._built_in_attack(kind, common, settings.parameters)
        return self._own_attack(kind, common, settings.parameters)

    def _built_in_attack(
        self, kind: Callable[..., Attack], common: Mapping[str, Any], own: Mapping[str, Any]
    ) -> Attack | None:
        fields = get_type_hints(kind)
        self._no_parameters({k: v for k, v in own.items() if k not in fields}, known=fields)
        given = {k: v for k, v in {**common, **own}.items() if k in fields}
        before = len(self.problems)
        for key, value in given.items():
            try:
                TypeAdapter(fields[key], config=ConfigDict(strict=True)).validate_python(value)
            except ValidationError as error:
                message = error.errors()[0]["msg"].replace("Input should", "must")
                self.problems.append(f"attack.{key} = {value!r}: {message}")
        return kind(**given) if len(self.problems) == before else None

    def _own_attack(
        self, kind: Callable[..., Any], common: Mapping[str, Any], own: Mapping[str, Any]
    ) -> Attack | None:
        """A class is made with its parameters; a function is called with them and the view."""
        try:
            fields = inspect.signature(kind).parameters
        except ValueError:  # Some built-in types do not tell.
            fields = MappingProxyType({})
        self._no_parameters({k: v for k, v in own.items() if k not in fields}, known=fields)
        given = {k: v for k, v in {**common, **own}.items() if k in fields}
        if not isinstance(kind, type):
            return partial(kind, **given) if given else kind
        made: Attack | None = self._made("attack.name", self.config.attack.name, kind, given)
        return made

    def _made(self, key: str, name: str, kind: type, given: Mapping[str, Any]) -> Any:
        """An object of an own class, which must be callable with a view."""
        try:
            made = kind(**given)
        except Exception as error:  # noqa: BLE001
            self.problems.append(f"{key} = {name!r}: {type(error).__name__}: {error}")
            return None
        if not callable(made):
            self.problems.append(f"{key} = {name!r}: an attack must be callable with a View")
            return None
        return made

    def _ballot_attack(self) -> BallotAttack:
        if self.own.ballots is not None:
            return self.own.ballots
        name = self.config.attack.voters
        found = self._look_up("attack.voters", name, BALLOT_ATTACKS)
        if isinstance(found, type):
            found = self._made("attack.voters", name, found, {})
        return found or BALLOT_ATTACKS["honest"]

    def _no_parameters(
        self, unknown: Mapping[str, Any], known: Mapping[str, Any] | None = None
    ) -> None:
        name = self.config.attack.name
        has = f"it has {', '.join(known)}" if known else "it has none"
        self.problems.extend(
            f"attack.{key} = {value!r}: unknown key; not a parameter of {name!r} ({has})"
            for key, value in unknown.items()
        )

    def _look_up(
        self, key: str, name: str, known: Mapping[str, Any], *, also: Sequence[str] = ()
    ) -> Any:
        if key in self.wrong:
            return None
        if ":" in name:
            return self._resolve(key, name)
        if name not in known:
            self._unknown(key, name, {**known, **dict.fromkeys(also)})
            return None
        return known[name]

    def _unknown(self, key: str, name: str, known: Mapping[str, Any]) -> None:
        self.problems.append(
            f'{key} = {name!r}: unknown; there are {", ".join(known)} or "package.module:name"'
        )

    def _resolve(self, key: str, name: str) -> Any:
        try:
            found = resolve(name)
        except DottedNameError as error:
            self.problems.append(f"{key} = {name!r}: {error}")
            return None
        if not callable(found):
            self.problems.append(f"{key} = {name!r}: must be callable; got {type(found).__name__}")
            return None
        return found


def _with_names(values: Mapping[str, Any], own: Own) -> dict[str, Any]:
    """The values with the names of own objects in place, so that a run folder tells of them."""
    named = {
        "attack": ("name", own.attack),
        "model": ("name", own.model),
        "data": ("name", own.data),
    }
    result = dict(values)
    for section, (key, thing) in named.items():
        if thing is not None and isinstance(result.get(section, {}), Mapping):
            result[section] = {**result.get(section, {}), key: _name_of(thing)}
    if own.ballots is not None and isinstance(result.get("attack", {}), Mapping):
        result["attack"] = {**result.get("attack", {}), "voters": _name_of(own.ballots)}
    return result


def _name_of(thing: object) -> str:
    if isinstance(thing, tuple):
        return "own"
    name = getattr(thing, "name", None) or getattr(thing, "__name__", None)
    return str(name or type(thing).__name__)


def _poisoned(act: Attack | None, dataset: Dataset) -> Tensor:
    poison = getattr(act, "poison_labels", None)
    labels = dataset.y_train
    if poison is None:
        return labels
    try:
        poisoned = poison(labels.clone(), dataset.classes)
    except Exception as error:
        raise PluginError(f"poison_labels raised {type(error).__name__}: {error}") from error
    if not isinstance(poisoned, Tensor) or (poisoned.shape, poisoned.dtype) != (
        labels.shape,
        labels.dtype,
    ):
        raise PluginError(f"poison_labels must return {len(labels)} labels of int64")
    return poisoned


def _check_fit(plan: Plan) -> None:
    """What can only be seen with the data at hand: shards and model must fit it."""
    config, dataset = plan.config, plan.dataset
    problems = []
    curve, seed = plan.curves[0]
    if config.data.samples_per_worker > len(dataset.y_train):
        problems.append(
            f"data.samples_per_worker = {config.data.samples_per_worker}: at most the "
            f"{len(dataset.y_train)} training rows of {dataset.name}"
        )
    if config.data.partition == "shards" and config.data.labels_per_worker > dataset.classes:
        problems.append(
            f"data.labels_per_worker = {config.data.labels_per_worker}: at most the "
            f"{dataset.classes} classes of {dataset.name}"
        )
    if not problems:
        try:
            model = plan.federation(curve, seed).model
            for attacked, _ in plan.curves:
                getattr(attacked.act, "check_model", _accept)(model)
        except (ModelError, DataError) as error:
            key = "model.name" if isinstance(error, ModelError) else "data.partition"
            value = config.model.name if isinstance(error, ModelError) else config.data.partition
            problems.append(f"{key} = {value!r}: {error}")
    if problems:
        raise ConfigError(problems)


def _accept(model: torch.nn.Module) -> None:
    """An attack that works with any model."""
