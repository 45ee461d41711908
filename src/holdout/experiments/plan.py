"""From a config to what will be run: mistakes reported, data loaded, nothing done yet."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from holdout import device
from holdout.attacks import Attack, Triggering
from holdout.config import Config, parse
from holdout.curve_rows import CurveKey
from holdout.custom_code import describe, guard, refused, untouched
from holdout.data.datasets import Dataset, Shard, dataset_from, load, standardised
from holdout.dotted import resolve
from holdout.errors import ConfigError, DataError, ModelError, UserError
from holdout.experiments.memory import bytes_free, too_much
from holdout.experiments.plugins import Plugins
from holdout.experiments.resolve_names import Lookups
from holdout.experiments.sizes_fit import fit_sizes, shards_of, with_fewest_rows
from holdout.experiments.trackers import missing_packages
from holdout.federation.root_set import draw_root
from holdout.federation.round_setup import Curve, Federation
from holdout.ids import WorkerId
from holdout.learning import vector
from holdout.learning.losses import Loss, find_loss
from holdout.learning.models import ModelFactory, build
from holdout.rules import Rule
from holdout.seeds import stream
from holdout.tracebacks import is_custom
from holdout.voting import draw_byzantine
from holdout.workers import HonestWorker, Recipe, Worker, is_plain


@dataclass(frozen=True, slots=True, eq=False)
class ExperimentPlan:
    """An experiment that can be run: the curves of one seed after the other."""

    config: Config
    curves: Sequence[tuple[Curve, int]]
    """Each curve with its seed, in the order in which they are run."""
    plugins: Plugins
    factory: ModelFactory
    dataset: Dataset
    rates: Sequence[float]
    """The learning rates of the rounds, as far as they change: a custom schedule is asked once."""

    @property
    def keys(self) -> list[CurveKey]:
        """What tells each of the curves from the others."""
        return [CurveKey(curve.rule, curve.attack, seed) for curve, seed in self.curves]

    def federation(self, curve: Curve, seed: int) -> Federation:
        """Shards, liars and initial weights of a seed."""
        config, dataset = self.config, self.dataset
        workers = config.federation.workers
        byzantine: frozenset[WorkerId] = frozenset()
        if curve.act is not None:
            byzantine = draw_byzantine(workers, config.federation.byzantine_workers, seed)
        loss = find_loss(config.training.loss)
        model = self.model(seed)
        return Federation(
            config=config,
            seed=seed,
            model=model,
            initial_weights=vector.flatten(model),
            workers=self._workers(curve, seed, model, byzantine, loss),
            labels=dataset.y_train,
            byzantine=byzantine,
            x_test=dataset.x_test,
            y_test=dataset.y_test,
            loss=loss,
            pool=(dataset.x_train, dataset.y_train, dataset.x_test, dataset.y_test),
            classes=dataset.classes,
            root=draw_root(dataset.x_train, dataset.y_train, config.data.root_samples, seed=seed),
            trigger=self._trigger,
            rates=self.rates,
        )

    def model(self, seed: int) -> torch.nn.Module:
        """The model with the initial weights of a seed."""
        return build(
            self.factory,
            self.dataset.shape,
            self.dataset.outputs,
            seed=stream(seed, "weights").generator_seed(),
        )

    @property
    def _trigger(self) -> Triggering | None:
        return self.attack if isinstance(self.attack, Triggering) else None

    @property
    def attack(self) -> Attack | None:
        """What liars do; None if nobody lies."""
        return next((curve.act for curve, _ in self.curves if curve.act is not None), None)

    def _workers(
        self,
        curve: Curve,
        seed: int,
        model: torch.nn.Module,
        byzantine: frozenset[WorkerId],
        loss: Loss,
    ) -> list[Worker]:
        dataset = self.dataset
        rows, recipe = shards_of(self.config, dataset, seed), _recipe(self.config, loss)
        poisoned = _poisoned(curve.act, dataset)
        workers: list[Worker] = []
        for number, rows_of_one in enumerate(rows):
            worker_id = WorkerId(number)
            labels = poisoned if worker_id in byzantine else dataset.y_train
            shard = Shard(dataset.x_train, labels, device.from_numpy(rows_of_one))
            worker = HonestWorker(worker_id, model, shard, recipe, seed)
            honest = worker_id not in byzantine
            workers.append(self._custom_worker(worker) if honest else worker)
        return workers

    def _custom_worker(self, worker: HonestWorker) -> Worker:
        if self.plugins.worker is None:
            return worker
        factory, shard = self.plugins.worker, worker.shard
        # Whatever it does to the model and the rows that it is given, others have their own.
        given = replace(
            worker,
            model=copy.deepcopy(worker.model),
            shard=replace(shard, rows=shard.rows.clone()),
        )
        with untouched("custom worker", (shard.x, shard.y), factory):
            made: Worker = guard("custom worker", lambda: factory(given), factory)
        if not all(callable(getattr(made, name, None)) for name in ("propose", "vote")):
            raise refused(f"custom worker must have propose and vote; got {type(made)!r}", factory)
        # Workers that are computed together share a model.
        return replace(made, model=worker.model) if is_plain(made) else made


def _recipe(config: Config, loss: Loss) -> Recipe:
    training, augment = config.training, config.data.augment
    found: Any = None if augment is None else resolve(augment)
    return Recipe(
        training.batch_size,
        training.local_steps,
        config.vote.samples,
        local_epochs=training.local_epochs,
        weight_decay=training.weight_decay,
        loss=loss,
        augment=found,
    )


def make_plan(
    config: Config | Mapping[str, Any],
    plugins: Plugins | None = None,
    *,
    load_data: Callable[[Config, Plugins], Dataset] | None = None,
) -> ExperimentPlan:
    """Look everything up and load the data; a ConfigError lists all mistakes found.

    Args:
        config: What to run.
        plugins: Custom parts, as objects.
        load_data: Takes the place of `read_data`, for callers that keep what it gave.
    """
    plugins = plugins or Plugins()
    values = config.as_given() if isinstance(config, Config) else dict(config)
    parsed = parse(_with_names(values, plugins))
    # Before anything is tried with these numbers, though with the smallest of all models.
    _check_memory(with_fewest_rows(parsed.config), 1, parsed.problems)
    lookups = Lookups(parsed, plugins)
    lookups.check_custom_names()
    curves = lookups.curves()
    factory = lookups.factory()
    plugins = replace(plugins, worker=lookups.worker())
    lookups.data_name()
    lookups.custom_settings()
    config, problems = parsed.config, [*parsed.problems, *lookups.problems]
    missing = missing_packages(config)
    if problems or missing:
        # Whoever has a package to install first need not wait for the data.
        more = [] if missing else _more_problems(config, plugins, problems)
        misfits = [*parsed.misfits, *lookups.misfits, *more]
        raise ConfigError([*problems, *missing, *more], misfits=misfits)
    with device.using(config.experiment.device):
        dataset = (load_data or read_data)(config, plugins)
        fitted, misfits = fit_sizes(config, dataset)
        plan = ExperimentPlan(fitted, curves, plugins, factory, dataset, lookups.rates)
        _check_fit(plan, misfits)
    return plan


def _check_memory(config: Config, dimension: int, problems: Sequence[str] = ()) -> None:
    found = too_much(config, dimension, free=bytes_free())
    if found is not None:
        raise ConfigError([*problems, found], misfits=[found])


def _more_problems(config: Config, plugins: Plugins, known: Sequence[str]) -> list[str]:
    """What does not fit the data either, if that is at hand without a download."""
    data = config.data
    at_hand = plugins.data is not None or data.path is not None or data.name == "mnist-5k"
    if not at_hand or any(problem.startswith(("data.", "data:")) for problem in known):
        return []
    try:
        _, found = fit_sizes(config, read_data(config, plugins))
    except ConfigError as error:
        found = list(error.problems)
    except DataError as error:
        found = [f"data.name = {data.name!r}: {error}"]
    except UserError:  # Custom code may fail because of a mistake that is named above.
        return []
    keys = {problem.partition(" = ")[0] for problem in known}
    return [problem for problem in found if problem.partition(" = ")[0] not in keys]


def read_data(config: Config, plugins: Plugins) -> Dataset:
    """The data that a config names, or the caller's own."""
    loss, data = find_loss(config.training.loss), plugins.data
    if data is None:
        return load(
            config.data.name,
            path=Path(config.data.path) if config.data.path else None,
            normalise=config.data.normalise,
            real_targets=loss.real_targets,
        )
    dataset = dataset_from("plugins.data", data, real_targets=loss.real_targets)
    if loss.real_targets is not None and loss.real_targets != (dataset.classes is None):
        wanted, got = ("real-valued targets", "labels")[:: 1 if loss.real_targets else -1]
        raise ConfigError([f"training.loss = {loss.name!r}: needs {wanted}; the data has {got}"])
    return standardised(dataset) if config.data.normalise else dataset


def _with_names(values: Mapping[str, Any], plugins: Plugins) -> dict[str, Any]:
    """The values with the names of plug-ins filled in, so that a run folder shows them."""
    named = {
        "attack": ("name", plugins.attack),
        "model": ("name", plugins.model),
        "data": ("name", plugins.data),
    }
    result = dict(values)
    for section, (key, thing) in named.items():
        if thing is not None and isinstance(result.get(section, {}), Mapping):
            result[section] = {**result.get(section, {}), key: _name_of(thing)}
    if plugins.ballots is not None and isinstance(result.get("attack", {}), Mapping):
        result["attack"] = {**result.get("attack", {}), "voters": _name_of(plugins.ballots)}
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
    poisoned = guard("poison_labels", lambda: poison(labels.clone(), dataset.classes), poison)
    if not isinstance(poisoned, Tensor) or (poisoned.shape, poisoned.dtype) != (
        labels.shape,
        labels.dtype,
    ):
        raise refused(
            f"poison_labels must return {str(labels.dtype).removeprefix('torch.')} labels of "
            f"shape {tuple(labels.shape)}; got {describe(poisoned)}",
            poison,
        )
    return poisoned


def _check_fit(plan: ExperimentPlan, problems: list[str]) -> None:
    """Check what needs the data at hand: the shards and the model must fit it."""
    config, dataset = plan.config, plan.dataset
    curve, seed = plan.curves[0]
    if config.data.root_samples > len(dataset.y_train):
        problems.append(
            f"data.root_samples = {config.data.root_samples}: must be at most the "
            f"{len(dataset.y_train)} training rows of {dataset.name}"
        )
    if dataset.classes is None:
        problems.extend(
            f"experiment.rules: {asking.rule!r} asks voters about classes; the targets of "
            f"{dataset.name} are real-valued"
            for asking, _ in plan.curves
            if isinstance(asking.method, Rule) and asking.method.needs_voters
        )
    fits = getattr(plan.attack, "data_problems", None)
    if fits is not None:
        problems.extend(
            guard("data_problems", lambda: list(fits(dataset.shape, dataset.classes)), fits)
        )
    try:
        if problems:
            model = build(plan.factory, dataset.shape, dataset.outputs, seed=0)
        else:
            _check_memory(config, vector.dimension(plan.model(seed)))
            model = plan.federation(curve, seed).model
            _poisoned(plan.attack, dataset)
            _try_all_seeds(plan)
        for attacked, _ in plan.curves:
            check = getattr(attacked.act, "check_model", None)
            if check is not None:
                guard("check_model", partial(check, model), check)
    except (ModelError, DataError) as error:
        key = "model.name" if isinstance(error, ModelError) else "data.partition"
        value = config.model.name if isinstance(error, ModelError) else config.data.partition
        problems = [*problems, f"{key} = {value!r}: {error}"]
    if problems:
        raise ConfigError(problems, misfits=problems)


def _try_all_seeds(plan: ExperimentPlan) -> None:
    """Call custom factories and partitions for each seed, twice: the seed alone must decide.

    So none fails once curves have been run, and all curves of a seed begin with the same weights
    and the same shards.
    """
    config, factory = plan.config, plan.factory
    for seed in config.experiment.seeds:
        if is_custom(factory):
            weights = [vector.flatten(plan.model(seed)) for _ in range(2)]
            if not torch.equal(*weights):
                raise refused(
                    f"the model {config.model.name} must begin with the same weights whenever "
                    "torch has the same seed; made twice, it had others",
                    factory,
                )
        if ":" in config.data.partition:
            shards = [shards_of(config, plan.dataset, seed) for _ in range(2)]
            if not all(map(np.array_equal, *shards)):
                raise refused(
                    f"the partition {config.data.partition} must give the same rows for an equal "
                    "generator; asked twice, it gave others",
                    resolve(config.data.partition),
                )
