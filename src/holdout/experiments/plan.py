"""From a config to what will be run: mistakes reported, data loaded, nothing done yet."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from holdout import device
from holdout.attacks import Attack
from holdout.config import Config, parse
from holdout.custom_code import describe
from holdout.data.datasets import Dataset, Shard, dataset_from, load, standardised
from holdout.data.partitions import partition
from holdout.errors import ConfigError, DataError, ModelError, PluginError
from holdout.experiments.memory import bytes_free, too_much
from holdout.experiments.plugins import Plugins
from holdout.experiments.resolve_names import Lookups
from holdout.federation.round_setup import Curve, Federation
from holdout.ids import WorkerId
from holdout.learning import vector
from holdout.learning.models import ModelFactory, build
from holdout.seeds import stream
from holdout.voting import draw_byzantine
from holdout.workers import HonestWorker, Recipe, Worker


@dataclass(frozen=True, slots=True, eq=False)
class ExperimentPlan:
    """An experiment that can be run: the curves of one seed after the other."""

    config: Config
    curves: Sequence[tuple[Curve, int]]
    """Each curve with its seed, in the order in which they are run."""
    plugins: Plugins
    factory: ModelFactory
    dataset: Dataset

    def federation(self, curve: Curve, seed: int) -> Federation:
        """Shards, liars and initial weights of a seed."""
        config, dataset = self.config, self.dataset
        workers = config.federation.workers
        byzantine: frozenset[WorkerId] = frozenset()
        if curve.act is not None:
            byzantine = draw_byzantine(workers, config.federation.byzantine_workers, seed)
        model = self.model(seed)
        return Federation(
            config=config,
            seed=seed,
            model=model,
            initial_weights=vector.flatten(model),
            workers=self._workers(curve, seed, model, byzantine),
            labels=dataset.y_train,
            byzantine=byzantine,
            x_test=dataset.x_test,
            y_test=dataset.y_test,
        )

    def model(self, seed: int) -> torch.nn.Module:
        """The model with the initial weights of a seed."""
        return build(
            self.factory,
            self.dataset.shape,
            self.dataset.classes,
            seed=stream(seed, "weights").generator_seed(),
        )

    def _workers(
        self, curve: Curve, seed: int, model: torch.nn.Module, byzantine: frozenset[WorkerId]
    ) -> list[Worker]:
        config, dataset = self.config, self.dataset
        rows = partition(
            config.data.partition,
            device.to_numpy(dataset.y_train),
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
        try:
            made = self.plugins.worker(worker)
        except Exception as error:
            raise PluginError(f"custom worker raised {type(error).__name__}: {error}") from error
        if not all(callable(getattr(made, name, None)) for name in ("propose", "vote")):
            raise PluginError(f"custom worker must have propose and vote; got {type(made)!r}")
        return made


def make_plan(config: Config | Mapping[str, Any], plugins: Plugins | None = None) -> ExperimentPlan:
    """Look everything up and load the data; a ConfigError lists all mistakes found."""
    plugins = plugins or Plugins()
    values = config.as_dict() if isinstance(config, Config) else dict(config)
    parsed = parse(_with_names(values, plugins))
    # Before anything is tried with these numbers, though with the smallest of all models.
    _check_memory(parsed.config, 1, parsed.problems)
    lookups = Lookups(parsed, plugins)
    lookups.check_custom_names()
    curves = lookups.curves()
    factory = lookups.factory()
    lookups.data_name()
    if parsed.problems or lookups.problems:
        raise ConfigError([*parsed.problems, *lookups.problems])
    config = parsed.config
    dataset = _load(config, plugins)
    plan = ExperimentPlan(config, curves, plugins, factory, dataset)
    _check_fit(plan)
    return plan


def _check_memory(config: Config, dimension: int, problems: Sequence[str] = ()) -> None:
    found = too_much(config, dimension, free=bytes_free())
    if found is not None:
        raise ConfigError([*problems, found])


def _load(config: Config, plugins: Plugins) -> Dataset:
    if plugins.data is None:
        path = Path(config.data.path) if config.data.path else None
        return load(config.data.name, path=path, normalise=config.data.normalise)
    data = plugins.data
    dataset = data if isinstance(data, Dataset) else dataset_from("plugins.data", data)
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
    try:
        poisoned = poison(labels.clone(), dataset.classes)
    except Exception as error:
        raise PluginError(f"poison_labels raised {type(error).__name__}: {error}") from error
    if not isinstance(poisoned, Tensor) or (poisoned.shape, poisoned.dtype) != (
        labels.shape,
        labels.dtype,
    ):
        raise PluginError(
            f"poison_labels must return int64 labels of shape {tuple(labels.shape)}; "
            f"got {describe(poisoned)}"
        )
    return poisoned


def _check_fit(plan: ExperimentPlan) -> None:
    """Check what needs the data at hand: the shards and the model must fit it."""
    config, dataset = plan.config, plan.dataset
    problems = []
    curve, seed = plan.curves[0]
    if config.data.samples_per_worker > len(dataset.y_train):
        problems.append(
            f"data.samples_per_worker = {config.data.samples_per_worker}: must be at most the "
            f"{len(dataset.y_train)} training rows of {dataset.name}"
        )
    if config.data.partition == "shards" and config.data.labels_per_worker > dataset.classes:
        problems.append(
            f"data.labels_per_worker = {config.data.labels_per_worker}: must be at most the "
            f"{dataset.classes} classes of {dataset.name}"
        )
    if not problems:
        try:
            _check_memory(config, vector.dimension(plan.model(seed)))
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
    """Stand in for `check_model` of an attack that works with any model."""
