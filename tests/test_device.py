"""The one place that decides where tensors are."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tests.stand_in_device import stand_in

from holdout import device, parallel
from holdout.attacks import ATTACKS
from holdout.errors import ConfigError, RunFailed
from holdout.experiments.plugins import Plugins
from holdout.experiments.runner import run
from holdout.rounds import admit_proposals
from holdout.rules import RULES

MAKERS = {
    "arange": lambda: device.arange(3),
    "empty": lambda: device.empty(2, 3),
    "eye": lambda: device.eye(2),
    "full": lambda: device.full((2,), 1.0),
    "ones": lambda: device.ones(2, dtype=torch.bool),
    "tensor": lambda: device.tensor([1.0]),
    "zeros": lambda: device.zeros(2),
    "randn": lambda: device.randn(2, generator=device.generator(0)),
    "randperm": lambda: device.randperm(4, generator=device.generator(0)),
    "from_numpy": lambda: device.from_numpy(np.ones(2)),
}


@pytest.mark.parametrize("maker", MAKERS)
def test_every_tensor_is_made_where_the_device_says(maker, monkeypatch):
    assert MAKERS[maker]().device.type == "cpu"
    # A device without memory stands in for one that this machine may not have.
    monkeypatch.setattr(device, "DEVICE", torch.device("meta"))
    assert MAKERS[maker]().device.type == "meta"


def test_a_result_goes_where_the_tensor_it_came_from_is():
    there = torch.zeros(2, device="meta")
    assert device.from_numpy(np.ones(2), like=there).device.type == "meta"


def test_noise_is_decided_by_its_seed():
    one, two = (device.randn(5, generator=device.generator(seed)) for seed in (3, 3))
    assert torch.equal(one, two)
    assert not torch.equal(one, device.randn(5, generator=device.generator(4)))


def test_numbers_go_to_numpy_and_back_without_a_change():
    numbers = torch.arange(6.0, requires_grad=True).reshape(2, 3)
    assert torch.equal(device.from_numpy(device.to_numpy(numbers)), numbers.detach())


def test_a_device_without_a_number_is_any_of_its_kind(monkeypatch):
    monkeypatch.setattr(device, "DEVICE", torch.device("cuda"))
    assert device.is_here(SimpleNamespace(device=torch.device("cuda:0")))
    assert not device.is_here(SimpleNamespace(device=torch.device("cpu")))
    monkeypatch.setattr(device, "DEVICE", torch.device("cuda:1"))
    assert not device.is_here(SimpleNamespace(device=torch.device("cuda:0")))


def test_a_proposal_that_lies_elsewhere_is_no_proposal(monkeypatch):
    update = torch.zeros(4)
    assert admit_proposals([update], dimension=4).valid
    monkeypatch.setattr(device, "DEVICE", torch.device("meta"))
    assert not admit_proposals([update], dimension=4).valid


POINTS = np.random.default_rng(0).normal(size=(300, 5)).astype(np.float32)
SUMS = POINTS @ np.array([1.0, 2.0, -1.0, 0.5, 0.0])
LABELLED = (POINTS[:200], (SUMS[:200] > 0).astype(int), POINTS[200:], (SUMS[200:] > 0).astype(int))
MEASURED = (POINTS[:200], SUMS[:200], POINTS[200:], SUMS[200:])
RULES_ALL = ["nnm+krum", "clipping+mean", "holdout-paper", "holdout-1", "holdout", *RULES]
PARAMETERS = {"backdoor": {"shape": [1, 1, 5], "size": 1, "row": 0, "column": 0}}

KINDS = {
    "every rule": {
        "experiment": {"rules": RULES_ALL, "rounds": 2},
        "federation": {"proposers": 8, "voters": 4},
        "data": {"root_samples": 20},
    },
    "first order, momenta, epochs": {
        "experiment": {"rules": ["holdout-1"]},
        "vote": {"scoring": "first-order"},
        "training": {"momentum": 0.5, "worker_momentum": 0.5, "local_epochs": 1},
    },
    "augmented, unequal shards": {
        "experiment": {"rules": ["holdout"]},
        "data": {"partition": "quantity", "augment": "tests.test_device:shaken"},
    },
    "without a server": {
        "experiment": {"rules": ["holdout", "holdout-central", "holdout-paper"], "rounds": 2},
        "federation": {"mode": "decentralized"},
    },
    "regression": {
        "experiment": {"rules": ["holdout", "holdout-1"]},
        "training": {"loss": "mse"},
        "attack": {"name": "greedy"},
    },
    **{
        f"attack {name}": {
            "experiment": {"rules": ["holdout"], "rounds": 1, "baseline": False},
            "federation": {"byzantine": 4},
            "attack": {"name": name, **PARAMETERS.get(name, {})},
        }
        for name in ATTACKS
    },
}


def shaken(x, y, generator):
    return x + 0.01 * device.randn(*x.shape, generator=generator), y


def forgetful(x, y, generator):
    return x + torch.zeros(x.shape), y


def settings(kind, name):
    values = {
        "experiment": {"rounds": 3, "threads": 1, "device": name, "evaluate_every": 1},
        "federation": {"workers": 12, "proposers": 5, "voters": 5, "byzantine": 2},
        "attack": {"name": "sign-flip"},
    }
    values["federation"]["assumed_byzantine"] = 0.13
    for section, keys in KINDS[kind].items():
        values[section] = {**values.get(section, {}), **keys}
    return values


def run_on(kind, name, monkeypatch, **options):
    """A run on a device that this machine plays, and on what it has."""
    data = MEASURED if kind == "regression" else LABELLED
    plugins = Plugins(data=data)
    monkeypatch.setattr(device, "fault", lambda _name: None)
    with stand_in(name) as played:
        there = run(settings(kind, name), plugins=plugins, **options)
    assert str(device.DEVICE) == "cpu"
    assert played.made > 0
    return there, run(settings(kind, "cpu"), plugins=plugins)


def rows(result):
    return [{**row, "seconds": 0} for row in result.rounds]


@pytest.mark.parametrize("kind", KINDS)
def test_a_whole_run_stays_on_its_device_and_comes_out_the_same(kind, monkeypatch):
    there, here = run_on(kind, "cuda", monkeypatch)
    assert rows(there) == rows(here)


@pytest.mark.parametrize("kind", list(KINDS)[:5])
def test_a_whole_run_does_without_float64_where_there_is_none(kind, monkeypatch):
    there, here = run_on(kind, "mps", monkeypatch)
    for row, other in zip(there.table(), here.table(), strict=True):
        assert row.measured == pytest.approx(other.measured, abs=0.1)


def test_a_run_is_resumed_on_its_device(tmp_path, monkeypatch):
    kind = "first order, momenta, epochs"
    whole, _ = run_on(kind, "cuda", monkeypatch, out=tmp_path / "whole")

    def stop(progress):
        if progress.rounds_done == 4:
            raise KeyboardInterrupt

    with stand_in("cuda"):
        values, plugins = settings(kind, "cuda"), Plugins(data=LABELLED)
        with pytest.raises(KeyboardInterrupt):
            run(values, plugins=plugins, out=tmp_path / "cut", watch=stop)
        resumed = run(values, plugins=plugins, out=tmp_path / "cut", resume=True)
    assert rows(resumed) == rows(whole)


def test_a_tensor_on_the_wrong_device_is_found(monkeypatch):
    kind = "augmented, unequal shards"
    data = {**KINDS[kind]["data"], "augment": "tests.test_device:forgetful"}
    monkeypatch.setitem(KINDS, kind, {**KINDS[kind], "data": data})
    with pytest.raises(RunFailed, match="expected all tensors on one device"):
        run_on(kind, "cuda", monkeypatch)


@pytest.mark.parametrize("name", ["cuda", "cuda:1", "mps"])
def test_a_device_that_is_not_there_is_one_line(name, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: name == "cuda:1")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(ConfigError) as caught:
        run(settings("every rule", name), plugins=Plugins(data=LABELLED))
    (problem,) = caught.value.problems
    assert problem.startswith(f"experiment.device = '{name}': torch finds ")
    assert "\n" not in problem


def test_threads_keep_to_the_widths_of_the_device(monkeypatch):
    torch.set_num_threads(2)  # A fixture sets it back.
    monkeypatch.setattr(device, "DEVICE", torch.device("mps"))
    ones = torch.ones(2)
    with device.widths():
        assert ones.double().dtype == ones.to(torch.float64).dtype == torch.float32
        assert torch.ones(2, dtype=torch.float64).dtype == torch.float32
        found = parallel.run_all(lambda _: ones.sum(dtype=torch.float64).dtype, [0, 1])
    assert found == [torch.float32] * 2
    assert ones.double().dtype == torch.float64
