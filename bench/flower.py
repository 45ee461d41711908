"""HoldOut SGD on Flower: a round's latency on a real deployment, and the time a vote takes.

The deployment is a SuperLink and eight SuperNodes as processes of this machine, with TLS and
authentication. They run `flower_app`, which does no work: four nodes propose and four vote.
"""

import json
import tempfile
from fractions import Fraction
from pathlib import Path

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.supercore.task_identity import TaskIdentity

from bench import flower_cost, memory
from bench.loading import load
from bench.measure import Row, seconds
from holdout.flower import vote
from holdout.flower.arrays import Layout
from holdout.flower.vote_messages import VoteCall
from holdout.learning import models
from holdout.learning.scoring import sample_losses
from holdout.voting import Terms

ROOT = Path(__file__).resolve().parent.parent
APP = ROOT / "bench" / "flower_app"
DEPLOY = ROOT / "examples" / "flower-mnist" / "deploy.py"
NODES = 8
RUN_SECONDS = 900.0


def rows() -> list[Row]:
    """Our round next to Flower's, a vote without and with payload, scoring next to `vote`, cost."""
    times = _deployed_times()
    scoring = _scoring_times()
    return [
        *cost_rows(),
        Row(
            "Flower, 4 + 4 nodes, no work: two stock phases / our round",
            times["stock"] / times["ours"],
            1 / 0.8,
        ),
        Row(
            "Flower, vote phase: without payload / with 30 x 79,510 floats",
            times["small vote"] / times["large vote"],
            1 / 1.2,
        ),
        Row(
            "Flower, 30 MLPs on 2,000 samples: in-process scorer / client's vote",
            scoring["in process"] / scoring["client"],
            1 / 1.2,
        ),
    ]


def cost_rows() -> list[Row]:
    """A joint round at d = 11,000,000, N_p = N_c = 10: what a voter is sent, the server's peak."""
    with tempfile.TemporaryDirectory() as name:
        sizes = Path(name) / "sizes.npy"
        need = memory.of("bench.flower_cost", result=sizes)
        one, stored = np.load(sizes).tolist()
    return [
        Row(
            "Flower, joint ballots, d = 11,000,000: a model / bytes to a voter",
            flower_cost.MODEL_BYTES / one,
            0.999,
        ),
        Row(
            f"Flower, joint ballots, 10 + 10: received updates / server's peak ({need})",
            flower_cost.RECEIVED_BYTES / need.bytes,
            1 / 1.5,
        ),
        Row(
            "Flower, joint ballots, 10 + 10: 0.6 GB / bytes of all questions on the SuperLink",
            0.6e9 / stored,
            1.0,
        ),
    ]


def _deployed_times() -> dict[str, float]:
    deploy = load(DEPLOY)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        out = folder / "times.json"
        with deploy.deployed(folder, NODES) as deployment:
            deployment.flwr(
                "run", str(APP), "deployment", "--run-config", f'out="{out}" nodes={NODES}'
            )
            deployment.wait(out.exists, "the last time", RUN_SECONDS)
            times: dict[str, float] = json.loads(out.read_text("utf-8"))
            return times


def _scoring_times() -> dict[str, float]:
    generator = torch.Generator().manual_seed(1)
    model = models.build(models.MODELS["mlp"], (1, 28, 28), 10, seed=2)
    record = ArrayRecord(model.state_dict())
    layout = Layout.of(record)
    current = layout.flatten(record)
    noise = 0.01 * torch.randn(30, len(current), generator=generator)
    stacked = torch.cat([current[None], current + noise])
    x = torch.randn(2000, 1, 28, 28, generator=generator)
    y = torch.randint(0, 10, (2000,), generator=generator)
    call = VoteCall(
        layout=layout,
        stacked=stacked.numpy(),
        terms=Terms(Fraction(33, 100)),
        round=1,
        holdout_samples=None,
        others={},
        config=ConfigRecord(),
        array_key="arrays",
        config_key="config",
    )
    # Outside of a Flower process, messages have no sender yet.
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
    message = Message(call.content(), dst_node_id=2, message_type="evaluate.vote")
    return seconds(
        {
            "in process": lambda: sample_losses(model, stacked, x, y),
            "client": lambda: vote(message, model=model, x=x, y=y),
        }
    )
