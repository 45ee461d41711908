"""What a client needs does not need torch."""

import subprocess
import sys
import venv
from importlib.metadata import version
from pathlib import Path

import pytest

REFUSED = """
import sys

class Refused:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "pydantic", "matplotlib", "safetensors", "mlxtend"}:
            raise ModuleNotFoundError(f"no {name} here", name=name)

sys.meta_path.insert(0, Refused())
"""
CLIENT = """
import sys
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.task_identity import TaskIdentity
import numpy as np
from holdout.flower import vote_mod
from holdout.flower.arrays import Layout
from holdout.flower.vote_messages import VoteCall
from holdout.voting import Terms
from fractions import Fraction

TaskIdentity._task_id = TaskIdentity._run_id = TaskIdentity._node_id = 1
app = ClientApp(mods=[vote_mod])

@app.evaluate()
def evaluate(message, context):
    loss = float(((message.content["arrays"]["w"].numpy() - 1) ** 2).sum())
    return Message(RecordDict({"m": MetricRecord({"eval_loss": loss})}), reply_to=message)

record = ArrayRecord({"w": Array(np.zeros(3, np.float32))})
call = VoteCall(Layout.of(record), np.float32([[0] * 3, [1] * 3, [-1] * 3]), Terms(Fraction(1, 3)),
                1, None, {}, ConfigRecord(), "arrays", "config")
message = Message(call.content(), dst_node_id=5, message_type="evaluate")
reply = app(message, Context(1, 1, {}, RecordDict(), {}))
print(list(reply.content["ballot"]["approved"]), "torch" in sys.modules)
"""


def test_a_client_votes_by_the_mod_without_torch():
    done = subprocess.run(
        [sys.executable, "-c", REFUSED + CLIENT], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[-2] == "[0] False"


@pytest.mark.soak
def test_a_client_votes_in_an_environment_that_has_no_torch(tmp_path):
    """Flower from the package index, and this package without what it depends on."""
    venv.create(tmp_path, with_pip=True)
    python = str(tmp_path / "bin" / "python")
    pip = [python, "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, f"flwr=={version('flwr')}"], check=True)
    subprocess.run([*pip, "--no-deps", str(Path(__file__).resolve().parents[2])], check=True)
    absent = subprocess.run([python, "-c", "import torch"], check=False, capture_output=True)
    assert absent.returncode == 1
    done = subprocess.run(
        # Not from here, where the package's source is.
        [python, "-I", "-c", CLIENT],
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[-2] == "[0] False"
