"""`holdout localnet`: the whole thing with one command, and nobody left behind."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from holdout.node.localnet.launcher import LocalnetPlan, command_of, prepare

pytestmark = pytest.mark.slow


def processes_below(folder):
    """Processes whose command line names the folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if os.fsencode(folder) in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def start(folder, *more):
    return subprocess.Popen(
        [sys.executable, "-m", "holdout", "localnet", "--out", str(folder), *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_a_small_network_with_a_liar_learns_and_is_verified(tmp_path):
    folder = tmp_path / "net"
    lies = "coalition,equivocate,garbage"
    process = start(folder, "--nodes", "4", "--byzantine", "1", "--rounds", "4", "--lies", lies)
    out, err = process.communicate(timeout=170)
    assert process.returncode == 0, err
    assert "All 3 honest nodes hold model" in out
    assert "chain of 4 certificates is verified" in out
    assert "accuracy" in err
    assert processes_below(folder) == []


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGINT,
        pytest.param(signal.SIGTERM, marks=pytest.mark.soak),
        pytest.param(signal.SIGKILL, marks=pytest.mark.soak),
    ],
)
def test_ended_in_the_middle_it_leaves_nobody_behind(tmp_path, number):
    if not Path("/proc/self/cmdline").exists():
        pytest.skip("processes cannot be listed here")
    folder = tmp_path / "net"
    process = start(folder, "--nodes", "4", "--rounds", "1000")
    try:
        said = process.stderr.readline()
        assert said.startswith("decided"), said
        process.send_signal(number)
        began = time.monotonic()
        process.communicate(timeout=30)
        while processes_below(folder):
            assert time.monotonic() - began < 30
            time.sleep(0.2)
    finally:
        process.kill()
        process.communicate()
    if number != signal.SIGKILL:
        assert process.returncode == 130


def test_liars_are_started_as_such(tmp_path):
    plan = LocalnetPlan(tmp_path / "net", nodes=4, byzantine=1, rounds=2, lies=("flood",))
    nodes = prepare(plan)
    assert [node.liar for node in nodes] == [False, False, False, True]
    assert "holdout.node.localnet.lying_node" in command_of(nodes[3], plan)
    assert command_of(nodes[3], plan)[-4:] == ["--liars", "3", "--until", "2"]
    assert "holdout.node.demo:make_lying_worker" in (nodes[3].folder / "node.toml").read_text()
    assert "--full-speed" not in command_of(nodes[3], plan)
    assert "--full-speed" in command_of(nodes[3], replace(plan, full_speed=True))


def test_a_flooding_liar_takes_what_the_others_leave_of_this_machine():
    # In a session of its own, as a node is: the whole session gets less.
    script = (
        "import os; from holdout.node.localnet.lying_node import *\n"
        "leave_the_processors_to_others()\n"
        "print(os.getpriority(os.PRIO_PROCESS, 0))\n"
        "print(AUTOGROUP.read_text() if AUTOGROUP.exists() else 'autogroup nice 19')"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        start_new_session=True,
    )
    own, of_the_session = done.stdout.splitlines()[:2]
    assert own == "19"
    assert of_the_session.endswith("nice 19")
