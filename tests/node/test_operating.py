"""The worked example of `docs/operating.md`, in a real network."""

import random
import re
from pathlib import Path

import pytest
from tests.node import node_rig
from tests.node.node_rig import Network

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
