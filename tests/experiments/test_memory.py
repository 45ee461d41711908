"""Memory needed against memory there: an estimate, a limit in one line, nonsense refused."""

import subprocess
import sys

import pytest
from tests import tiny

from holdout import Config, run
from holdout.errors import ConfigError
from holdout.experiments import memory
from holdout.experiments.memory import bytes_free, bytes_needed, too_much
from holdout.experiments.plan import make_plan
from holdout.rules import RULES

ABSURD = [10**6, 10**9, 10**12, 10**18, 10**30]


@pytest.fixture
def data(tmp_path):
    return tiny.write_data(tmp_path)


@pytest.mark.parametrize("workers", ABSURD[1:])
@pytest.mark.parametrize("rule", ["mean", "krum", "holdout"])
def test_absurdly_many_workers_are_refused_in_one_line(data, workers, rule):
    config = tiny.values(data, federation={"workers": workers}, experiment={"rules": [rule]})
    with pytest.raises(ConfigError) as caught:
        run(config)
    (problem,) = caught.value.problems
    assert problem.startswith(f"federation.workers = {workers}: needs about ")
    assert " are free, enough for about " in problem
    assert "\n" not in problem


@pytest.mark.parametrize("drawn", ABSURD)
def test_absurdly_many_proposers_are_refused_before_anything_is_tried_with_them(data, drawn):
    sizes = {"workers": 2 * drawn, "proposers": drawn, "voters": drawn, "byzantine": 0}
    with pytest.raises(ConfigError) as caught:
        run(tiny.values(data, federation=sizes, experiment={"rules": ["krum"]}))
    (problem,) = caught.value.problems
    assert problem.startswith("federation.proposers, federation.voters = ")
    assert "of memory (updates" in problem


def test_other_mistakes_are_told_with_it(data):
    config = tiny.values(data, federation={"workers": 10**12}, experiment={"rounds": 0})
    with pytest.raises(ConfigError) as caught:
        run(config)
    assert [p.split(" ")[0] for p in caught.value.problems] == [
        "experiment.rounds",
        "federation.workers",
    ]


def test_the_limit_that_is_told_is_the_limit(data, monkeypatch):
    monkeypatch.setattr("holdout.experiments.plan.bytes_free", lambda: 5_000_000)
    with pytest.raises(ConfigError, match=r"5 MB are free, enough for about \d+ workers") as told:
        run(tiny.values(data, federation={"workers": 3900}))
    most = int(told.value.problems[0].split()[-2])
    config = Config(**tiny.values(data, federation={"workers": most}))
    more = Config(**tiny.values(data, federation={"workers": most + 1}))
    d = 5 * 100 + 100 + 100 * 3 + 3  # The small network of `mlp` on five numbers, three classes.
    assert too_much(config, d, free=5_000_000) is None
    assert too_much(more, d, free=5_000_000) is not None


def test_momentum_of_every_worker_counts():
    plain, kept = Config(), Config(training={"worker_momentum": 0.9})
    with_it, without = (bytes_needed(config, 10_000)["states"] for config in (kept, plain))
    assert with_it - without == 4 * 100 * 10_000 * memory.SAVED


def test_where_the_system_does_not_say_nothing_is_refused(tmp_path, monkeypatch):
    assert too_much(Config(federation={"workers": 10**12}), 1, free=None) is None
    monkeypatch.setattr(memory, "CGROUP", tmp_path)
    assert bytes_free() > 0
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("7\n")
    assert bytes_free() > 7
    (tmp_path / "memory.max").write_text("1000\n")
    assert bytes_free() == 993
    (tmp_path / "memory.max").write_text("nonsense\n")
    monkeypatch.setattr(memory, "MEMINFO", tmp_path / "none")
    assert bytes_free() > 10**8


MEASURE = """
import dataclasses, gc, sys
from pathlib import Path
from tests import tiny
from holdout.config import parse
from holdout.experiments.memory import bytes_needed
from holdout.experiments.plan import make_plan

def taken():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

values = tiny.values(Path(sys.argv[1]), data={"samples_per_worker": 100})
plan = make_plan(values)
many = tiny.values(Path(sys.argv[1]), data={"samples_per_worker": 100},
                   federation={"workers": 20_000})
plan = dataclasses.replace(plan, config=parse(many).checked())
before = taken()
federation = plan.federation(*plan.curves[0])
print((taken() - before) / bytes_needed(plan.config, 1)["shards"])
"""


@pytest.mark.slow
@pytest.mark.skipif(not memory.MEMINFO.exists(), reason="only Linux tells what a process holds")
def test_the_estimate_is_near_what_workers_really_take(data):
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(data)], capture_output=True, text=True, check=True
    )
    assert 0.4 < float(done.stdout) < 1.6


def test_a_number_of_rows_that_nobody_gave_is_not_held_against_a_run(data, monkeypatch):
    values = tiny.values(data, federation={"workers": 3900})
    del values["data"]["samples_per_worker"]
    # The paper's 2000 rows for each would be 62 MB; the data has far fewer.
    for module in ("plan", "sizes_fit"):
        monkeypatch.setattr(f"holdout.experiments.{module}.bytes_free", lambda: 30_000_000)
    fitted = make_plan(values).config
    assert fitted.data.samples_per_worker < 500
    monkeypatch.setattr("holdout.experiments.sizes_fit.bytes_free", lambda: 100_000)
    with pytest.raises(ConfigError, match=r"  federation.workers = 3900: needs about .* \(shards"):
        make_plan(values)


def test_rules_that_look_at_no_pairs_are_rules():
    assert set(RULES) >= memory.BY_COORDINATE
