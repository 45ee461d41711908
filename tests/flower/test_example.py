"""The example app, run as its README says: Flower's simulation, in separate processes."""

import re
import shutil
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.flower.flower_grid import EXAMPLE, load_deploy

from holdout.experiments.curves import final_table
from holdout.experiments.report import write_report
from holdout.results import read_run

KINDS = ["alie", "sign-flip", "nan", "junk", "wrong-shape", "bomb", "crash", "quit", "silence"]


@contextmanager
def simulator(folder: Path):
    """A SuperLink that simulates its nodes, ended on leaving."""
    deployment = load_deploy().Deployment(folder)
    try:
        deployment.start_simulator()
        yield deployment
    finally:
        deployment.stop()


def accuracies(deployment, folder: Path, config: str) -> list[float]:
    """Run a copy of the example once and return the accuracies that it prints at the end."""
    app = folder / "app"
    if not app.exists():
        shutil.copytree(EXAMPLE, app, ignore=shutil.ignore_patterns("__pycache__"))
    # Ray is told of more cores than there may be, so that a sleeping client holds up no other.
    cores = 4 if "silence" in config else 2
    nodes = f"num-supernodes=10 client-resources-num-cpus=1 init-args-num-cpus={cores}"
    printed = deployment.flwr(
        *("run", str(app), "deployment", "--stream", "--run-config", config),
        *("--federation-config", nodes),
        timeout=400,
    )
    return [float(found) for found in re.findall(r"round +\d+: accuracy ([\d.]+)", printed)]


@pytest.mark.slow
def test_the_example_holds_under_attack_in_flower_s_simulation(tmp_path):
    run = tmp_path / "run"
    with simulator(tmp_path) as deployment:
        config = f'byzantine="sign-flip" num-server-rounds=4 run-folder="{run}"'
        found = accuracies(deployment, tmp_path, config)
    assert deployment.stragglers() == []
    assert len(found) == 5
    assert found[-1] > 0.75
    (row,) = final_table(read_run(run).rows)
    assert row.accuracy == pytest.approx(found[-1], abs=1e-3)
    assert "Under sign-flip, HoldOut ends at" in write_report(run).read_text("utf-8")


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
def test_the_example_holds_under_every_kind_of_lie(kind, tmp_path):
    with simulator(tmp_path) as deployment:
        config = f'byzantine="{kind}" num-server-rounds=6 timeout=40'
        found = accuracies(deployment, tmp_path, config)
    assert found[-1] > 0.75


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["alie", "sign-flip", "nan"])
def test_fedavg_does_not_hold_in_the_example(kind, tmp_path):
    with simulator(tmp_path) as deployment:
        config = f'strategy="fedavg" byzantine="{kind}" num-server-rounds=6'
        found = accuracies(deployment, tmp_path, config)
    assert found[-1] < 0.5
