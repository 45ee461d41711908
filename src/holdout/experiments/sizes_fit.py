"""Data, federation and sizes that fit each other: what was not given is chosen, the rest checked.

The paper's sizes (2000 rows a worker, batches of 83, 2000 holdout samples) are too large for small
data sets. Where the config gives no number, the paper's or the largest that fits is taken, and
written down with the run. A number that is given is never changed: one that does not fit is an
error, and all that do not fit are one error.
"""

from pathlib import Path

from holdout.config import Config
from holdout.data.datasets import Dataset
from holdout.data.partitions import DIVIDING, Integers, partition, samples_max
from holdout.errors import DataError, PluginError
from holdout.experiments.memory import bytes_free, too_much


def shards_of(config: Config, dataset: Dataset, seed: int) -> list[Integers]:
    """Which rows each worker holds."""
    labels, classes = dataset.strata()
    data = config.data
    return partition(
        data.partition,
        labels,
        workers=config.federation.workers,
        samples_per_worker=data.samples_per_worker,
        classes=classes,
        seed=seed,
        alpha=data.alpha,
        labels_per_worker=data.labels_per_worker,
        gamma=data.gamma,
        file=Path(data.partition_file) if data.partition_file else None,
    )


def fit_sizes(config: Config, dataset: Dataset) -> tuple[Config, list[str]]:
    """The config with every size as a number that fits, and all that does not fit."""
    rows, problems = len(dataset.y_train), _misfits(config, dataset)
    largest, whose = rows, f"the {rows} training rows of {dataset.name}"
    if not problems:
        config = _with_samples(config, dataset)
        # Before a shard is drawn, though with the smallest of all models.
        too_large = None if _sets_sizes(config) else too_much(config, 1, free=bytes_free())
        if too_large is not None:
            return config, [too_large]
        try:
            shards = shards_of(config, dataset, config.experiment.seeds[0])
        except (DataError, PluginError) as error:
            problems.append(f"data.partition = {config.data.partition!r}: {error}")
        else:
            largest = max(map(len, shards))
            whose = f"the {largest} rows of the largest shard"
    values = config.as_dict()
    if _sets_sizes(config):
        values["data"]["samples_per_worker"] = largest
    for section, key in (("training", "batch_size"), ("vote", "samples")):
        value = values[section][key]
        if _is_given(config, section, key) and value > largest:
            problems.append(f"{section}.{key} = {value}: must be at most {whose}")
        values[section][key] = min(value, largest)
    return (config if problems else Config.model_validate(values)), problems


def with_fewest_rows(config: Config) -> Config:
    """The config; if nobody gave how many rows a worker holds, with a single one."""
    if _is_given(config, "data", "samples_per_worker") and not _sets_sizes(config):
        return config
    data = config.data.model_copy(update={"samples_per_worker": 1})
    return config.model_copy(update={"data": data})


def _is_given(config: Config, section: str, key: str) -> bool:
    return key in getattr(config, section).model_fields_set


def _misfits(config: Config, dataset: Dataset) -> list[str]:
    """What cannot be, whatever is chosen."""
    data, rows, workers = config.data, len(dataset.y_train), config.federation.workers
    samples, labels = data.samples_per_worker, dataset.strata()[1]
    problems: list[str] = []
    if _sets_sizes(config):
        return problems
    given = _is_given(config, "data", "samples_per_worker")
    if given and samples > rows:
        problems.append(
            f"data.samples_per_worker = {samples}: must be at most the {rows} training rows of "
            f"{dataset.name}"
        )
    elif data.partition in DIVIDING and workers * (samples if given else 1) > rows:
        wanted = f"{samples} rows" if given else "a row"
        problems.append(
            f"data.partition = {data.partition!r}: needs {wanted} for each of federation.workers = "
            f"{workers}, no two the same; {dataset.name} has {rows} training rows"
        )
    if data.partition == "shards" and data.labels_per_worker > labels:
        problems.append(
            f"data.labels_per_worker = {data.labels_per_worker}: must be at most the "
            f"{labels} classes of {dataset.name}"
        )
    return problems


def _sets_sizes(config: Config) -> bool:
    """Whether a file or custom code says how many rows a worker holds."""
    return config.data.partition == "file" or ":" in config.data.partition


def _with_samples(config: Config, dataset: Dataset) -> Config:
    """The config with the number of rows a worker holds, if nobody gave it."""
    if _is_given(config, "data", "samples_per_worker") or _sets_sizes(config):
        return config
    data, (labels, classes) = config.data, dataset.strata()
    rows, paper = len(labels), data.samples_per_worker
    most = samples_max(
        data.partition,
        labels,
        workers=config.federation.workers,
        classes=classes,
        labels_per_worker=data.labels_per_worker,
    )
    # With all rows in every shard no worker would differ from another.
    usual = paper if rows >= paper or data.partition in DIVIDING else max(1, rows // 2)
    chosen = data.model_copy(update={"samples_per_worker": max(1, min(usual, most))})
    return config.model_copy(update={"data": chosen})
