"""The files in `deploy/`, each checked by the tool that will read it, where there is one."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from holdout.node.membership.genesis import Network
from holdout.node.network.blobs import Blobs
from holdout.node.runtime.metrics import METRICS
from holdout.node.runtime.watch import Watch

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
UNIT = DEPLOY / "holdout-node@.service"
NAMES = ("alice", "bob", "carol", "dave")


PACKAGES = {"systemd-analyze": "systemd", "promtool": "prometheus"}


def needs(tool):
    """Skip a test where its tool is missing, and say how to get it."""
    why = f"there is no {tool} here; Debian has it in the package {PACKAGES[tool]}"
    return pytest.mark.skipif(shutil.which(tool) is None, reason=why)


def metric_names():
    names = {f"holdout_{reading.name}" for reading in METRICS}
    for metric in Watch(Blobs(lambda *_: None)).registry.collect():
        names |= {f"{metric.name}_{part}" for part in ("bucket", "sum", "count")}
    return names


@needs("systemd-analyze")
def test_systemd_understands_the_unit(tmp_path):
    # Its program need not be installed where it is checked.
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text())
    done = subprocess.run(
        ["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@needs("systemd-analyze")
def test_the_unit_is_hardened():
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=20", UNIT],
        capture_output=True,
        text=True,
        check=False,
    )
    if "unrecognized option" in done.stderr or "unknown option" in done.stderr:
        pytest.skip("this systemd cannot judge a file")
    assert done.returncode == 0, done.stdout[-300:]


@needs("promtool")
def test_prometheus_understands_rules_and_config():
    for command in ("check rules alerts.yaml", "check config prometheus.yaml"):
        done = subprocess.run(
            ["promtool", *command.split()],
            cwd=DEPLOY,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr


@needs("promtool")
def test_each_alert_fires_on_what_it_is_for():
    done = subprocess.run(
        ["promtool", "test", "rules", "alerts-test.yaml"],
        cwd=DEPLOY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_alerts_and_dashboard_ask_for_metrics_that_exist():
    known = metric_names()
    for name in ("alerts.yaml", "alerts-test.yaml", "grafana-dashboard.json"):
        asked = set(re.findall(r"\bholdout_\w+", (DEPLOY / name).read_text()))
        assert asked
        assert asked <= known, name


def test_alerts_say_what_to_do():
    yaml = pytest.importorskip("yaml")
    rules = yaml.safe_load((DEPLOY / "alerts.yaml").read_text())["groups"][0]["rules"]
    assert len({rule["alert"] for rule in rules}) == len(rules) >= 10
    tested = (DEPLOY / "alerts-test.yaml").read_text()
    assert set(re.findall(r'alertname="(\w+)"', tested)) == {rule["alert"] for rule in rules}
    for rule in rules:
        assert set(rule["annotations"]) == {"summary", "action"}
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}


PANEL = {
    "type": "object",
    "required": ["id", "type", "title", "gridPos", "targets", "datasource"],
    "properties": {
        "id": {"type": "integer"},
        "type": {"enum": ["stat", "timeseries"]},
        "gridPos": {
            "type": "object",
            "required": ["x", "y", "w", "h"],
            "properties": {"x": {"maximum": 23}, "w": {"maximum": 24}},
        },
        "targets": {
            "type": "array",
            "minItems": 1,
            "items": {"type": "object", "required": ["refId", "expr", "legendFormat"]},
        },
    },
}
DASHBOARD = {
    "type": "object",
    "required": ["title", "uid", "schemaVersion", "panels", "templating", "time"],
    "properties": {"panels": {"type": "array", "minItems": 1, "items": PANEL}},
}


def test_the_dashboard_has_the_form_that_grafana_imports():
    jsonschema = pytest.importorskip("jsonschema")
    board = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
    jsonschema.validate(board, DASHBOARD)
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    places = [(p["gridPos"]["x"], p["gridPos"]["y"]) for p in board["panels"]]
    assert len(set(places)) == len(places)


def test_the_container_is_small_and_not_root():
    text = (DEPLOY / "Containerfile").read_text()
    stages = re.findall(r"^FROM (\S+)", text, re.MULTILINE)
    assert len(stages) == 2
    assert all(stage.endswith("-slim") for stage in stages)
    last = text.rpartition("FROM ")[2]
    assert "pip install" not in last
    assert re.search(r"^USER (?!0\b|root\b)\S+", last, re.MULTILINE)
    copied = re.search(r"^COPY (.*) \./$", text, re.MULTILINE)[1].split()
    assert all((DEPLOY.parent / name).exists() for name in copied)


def composed():
    yaml = pytest.importorskip("yaml")
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text())


def test_the_composed_network_is_local_and_has_few_rights():
    services = composed()["services"]
    assert set(services) == {"setup", *NAMES}
    for name, service in services.items():
        assert service["cap_drop"] == ["ALL"], name
        assert "privileged" not in service
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
    for name in NAMES:
        assert services[name]["command"][:3] == ["node", "run", name]
        assert services[name]["read_only"] is True


@pytest.mark.slow
def test_the_composed_network_can_be_set_up(tmp_path):
    services = composed()["services"]
    program = tmp_path / "bin" / "holdout"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m holdout "$@"\n')
    program.chmod(0o755)
    (script,) = services["setup"]["command"]
    done = subprocess.run(
        ["sh", "-eu", "-c", script.replace("$$", "$")],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    network = Network.read(tmp_path / "net" / "genesis.toml")
    assert [member.address for member in network.members] == [f"{name}:7447" for name in NAMES]
    for name in NAMES:
        bundle = services[name]["command"][-1]
        assert (tmp_path / bundle).exists()
        assert 'metrics = "0.0.0.0:9100"' in (tmp_path / name / "node.toml").read_text()
