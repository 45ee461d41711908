"""A config of ByzFL 0.0.11 (its `config.json`) as a sweep: `holdout sweep --byzfl config.json`.

Values that are lists become axes, names are those of `byzfl_names`, and whatever differs or has no
counterpart is a note. Everything in the file is checked, all mistakes are one error, and nothing in
it is executed.
"""

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from holdout.errors import ConfigError
from holdout.sweeps.byzfl_names import (
    AGGREGATORS,
    ATTACKS,
    DATASETS,
    DATASETS_WITHOUT,
    DISTRIBUTIONS,
    LOSSES,
    MODELS,
    MODELS_WITHOUT,
    PRE_AGGREGATORS,
)
from holdout.sweeps.byzfl_reading import (
    ByzflFile,
    above_0,
    below_1,
    count,
    from_0,
    is_number,
    is_whole,
    names,
    share_above_0,
    whole_from_0,
)

BYTES_MAX = 1_000_000
Values = dict[str, Any]

EXPLORED = ("training.learning_rate", "training.worker_momentum", "training.weight_decay")
"""What ByzFL chooses by its validation rows."""


def read_byzfl(path: Path) -> tuple[Values, list[str]]:
    """The sweep of a file of ByzFL's, and notes on what differs; refused with all mistakes."""
    try:
        with path.open("rb") as file:
            content = file.read(BYTES_MAX + 1)
        if len(content) > BYTES_MAX:
            raise ConfigError([f"{path}: no config: it holds more than {BYTES_MAX} bytes"])
        values = json.loads(content.decode("utf-8-sig"), parse_constant=_no_constant)
    except OSError as error:
        raise ConfigError([f"{path}: cannot be read ({error.strerror})"]) from error
    except (ValueError, RecursionError) as error:
        raise ConfigError([f"{path}: not JSON ({error})"]) from error
    return to_sweep(values)


def to_sweep(values: object) -> tuple[Values, list[str]]:
    """The sweep that a parsed config of ByzFL's asks for, and notes on what differs.

    >>> sweep, notes = to_sweep({
    ...     "benchmark_config": {"nb_steps": 50, "nb_honest_clients": 10, "f": [1, 2]},
    ...     "model": {"name": "fc_mnist", "dataset_name": "mnist"},
    ...     "aggregator": {"name": "TrMean"}, "attack": [{"name": "SignFlipping"}],
    ... })
    >>> sweep["experiment"]["rules"], [one["byzantine"] for one in sweep["grid"]["federation"]]
    (['trimmed-mean'], [1, 2])
    """
    return _ByzflReader(values).read()


class _ByzflReader:
    """Reads section by section; collects problems and notes, sets what goes on."""

    def __init__(self, values: object) -> None:
        self.file = ByzflFile(values)
        self.sweep: Values = {}
        self.grid: Values = {}

    def read(self) -> tuple[Values, list[str]]:
        """All sections in order; raises if anything was wrong."""
        self._algorithm()
        self._federation()
        self._data()
        self._model()
        self._training()
        self._rules()
        self._attacks()
        self._evaluation()
        self._choosing()
        if self.file.problems:
            raise ConfigError(list(dict.fromkeys(self.file.problems)), where="ByzFL's config")
        sweep = {**self.sweep, **({"grid": self.grid} if self.grid else {})}
        return sweep, list(dict.fromkeys(self.file.notes))

    # ------------------------------------------------------------------------------------ sections

    def _algorithm(self) -> None:
        where = "benchmark_config.training_algorithm"
        found = self.file.get("benchmark_config", "training_algorithm", {"name": "DSGD"})
        self.local_steps, self.proportion = 1, None
        if not isinstance(found, Mapping) or not isinstance(found.get("name", "DSGD"), str):
            self.file.wrong(where, found, 'must be a table such as {"name": "DSGD"}')
            return
        self.file.unknown(where, found, ("name", "parameters"))
        name, parameters = found.get("name", "DSGD"), found.get("parameters", {})
        if name not in ("DSGD", "FedAvg"):
            self.file.wrong(f"{where}.name", name, "must be DSGD or FedAvg")
        if not isinstance(parameters, Mapping):
            self.file.wrong(f"{where}.parameters", parameters, "must be a table")
            return
        known = ("proportion_selected_clients", "local_steps_per_client")
        self.file.unknown(f"{where}.parameters", parameters, known if name == "FedAvg" else ())
        if name != "FedAvg":
            return
        share, steps = (parameters.get(key) for key in known)
        if not is_number(share) or not 0 < share <= 1:
            self.file.wrong(
                f"{where}.parameters.{known[0]}", share, "must be above 0 and at most 1"
            )
        elif not is_whole(steps) or steps < 1:
            self.file.wrong(
                f"{where}.parameters.{known[1]}", steps, "must be a whole number from 1 on"
            )
        else:
            self.local_steps, self.proportion = steps, share
            self.file.note(
                "FedAvg: rules see pseudo-gradients, ByzFL's see weights; and what rules are told "
                "of f follows the share of liars, in ByzFL it stays tolerated_f of those drawn"
            )

    def _federation(self) -> None:
        honest = self.file.one("nb_honest_clients", count, 10)
        as_clients = self.file.flag(
            "benchmark_config", "set_honest_clients_as_clients", default=False
        )
        liars = self.file.several("benchmark_config", "f", whole_from_0, 0)
        told = self.file.several("benchmark_config", "tolerated_f", whole_from_0, None)
        pairs = [(f, t) for f in liars for t in ([f] if None in told else told) if t >= f]
        if not pairs and not self.file.problems:
            self.file.problems.append("benchmark_config.tolerated_f: none is as large as f")
        # ByzFL leaves the others out, too.
        tables = [self._workers(honest, f, t, as_clients=as_clients) for f, t in pairs]
        self.workers_max = max((table["workers"] for table in tables), default=honest)
        self.honest_min = min((t["workers"] - t["byzantine"] for t in tables), default=honest)
        common = {"disjoint": False}
        if len(tables) == 1:
            table = {key: value for key, value in tables[0].items() if key != "label"}
            self.sweep["federation"] = {**common, **table}
        else:
            self.sweep["federation"] = common
            self.grid["federation"] = tables

    def _workers(self, honest: int, liars: int, told: int, *, as_clients: bool) -> Values:
        workers = honest if as_clients else honest + liars
        if workers <= liars:
            self.file.wrong("benchmark_config.f", liars, f"must be below the {workers} clients")
        drawn = workers
        if self.proportion is not None:
            drawn = max(1, int((workers - liars) * self.proportion))
        label = f"f = {liars}" + (f", told {told}" if told != liars else "")
        return {
            "label": label,
            "workers": workers,
            "proposers": drawn,
            "voters": drawn,
            "byzantine": liars,
            "assumed_byzantine": told,
        }

    def _data(self) -> None:
        name = self.file.get("model", "dataset_name", "mnist")
        if name in DATASETS_WITHOUT:
            self.file.wrong(
                "model.dataset_name", name, f"has no counterpart; {names(DATASETS)} have"
            )
        elif not isinstance(name, str) or name not in DATASETS:
            self.file.wrong("model.dataset_name", name, f"unknown; known: {names(DATASETS)}")
        ours, rows = DATASETS.get(name if isinstance(name, str) else "", ("mnist", 60_000))
        if ours == "cifar10":
            self.file.note(
                "CIFAR-10: no crops and flips of training rows; data.augment could add them"
            )
        size = self.file.one("size_train_set", share_above_0, 0.8)
        self.validates = size < 1
        self.sweep["data"] = {"name": ours}
        found = self.file.get("benchmark_config", "data_distribution", [{"name": "iid"}])
        where = "benchmark_config.data_distribution"
        parts = self.file.parts(where, found, DISTRIBUTIONS, flat=("distribution_parameter",))
        tables: list[Values] = []
        for part in parts:
            divides = part.name in ("gamma", "extreme")
            holders = self.workers_max if divides else self.honest_min
            held = max(1, int(size * rows) // max(1, holders))
            tables.append({"partition": part.name, **part.settings, "samples_per_worker": held})
        if any(not 0 <= table.get("gamma", 0) <= 1 for table in tables):
            self.file.problems.append(
                f"{where}: gamma_similarity_niid's parameter must be at most 1"
            )
        self._lay("data", tables)

    def _model(self) -> None:
        name = self.file.get("model", "name", "cnn_mnist")
        if name in MODELS_WITHOUT:
            self.file.wrong("model.name", name, f"has no counterpart; {names(MODELS)} have")
        elif not isinstance(name, str) or name not in MODELS:
            self.file.wrong("model.name", name, f"unknown; known: {names(MODELS)}")
        else:
            self.file.say_difference("model", name, MODELS[name])
            self.sweep["model"] = {"name": MODELS[name].ours}
        labels = self.file.get("model", "nb_labels", 10)
        if labels != 10:  # noqa: PLR2004
            self.file.wrong("model.nb_labels", labels, "must be 10, as mnist and cifar10 have")
        loss = self.file.get("model", "loss", "NLLLoss")
        if loss not in LOSSES:
            self.file.wrong("model.loss", loss, f"has no counterpart; {' and '.join(LOSSES)} have")
        optimizer = self.file.get("model", "optimizer_name", "SGD")
        if optimizer != "SGD":
            self.file.wrong("model.optimizer_name", optimizer, "has no counterpart; SGD has")

    def _training(self) -> None:
        training: Values = {}
        rates = self.file.several("model", "learning_rate", above_0, 0.1)
        decays = self.file.several("model", "learning_rate_decay", above_0, 1.0)
        milestones = self.file.get("model", "milestones", [])
        if not isinstance(milestones, list) or not all(count(step) for step in milestones):
            self.file.wrong(
                "model.milestones", milestones, "must be a list of whole numbers from 1 on"
            )
            milestones = []
        if milestones and decays != [1.0]:
            training |= {"schedule": "step", "milestones": milestones}
            self._axis("training", "factor", decays, training)
        self._axis("training", "learning_rate", rates, training)
        momenta = self.file.several("honest_clients", "momentum", below_1, 0.0)
        if self.proportion is not None and any(momenta):
            self.file.note(
                "honest_clients.momentum: nothing follows from it with FedAvg, as in ByzFL"
            )
            momenta = [0.0]
        self._axis("training", "worker_momentum", momenta, training)
        decay = self.file.several("honest_clients", "weight_decay", from_0, 0.0)
        if any(decay):
            self.file.note(
                "honest_clients.weight_decay: added to each worker's gradient, before momentum and "
                "rule; ByzFL's server adds it to the aggregate"
            )
        self._axis("training", "weight_decay", decay, training)
        batches = self.file.several("honest_clients", "batch_size", count, 1)
        self._axis("training", "batch_size", batches, training)
        if self.local_steps > 1:
            training["local_steps"] = self.local_steps
        self.file.note(
            "batches are drawn afresh in each round; ByzFL goes through a worker's rows in passes"
        )
        self.sweep["training"] = training

    def _rules(self) -> None:
        aggregators = self.file.parts(
            "aggregator", self.file.sections.get("aggregator"), AGGREGATORS
        )
        found = self.file.sections.get("pre_aggregators", [])
        several = isinstance(found, list) and bool(found) and isinstance(found[0], list)
        chains = [
            self.file.parts("pre_aggregators", chain, PRE_AGGREGATORS) if chain else []
            for chain in (found if several else [found])
        ]
        rules: list[str] = []
        common: dict[str, Mapping[str, Any]] = {}
        variants: Values = {}
        for chain, aggregator in itertools.product(chains, aggregators):
            parts = [*chain, aggregator]
            rule = "+".join(part.name for part in parts)
            if rule not in rules and all(
                common.get(part.name, part.settings) == part.settings for part in parts
            ):
                rules.append(rule)
                common.update({part.name: part.settings for part in parts})
                continue
            settings = {part.name: dict(part.settings) for part in parts if part.settings}
            told = ", ".join(
                f"{key} {value}" for table in settings.values() for key, value in table.items()
            )
            variants[f"{rule} ({told})"] = {"rule": rule, "rules": settings}
        self.sweep["experiment"] = {"rules": rules}
        if tables := {name: dict(settings) for name, settings in common.items() if settings}:
            self.sweep["rules"] = tables
        if variants:
            self.sweep["variants"] = variants

    def _attacks(self) -> None:
        found = self.file.parts("attack", self.file.sections.get("attack"), ATTACKS)
        if self.proportion is not None and any(one.name == "label-flip" for one in found):
            self.file.problems.append("attack: ByzFL has no LabelFlipping with FedAvg")
        self._lay("attack", [{"name": one.name, **one.settings} for one in found])

    def _evaluation(self) -> None:
        experiment = self.sweep["experiment"]
        experiment["name"] = "byzfl"
        experiment["rounds"] = self.file.one("nb_steps", count, 1000)
        device = self.file.get("benchmark_config", "device", "cpu")
        if device not in ("cpu", "cuda"):
            self.file.wrong("benchmark_config.device", device, "must be cpu or cuda")
        elif device == "cuda":
            self.file.note("device: the cpu, many curves at a time; --set experiment.device=cuda")
        first = self.file.one("training_seed", whole_from_0, 0)
        trained = self.file.one("nb_training_seeds", count, 1)
        self.file.one("data_distribution_seed", whole_from_0, 0)
        drawn = self.file.one("nb_data_distribution_seeds", count, 1)
        experiment["seeds"] = list(range(first, first + trained * drawn))
        self.file.note(
            f"seeds {first} to {first + trained * drawn - 1}: one seed decides data, weights and "
            "batches; ByzFL draws data by data_distribution_seed"
        )
        section = "evaluation_and_results"
        (every,) = self.file.several(section, "evaluation_delta", count, 50, lists=False)
        experiment["evaluate_every"] = every
        self.file.several(section, "batch_size_evaluation", count, 128, lists=False)
        self.file.flag(section, "evaluate_on_test", default=True)
        for key in ("store_models", "store_per_client_metrics"):
            if self.file.flag(section, key, default=False):
                self.file.note(f"{section}.{key}: has no counterpart in a sweep; nothing is stored")
        for key in ("data_folder", "results_directory"):
            value = self.file.get(section, key, "")
            if not isinstance(value, str):
                self.file.wrong(f"{section}.{key}", value, "must be text")
            elif value:
                instead = "--out" if key == "results_directory" else "--set data.path=..."
                self.file.note(f"{section}.{key}: not used; {instead} says where")
        self.file.note(
            "heat maps show the accuracy at the end; ByzFL shows the best checkpoint, as does "
            "--set sweep.measure=best"
        )

    def _choosing(self) -> None:
        """ByzFL chooses by validation rows; here it is done by seeds of their own."""
        axes = [key for key in EXPLORED if key in self.grid]
        if not axes or not self.validates:
            return
        seeds = self.sweep["experiment"]["seeds"]
        apart = [seeds[-1] + 1 + place for place in range(len(seeds))]
        self.sweep["sweep"] = {"select": "max-min", "select_keys": axes, "select_seeds": apart}
        self.file.note(
            f"{', '.join(axes)}: chosen by the worst attack on seeds of their own ({apart[0]} to "
            f"{apart[-1]}), on test rows; ByzFL chooses on the reported seeds, on validation rows"
        )

    def _axis(self, section: str, key: str, values: Sequence[Any], table: Values) -> None:
        """One value belongs to the config, several are an axis."""
        if len(values) == 1:
            table[key] = values[0]
        else:
            self.grid[f"{section}.{key}"] = list(values)

    def _lay(self, section: str, tables: Sequence[Values]) -> None:
        """One table belongs to the config, several are an axis of the section."""
        distinct = [table for place, table in enumerate(tables) if table not in tables[:place]]
        if len(distinct) == 1:
            self.sweep[section] = {**self.sweep.get(section, {}), **distinct[0]}
        elif distinct:
            self.grid[section] = distinct


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON")
