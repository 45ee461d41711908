"""Clients that lie, get stuck or are killed, by partition; the others are honest.

With liars = "junk": two lie, one will be killed and one will hang. With liars = "bomb": two send
what grows when it is decoded, and one will be killed.
"""

import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from holdout.flower import vote_mod

JUNK, NAN, KILLED, HANGING = range(4)
BOMBERS = (JUNK, NAN)
LONG = 600.0

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Return weights half of the way to 1."""
    number = take_part(message, context)
    arrays = message.content["arrays"]
    values = {name: np.float32(0.5 + 0.5 * array.numpy()) for name, array in arrays.items()}
    trained = {name: Array(value) for name, value in values.items()}
    if number in BOMBERS and context.run_config["liars"] == "bomb":
        return bomb(message)
    if number == NAN and context.run_config["liars"] == "junk":
        trained = {name: Array(np.full_like(value, np.nan)) for name, value in values.items()}
    if number == JUNK and context.run_config["liars"] == "junk":
        trained = {
            name: Array(a.dtype, tuple(a.shape), a.stype, b"?") for name, a in arrays.items()
        }
    metrics = MetricRecord({"train_loss": 1.0, "num-examples": 10})
    content = RecordDict({"arrays": ArrayRecord(trained), "metrics": metrics})
    return Message(content, reply_to=message)


@app.evaluate("vote", mods=[vote_mod])
@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Return the squared distance to 1 as the loss."""
    number = take_part(message, context)
    if number in {JUNK, NAN} and context.run_config["liars"] == "junk":
        raise RuntimeError("this voter crashes")
    weights = np.concatenate([a.numpy().ravel() for a in message.content["arrays"].values()])
    metrics = {"eval_loss": float(((weights - 1) ** 2).mean()), "num-examples": 10}
    return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)


def bomb(message: Message) -> Message:
    """A reply of 5 MB that is 10 GB once it is decoded: its array names one chunk 2000 times."""
    reply = Message(RecordDict({"arrays": message.content["arrays"]}), reply_to=message)
    (array,) = reply.content["arrays"].values()
    array.__dict__["_chunks"] = array.slice_array()[:1] * 2000
    return reply


def take_part(message: Message, context: Context) -> int:
    """The partition's number; from round 2 on, two of the clients get stuck here."""
    number = int(context.node_config["partition-id"])
    folder = Path(str(context.run_config["folder"]))
    (folder / f"partition-{number}").write_text(str(context.node_id), "utf-8")
    stuck = {KILLED, HANGING} if context.run_config["liars"] == "junk" else {KILLED}
    if number in stuck and message.content["config"]["server-round"] > 1:
        (folder / f"asked-{number}").touch()
        time.sleep(LONG)
    return number
