"""ByzFL's configs as sweeps: names, axes, notes, and every mistake at once."""

import copy
import inspect
import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from holdout.attacks import ATTACKS as OUR_ATTACKS
from holdout.commands import run_command
from holdout.config import Config
from holdout.dotted import resolve
from holdout.errors import ConfigError, ModelError
from holdout.learning.models import MODELS as OUR_MODELS
from holdout.rules import PRE_AGGREGATIONS, RULES
from holdout.sweeps.byzfl_config import read_byzfl, to_sweep
from holdout.sweeps.byzfl_names import (
    AGGREGATORS,
    ATTACKS,
    DATASETS_WITHOUT,
    DISTRIBUTIONS,
    MODELS,
    MODELS_WITHOUT,
    PRE_AGGREGATORS,
)
from holdout.sweeps.byzfl_reading import SECTIONS

PUBLISHED = Path(__file__).parent.parent.parent / "bench" / "byzfl_config.json"

DEFAULT = {
    "benchmark_config": {
        "training_algorithm": {"name": "DSGD", "parameters": {}},
        "nb_steps": 800,
        "device": "cuda",
        "training_seed": 4,
        "nb_training_seeds": 3,
        "nb_honest_clients": 10,
        "f": [1, 2, 3, 4],
        "data_distribution_seed": 0,
        "nb_data_distribution_seeds": 1,
        "data_distribution": [
            {"name": "gamma_similarity_niid", "distribution_parameter": [1.0, 0.33, 0.0]},
            {"name": "dirichlet_niid", "distribution_parameter": 0.5},
        ],
    },
    "model": {
        "name": "cnn_mnist",
        "dataset_name": "mnist",
        "nb_labels": 10,
        "loss": "NLLLoss",
        "learning_rate": [0.1, 0.2],
        "learning_rate_decay": 0.5,
        "milestones": [200, 400],
    },
    "aggregator": [
        {"name": "GeometricMedian", "parameters": {"nu": 0.1, "T": 3}},
        {"name": "CenteredClipping", "parameters": {"tau": 10, "L": 2}},
        {"name": "TrMean", "parameters": {}},
    ],
    "pre_aggregators": [
        {"name": "Clipping", "parameters": {"c": 3}},
        {"name": "NNM", "parameters": {}},
    ],
    "honest_clients": {"momentum": 0.9, "weight_decay": 0.0001, "batch_size": 25},
    "attack": [
        {"name": "SignFlipping", "parameters": {}},
        {"name": "ALittleIsEnough", "parameters": {"tau": [1.5, 3]}},
        {"name": "Optimal_InnerProductManipulation"},
    ],
    "evaluation_and_results": {
        "evaluation_delta": 50,
        "batch_size_evaluation": 128,
        "evaluate_on_test": True,
        "store_per_client_metrics": True,
        "store_models": False,
        "data_folder": "./data",
        "results_directory": "./results",
    },
}
"""Every key of a config, with lists where ByzFL takes them."""


def changed(path, value):
    values = copy.deepcopy(DEFAULT)
    *sections, last = path.split(".")
    table = values
    for section in sections:
        table = table[section]
    table[last] = value
    return values


def test_everything_in_a_config_has_its_place():
    sweep, notes = to_sweep(DEFAULT)
    assert sweep["experiment"] == {
        "rules": [
            "clipping+nnm+geometric-median",
            "clipping+nnm+centered-clipping",
            "clipping+nnm+trimmed-mean",
        ],
        "name": "byzfl",
        "rounds": 800,
        "seeds": [4, 5, 6],
        "evaluate_every": 50,
    }
    assert sweep["rules"] == {
        "clipping": {"radius": 3.0},
        "centered-clipping": {"radius": 10.0, "iterations": 2},
    }
    assert sweep["training"] == {
        "schedule": "step",
        "milestones": [200, 400],
        "factor": 0.5,
        "worker_momentum": 0.9,
        "weight_decay": 0.0001,
        "batch_size": 25,
    }
    grid = sweep["grid"]
    assert grid["training.learning_rate"] == [0.1, 0.2]
    assert [(t["workers"], t["byzantine"], t["assumed_byzantine"]) for t in grid["federation"]] == [
        (11, 1, 1),
        (12, 2, 2),
        (13, 3, 3),
        (14, 4, 4),
    ]
    assert all(t["proposers"] == t["voters"] == t["workers"] for t in grid["federation"])
    assert [t["partition"] for t in grid["data"]] == ["gamma", "gamma", "gamma", "dirichlet"]
    # 80 % of the rows, divided among all of at most 14 workers, or among 10 honest ones.
    assert [t["samples_per_worker"] for t in grid["data"]] == [3428, 3428, 3428, 4800]
    assert grid["attack"] == [
        {"name": "sign-flip"},
        {"name": "alie", "direction": 1, "gamma": 1.5},
        {"name": "alie", "direction": 1, "gamma": 3.0},
        {"name": "opt-ipm"},
    ]
    assert sweep["sweep"] == {
        "select": "max-min",
        "select_keys": ["training.learning_rate"],
        "select_seeds": [7, 8, 9],
    }
    said = "\n".join(notes)
    for word in ("GeometricMedian", "liars too", "opposite sign", "weight_decay", "cuda", "best"):
        assert word in said


def test_each_name_has_a_counterpart_that_is_there():
    ours = {**RULES, **PRE_AGGREGATIONS}
    for part in [*AGGREGATORS.values(), *PRE_AGGREGATORS.values()]:
        known = inspect.signature(ours[part.ours].function).parameters
        assert {p.ours for p in part.parameters.values() if p.ours} <= set(known)
    for part in ATTACKS.values():
        if part.ours == "none":
            continue
        known = inspect.signature(OUR_ATTACKS[part.ours]).parameters
        wanted = {p.ours for p in part.parameters.values() if p.ours} | set(part.fixed)
        assert wanted <= set(known)
    for part in DISTRIBUTIONS.values():
        Config(data={"partition": part.ours})
    for part in MODELS.values():
        assert part.ours in OUR_MODELS or callable(resolve(part.ours))


@pytest.mark.parametrize(
    ("name", "shape", "weights"),
    [
        ("cnn_mnist", (1, 28, 28), 20 * 26 + 50 * 501 + 500 * 801 + 10 * 501),
        ("logreg_mnist", (1, 28, 28), 7850),
        (
            "cnn_cifar",
            (3, 32, 32),
            20 * 76 + 100 * 501 + 200 * 2501 + 512 * 3201 + 256 * 513 + 2570,
        ),
    ],
)
def test_a_network_has_as_many_weights_as_byzfls(name, shape, weights):
    model = resolve(MODELS[name].ours)(shape, 10)
    assert sum(math.prod(p.shape) for p in model.parameters()) == weights
    assert model(torch.zeros(2, *shape)).shape == (2, 10)


def test_a_network_for_other_samples_is_refused():
    with pytest.raises(ModelError, match=r"cnn_mnist is for samples of shape \(1, 28, 28\)"):
        resolve(MODELS["cnn_mnist"].ours)((3, 32, 32), 10)


def test_what_is_told_of_f_may_differ_and_is_never_below_it():
    sweep, _ = to_sweep(changed("benchmark_config.tolerated_f", [2, 3]))
    pairs = [(t["byzantine"], t["assumed_byzantine"]) for t in sweep["grid"]["federation"]]
    assert pairs == [(1, 2), (1, 3), (2, 2), (2, 3), (3, 3)]
    values = changed("benchmark_config.set_honest_clients_as_clients", True)
    assert [t["workers"] for t in to_sweep(values)[0]["grid"]["federation"]] == [10] * 4


def test_federated_averaging_draws_some_and_takes_local_steps():
    parameters = {"proportion_selected_clients": 0.6, "local_steps_per_client": 5}
    algorithm = {"name": "FedAvg", "parameters": parameters}
    sweep, notes = to_sweep(changed("benchmark_config.training_algorithm", algorithm))
    assert sweep["training"]["local_steps"] == 5
    assert sweep["training"]["worker_momentum"] == 0.0
    assert {t["proposers"] for t in sweep["grid"]["federation"]} == {6}
    assert any("FedAvg" in note for note in notes)
    values = changed("benchmark_config.training_algorithm", algorithm)
    values["attack"] = {"name": "LabelFlipping"}
    with pytest.raises(ConfigError, match="no LabelFlipping with FedAvg"):
        to_sweep(values)


def test_several_chains_and_settings_of_one_rule_are_variants():
    values = changed("pre_aggregators", [[], [{"name": "NNM"}]])
    values["aggregator"] = [{"name": "CenteredClipping", "parameters": {"tau": [1, 10]}}]
    sweep, _ = to_sweep(values)
    assert sweep["experiment"]["rules"] == ["centered-clipping", "nnm+centered-clipping"]
    assert sweep["rules"]["centered-clipping"] == {"radius": 1.0, "iterations": 1}
    assert [table["rule"] for table in sweep["variants"].values()] == [
        "centered-clipping",
        "nnm+centered-clipping",
    ]
    for table in sweep["variants"].values():
        assert table["rules"]["centered-clipping"]["radius"] == 10.0


MISTAKES = {
    "benchmark_config.nb_steps": (0, "must be a whole number from 1 on"),
    "benchmark_config.f": ([1, -1], "must be a whole number from 0 on"),
    "benchmark_config.device": ("tpu", "must be cpu or cuda"),
    "benchmark_config.size_train_set": (1.5, "above 0 and at most 1"),
    "benchmark_config.set_honest_clients_as_clients": (1, "must be true or false"),
    "benchmark_config.tolerated_f": (0, "none is as large as f"),
    "benchmark_config.data_distribution": ([{"name": "idd"}], "did you mean 'iid'"),
    "benchmark_config.training_algorithm": ({"name": "SGD"}, "must be DSGD or FedAvg"),
    "benchmark_config.surprise": (1, "unknown key"),
    "model.name": ("ResNet18", "has no counterpart"),
    "model.dataset_name": ("fashionmnist", "has no counterpart"),
    "model.optimizer_name": ("Adam", "has no counterpart"),
    "model.loss": ("MSELoss", "has no counterpart"),
    "model.nb_labels": (100, "must be 10"),
    "model.learning_rate": ("fast", "must be a number above 0"),
    "model.milestones": ([0], "whole numbers from 1 on"),
    "honest_clients.momentum": (1.0, "below 1"),
    "honest_clients.weight_decay": (None, "must be a number from 0 on"),
    "aggregator": ([{"name": "Kruum"}], "did you mean 'Krum'"),
    "attack": ({"name": "Mimic", "parameters": {"epsilon": 0.5}}, "must be a whole number"),
    "pre_aggregators": ([{"name": "NNM", "parameters": {"k": 1}}], "unknown parameter"),
    "evaluation_and_results.evaluation_delta": ([1, 2], "must be a whole number"),
    "evaluation_and_results.data_folder": (3, "must be text"),
    "extra": (3, "unknown key"),
}


@pytest.mark.parametrize("key", MISTAKES)
def test_a_mistake_is_named(key):
    value, message = MISTAKES[key]
    with pytest.raises(ConfigError, match="ByzFL's config") as caught:
        to_sweep(changed(key, value))
    (problem,) = caught.value.problems
    assert message in problem
    assert key.split(".")[-1] in problem


def test_all_mistakes_are_told_at_once():
    values = copy.deepcopy(DEFAULT)
    for key in ("nb_steps", "device", "size_train_set"):
        values["benchmark_config"][key] = MISTAKES[f"benchmark_config.{key}"][0]
    values["model"]["name"] = "ResNet50"
    values["aggregator"][2]["name"] = "nonsense"
    with pytest.raises(ConfigError) as caught:
        to_sweep(values)
    assert len(caught.value.problems) == 5


@pytest.mark.parametrize("name", [*MODELS_WITHOUT])
def test_models_without_a_counterpart_are_told_from_unknown_ones(name):
    with pytest.raises(ConfigError, match="has no counterpart"):
        to_sweep(changed("model.name", name))
    with pytest.raises(ConfigError, match="unknown"):
        to_sweep(changed("model.name", "resnet-of-mine"))


@pytest.mark.parametrize("name", [*DATASETS_WITHOUT])
def test_data_without_a_counterpart_is_named(name):
    with pytest.raises(ConfigError, match="has no counterpart"):
        to_sweep(changed("model.dataset_name", name))


JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 30)
    | st.floats(allow_nan=False)
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["name", "parameters", "f", "tau", "x"]), inner, max_size=3
        )
    ),
    max_leaves=6,
)
PLACES = [f"{section}.{key}" for section, keys in SECTIONS.items() for key in keys]


@given(st.sampled_from([*PLACES, *SECTIONS]), JUNK)
def test_whatever_stands_in_a_place_is_read_or_refused(place, junk):
    try:
        sweep, _ = to_sweep(changed(place, junk))
    except ConfigError as error:
        assert error.problems  # noqa: PT017
        return
    json.dumps(sweep, allow_nan=False)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "not JSON"),
        (b"[]", "must be a table of sections"),
        (b'{"model": NaN}', "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 100_000, "not JSON"),
    ],
)
def test_a_file_that_is_no_config_is_refused(tmp_path, content, message):
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        read_byzfl(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_byzfl(tmp_path / "missing.json")


def test_the_command_reads_it_says_what_differs_and_runs_it(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["sweep", "--byzfl", str(PUBLISHED), "--set", "data.name=mnist-5k"]
    words += ["--set", "data.samples_per_worker=60", "--set", "experiment.baseline=false"]
    assert run_command([*words, "--dry-run"]) == 0
    found = capsys.readouterr()
    assert found.out.startswith("18 curves")
    assert "note: aggregator GeometricMedian: geometric-median;" in found.err
    assert run_command([*words, "--dry-run", "--quick"]) == 0
    assert capsys.readouterr().out.startswith("6 curves")  # Of the first of three seeds.
    assert run_command(["sweep", "mine.toml", "--byzfl", str(PUBLISHED)]) == 2
    assert "not both" in capsys.readouterr().err
    assert run_command(["sweep", "--byzfl", "nowhere.json"]) == 2
    assert "cannot be read" in capsys.readouterr().err
