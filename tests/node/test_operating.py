"""The worked example of `docs/operating.md`, in a real network."""

import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.node import node_rig
from tests.node.node_rig import Network

from holdout.node.localnet.launcher import free_ports

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "operating.md"


@pytest.mark.slow
def test_members_with_private_csv_files_learn_together(tmp_path, monkeypatch):
    code = re.search(r"```python\n(# clinic\.py\n.*?)```", DOCUMENT.read_text("utf-8"), re.DOTALL)
    assert code is not None
    monkeypatch.setattr(node_rig, "SHAPE", (4,))
    monkeypatch.setattr(node_rig, "CLASSES", 2)
    network = Network(tmp_path / "net")
    try:
        words = random.Random(0)
        for index in range(4):
            folder = network.of(index)
            (folder / "clinic.py").write_text(code[1], "utf-8")
            network.edit(index, "tiny_worker:make_worker", "clinic:make_worker")
            with (folder / "private.csv").open("w") as file:
                for _ in range(60):
                    values = [words.gauss(0, 1) for _ in range(4)]
                    file.write(",".join(map(str, [*values, int(sum(values) > 0)])) + "\n")
        network.start(until=4)
        network.wait_for_round(4)
        status = network.status(0)
        network.stop()
        models = {audit.model for audit in network.audits().values()}
    finally:
        network.close()
    assert len(models) == 1
    assert status["steps"] >= 2
    assert status["worker_failures"] == 0


@pytest.mark.slow
def test_four_members_are_set_up_and_run_with_ten_commands(tmp_path, monkeypatch):
    text = DOCUMENT.read_text("utf-8").partition("## Four members in ten commands")[2]
    block = re.search(r"```sh\n(.*?)```", text, re.DOTALL)
    assert block is not None
    commands = [line.split() for line in block[1].splitlines()]
    assert len(commands) <= 10
    ports = iter(free_ports(4))
    monkeypatch.chdir(tmp_path)
    names, running = [], []
    try:
        for _, *arguments in commands:
            if arguments[1] == "init":
                names.append(arguments[2])
                arguments[-1] = f"127.0.0.1:{next(ports)}"
            if arguments[1] == "create":
                arguments += ["--model", "holdout.node.demo:linear"]
            command = [sys.executable, "-m", "holdout", *arguments]
            if arguments[1] == "run":
                running.append(node_rig.start_alone(command, tmp_path / f"{arguments[2]}.log"))
            else:
                subprocess.run(command, check=True, capture_output=True)
        node_rig.wait_until(
            lambda: min(node_rig.status_of(tmp_path / name)["decided"] for name in names) >= 2
        )
    finally:
        for process in running:
            process.terminate()
        codes = [process.wait(30) for process in running]
    assert codes == [0, 0, 0, 0]
    assert names == ["alice", "bob", "carol", "dave"]
