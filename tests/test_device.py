"""The one place that decides where tensors are."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from holdout import device
from holdout.rounds import admit_proposals

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
