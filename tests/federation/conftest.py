"""Small federations that play a round in milliseconds."""

from dataclasses import replace

import pytest
import torch

from holdout.data.datasets import Dataset
from holdout.experiments.plan import make_plan
from holdout.experiments.plugins import Plugins
from holdout.federation.central import run_round
from holdout.federation.round_setup import first_state
from holdout.learning.training import evaluate

BASE = {
    "experiment": {"rounds": 3, "baseline": False, "threads": 1, "evaluate_every": 1},
    "data": {"samples_per_worker": 60, "root_samples": 30},
    "training": {"batch_size": 10},
    "federation": {"workers": 20, "byzantine": 0.33, "proposers": 8, "voters": 7},
    "vote": {"samples": 40},
    "attack": {"gamma_max": 4.0},
}


def merged(changed):
    return {
        section: {**BASE.get(section, {}), **changed.get(section, {})}
        for section in {**BASE, **changed}
    }


@pytest.fixture(scope="session")
def blobs() -> Dataset:
    """Four clouds of points that overlap a little: 600 to learn from, 200 to test on."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(4, 12, generator=generator)

    def part(count):
        y = torch.randint(0, 4, (count,), generator=generator)
        return centres[y] + torch.randn(count, 12, generator=generator), y

    return Dataset("blobs", *part(600), *part(200), 4)


@pytest.fixture
def config():
    """config(section={...}, ...) -> the small federation's config with that changed."""
    return lambda **changed: merged(changed)


@pytest.fixture
def scene(blobs):
    """scene(rule, seed=0, plugins={...}, section={...}) -> (federation, curve)."""

    def make(rule="holdout", *, seed=0, plugins=None, **changed):
        values = merged(changed)
        values["experiment"] = {**values["experiment"], "rules": [rule], "seeds": [seed]}
        given = {} if "name" in changed.get("data", {}) else {"data": blobs}
        plan = make_plan(values, Plugins(**{**given, **(plugins or {})}))
        ((curve, _),) = plan.curves
        return plan.federation(curve, seed), curve

    return make


@pytest.fixture
def play():
    """play(federation, curve, rounds, state) -> (records, state after them)."""

    def rounds(federation, curve, count=1, state=None):
        state = state or first_state(federation)
        records = []
        for _ in range(count):
            record, state = run_round(federation, curve, state)
            records.append(record)
        return records, state

    return rounds


@pytest.fixture
def honestly(play):
    """honestly(federation, curve, rounds) -> the state after so many rounds without liars."""

    def rounds(federation, curve, count):
        innocent = replace(federation, byzantine=frozenset())
        return play(innocent, replace(curve, act=None, attack="none"), count)[1]

    return rounds


@pytest.fixture
def loss_of():
    """loss_of(federation, state) -> the loss on the test set."""

    def measure(federation, state):
        return evaluate(federation.model, state.weights, federation.x_test, federation.y_test).loss

    return measure
