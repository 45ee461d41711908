"""The learning rate of each round."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdout.config import TrainingSection
from holdout.errors import PluginError
from holdout.learning.schedules import SCHEDULES, rate_at, rates_of


def rates(rounds, **keys):
    return rates_of(TrainingSection(**keys), rounds=rounds)


def test_known_rates_come_out():
    assert rates(5) == (0.1,)
    assert rates(3, schedule="inverse") == (0.1 / 1, 0.1 / 2, 0.1 / 3)
    stepped = rates(5, schedule="step", milestones=[1, 3], factor=0.5, learning_rate=8.0)
    assert stepped == (8.0, 4.0, 4.0, 2.0, 2.0)
    waved = rates(4, schedule="cosine", learning_rate=1.0, learning_rate_min=0.5)
    half = math.cos(math.pi / 4) / 4
    assert waved == pytest.approx((1.0, 0.75 + half, 0.75, 0.75 - half))


@given(
    schedule=st.sampled_from(SCHEDULES),
    rounds=st.integers(1, 300),
    eta=st.floats(1e-6, 10),
    milestones=st.sets(st.integers(1, 300), max_size=5),
)
def test_rates_are_steps_that_never_grow(schedule, rounds, eta, milestones):
    found = rates(
        rounds, schedule=schedule, learning_rate=eta, milestones=sorted(milestones), factor=0.5
    )
    assert found[0] == eta
    assert all(0 < later <= earlier for earlier, later in pairwise(found))


@pytest.fixture
def own_schedule(tmp_path, monkeypatch):
    (tmp_path / "own_schedule.py").write_text(
        "def warm(t, rounds, eta):\n"
        "    return eta * t / rounds\n"
        "def nan(t, rounds, eta):\n"
        "    return float('nan') if t == 2 else eta\n"
        "def zero(t, rounds, eta):\n"
        "    return 0\n"
        "def text(t, rounds, eta):\n"
        "    return 'fast'\n"
        "def fails(t, rounds, eta):\n"
        "    return 1 / (2 - t)\n"
        "number = 3\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("own_schedule")
def test_own_code_gives_the_rates():
    assert rates(4, schedule="own_schedule:warm", learning_rate=2.0) == (0.5, 1.0, 1.5, 2.0)
    training = TrainingSection(schedule="own_schedule:warm")
    assert isinstance(rate_at(training, 1, rounds=1), float)


@pytest.mark.usefixtures("own_schedule")
@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("nan", "must give a finite rate above 0; got nan in round 2"),
        ("zero", "must give a finite rate above 0; got 0 in round 1"),
        ("text", "must give a finite rate above 0; got 'fast' in round 1"),
        ("fails", "raised ZeroDivisionError in round 2"),
        ("number", "must be callable; got int"),
    ],
)
def test_rates_that_are_none_are_refused(name, problem):
    with pytest.raises(PluginError, match=problem):
        rates(3, schedule=f"own_schedule:{name}")
