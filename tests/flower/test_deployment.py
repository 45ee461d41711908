"""A real deployment: SuperLink and six SuperNodes as processes on loopback, TLS and authentication.

Two nodes are Byzantine; in the second round one hangs and one is killed while it works. The ids
that the SuperLink gives out decide who is drawn for what, so the expectations follow the draw.
"""

import json
import math
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from tests.flower.flower_grid import load_deploy

from holdout.experiments.report import write_report
from holdout.results import read_run

ROOT = Path(__file__).resolve().parents[2]
APP = Path(__file__).resolve().parent / "testdata"
NODES = 6
LIARS, KILLED, HANGING = (0, 1), 2, 3
FAULTS = {"missing", "unavailable", "error", "unreadable", "not-finite"}


def partitions(folder):
    """The partition of each node, by the node's number in the results."""
    numbers = {
        node: int(n) for n, node in json.loads((folder / "run/nodes.json").read_text()).items()
    }
    held = {n: (folder / f"partition-{n}").read_text("utf-8") for n in range(NODES)}
    return {numbers[node]: partition for partition, node in held.items()}


STOPPED = """
import sys
import time
from pathlib import Path
from tests.flower.flower_grid import load_deploy

deploy = load_deploy()
deploy.BIN = Path("/bin")


class Idle(deploy.Deployment):
    def start_link(self, *options):
        self.start("superlink", ["sleep", "600"])

    def register(self, number):
        pass

    def start_node(self, number, nodes):
        # This one does not go when it is asked to.
        stubborn = "trap '' TERM; echo ready > ready; while :; do sleep 600; done"
        self.start(f"node-{number}", ["sh", "-c", stubborn])

    def follow(self, *arguments):
        self.wait((self.folder / "ready").exists, "the node")
        print(*(process.pid for process in self.processes.values()), flush=True)
        time.sleep(600)


deploy.Deployment, deploy.STOP_SECONDS = Idle, 1.0
sys.argv[1:] = ["--nodes", "1"]
deploy.main()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_whoever_stops_a_deployment_even_twice_leaves_no_process_behind(number):
    with subprocess.Popen(
        [sys.executable, "-c", STOPPED],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as command:
        printed = []
        for line in command.stdout:
            printed.append(line.split())
            if all(word.isdigit() for word in printed[-1]) or "ending" in line:
                command.send_signal(number)
        assert command.wait() == 130
        assert command.stderr.read() == ""
    (started,) = [words for words in printed if all(word.isdigit() for word in words)]
    assert len(started) == 2
    for pid in started:
        assert not Path(f"/proc/{pid}").exists()


@pytest.mark.soak
def test_liars_a_killed_node_and_a_hanging_one_stop_nobody(tmp_path):
    deploy = load_deploy()
    with deploy.deployed(tmp_path, NODES) as deployment:
        settings = f'folder="{tmp_path}" nodes={NODES} timeout=30.0'
        deployment.flwr("run", str(APP), "deployment", "--run-config", settings)
        asked, finished = tmp_path / f"asked-{KILLED}", tmp_path / "finished.json"
        # A voter is not asked in a round that has nothing to vote on.
        deployment.wait(lambda: asked.exists() or finished.exists(), "the node to be killed", 200)
        deployment.kill(f"node-{KILLED}")
        deployment.wait(finished.exists, "the end of the run", 240)
        processes = list(deployment.processes.values())
    assert all(process.poll() is not None for process in processes)
    assert deployment.stragglers() == []

    outcome = json.loads(finished.read_text("utf-8"))
    assert "error" not in outcome
    # Nobody proposes anything but half of the way to 1, or what is thrown out.
    (weight,) = outcome["weights"]
    assert any(math.isclose(weight, way, abs_tol=1e-5) for way in (0.0, 0.5, 0.75))

    run = read_run(tmp_path / "run")
    assert [line["round"] for line in run.rows] == [1, 2]
    rejected = [Counter(line["rejected_proposals"]) for line in run.rows]
    for total, line in zip(rejected, run.rows, strict=True):
        total.update(line["rejected_ballots"])
        assert (len(line["proposers"]), len(line["voters"])) == (3, 3)
        assert set(total) <= FAULTS
    first, second = run.rows
    # Both liars are drawn: they propose junk and NaN, or crash in place of voting.
    assert rejected[0].total() >= 2
    if "missing" not in rejected[0]:  # On a very busy machine somebody may have been late.
        held = partitions(tmp_path)
        honest_voters = sum(held[voter] not in LIARS for voter in first["voters"])
        assert first["outcome"] == ("step" if honest_voters >= 2 else "empty-selection")
        assert rejected[0].total() == 2
    # In the second round the killed node and the hanging one do not answer either.
    voted = second["outcome"] != "no-proposals"
    assert rejected[1].total() >= (4 if voted else 3)
    assert rejected[1]["missing"] + rejected[1]["unavailable"] >= 1
    write_report(tmp_path / "run")


@pytest.mark.soak
def test_a_decoding_bomb_and_a_killed_node_leave_the_server_small_and_running(tmp_path):
    """A model of 6 MB; a bomb would be 10 GB. Two of six nodes send one; another is killed."""
    deploy = load_deploy()
    with deploy.deployed(tmp_path, NODES) as deployment:
        settings = (
            f'folder="{tmp_path}" nodes={NODES} timeout=60.0 rounds=6 width=500000 liars="bomb"'
        )
        deployment.flwr("run", str(APP), "deployment", "--run-config", settings)
        asked, finished = tmp_path / f"asked-{KILLED}", tmp_path / "finished.json"
        deployment.wait(lambda: asked.exists() or finished.exists(), "the node to be killed", 300)
        deployment.kill(f"node-{KILLED}")
        deployment.wait(finished.exists, "the end of the run", 900)
    outcome = json.loads(finished.read_text("utf-8"))
    assert "error" not in outcome
    assert (outcome["rounds"], outcome["reason"]) == (6, "")
    # The model, six updates of it as received and as read, and what the vote makes of them.
    assert outcome["grown"] < 400 * 2**20
    run = read_run(tmp_path / "run")
    rejected = Counter()
    for line in run.rows:
        rejected.update(line["rejected_proposals"])
    assert rejected["too-large"] >= 1
    assert set(rejected) <= {"too-large", "missing", "unavailable"}
    committees = [len(line["proposers"]) + len(line["voters"]) for line in run.rows]
    assert committees[0] == 6
    assert committees[-1] == 5
    assert run.rows[-1]["asked_for"] == 6


@pytest.mark.slow
def test_a_node_whose_key_is_not_registered_is_not_let_in(tmp_path):
    deploy = load_deploy()
    deployment = deploy.Deployment(tmp_path)
    try:
        deployment.start_link()
        deploy.make_node_key(tmp_path / "node-0")
        deployment.start_node(0, 1)
        deployment.processes["node-0"].wait(timeout=120)
    finally:
        deployment.stop()
    assert "Failed to activate SuperNode" in deployment.log("node-0")
