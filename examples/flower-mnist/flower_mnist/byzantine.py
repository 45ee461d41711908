"""A Flower mod around an honest client that makes some clients Byzantine; remove it for real use.

The clients of the first `byzantine-nodes` partitions form a coalition. They know each other's data,
lie when they are asked to train, and vote for what does most harm.
"""

import os
import time
from collections.abc import Callable

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict

KINDS = (
    "none",
    "alie",
    "sign-flip",
    "nan",
    "junk",
    "wrong-shape",
    "bomb",
    "crash",
    "quit",
    "silence",
)
"""What `byzantine` may be in the run's config."""
GAMMA = 30.0  # How many standard deviations ALIE adds to the mean.
FLIP = 10.0  # How many times the honest step a sign flip goes in the opposite direction.
CHUNKS = 2000  # How often a bomb names one chunk.

Client = Callable[[Message, Context], Message]
Arrays = dict[str, np.ndarray]


def byzantine_mod(message: Message, context: Context, call_next: Client) -> Message:
    """Lie if this client belongs to the coalition."""
    kind = str(context.run_config["byzantine"])
    coalition = int(context.run_config["byzantine-nodes"])
    if kind == "none" or int(context.node_config["partition-id"]) >= coalition:
        return call_next(message, context)
    if kind == "crash":
        raise RuntimeError("this client crashes")
    if kind == "quit":
        os._exit(1)  # The client's process is gone, without a word to anybody.
    if kind == "silence":
        time.sleep(float(context.run_config["timeout"]) + 5)
    if message.metadata.message_type == "train":
        return propose(kind, message, context, call_next)
    if message.metadata.message_type == "evaluate.vote":
        return vote(kind, message, context, call_next)
    return call_next(message, context)


def propose(kind: str, message: Message, context: Context, call_next: Client) -> Message:
    """What a Byzantine proposer returns in place of trained weights."""
    weights = {name: array.numpy() for name, array in message.content["arrays"].items()}
    if kind == "alie":
        return reply(message, alie(weights, message, context, call_next))
    honest = call_next(message, context).content["arrays"]
    if kind == "sign-flip":
        trained = {name: array.numpy() for name, array in honest.items()}
        return reply(message, {n: w - FLIP * (trained[n] - w) for n, w in weights.items()})
    if kind == "nan":
        return reply(message, {n: np.full_like(w, np.nan) for n, w in weights.items()})
    if kind == "bomb":
        return bomb(reply(message, dict(honest.items())))
    if kind == "wrong-shape":
        return reply(message, {n: np.zeros((2, 3), np.float32) for n in weights})
    if kind == "junk":
        junk = {
            name: Array(dtype=a.dtype, shape=tuple(a.shape), stype=a.stype, data=b"not an array")
            for name, a in honest.items()
        }
        return reply(message, junk)
    return call_next(message, context)


def bomb(answer: Message) -> Message:
    """The same reply, but each of its arrays names its first chunk CHUNKS times.

    So it is small as it travels, and grows when it is joined. In Flower's simulation, where replies
    are not taken apart, it stays what it was.
    """
    for array in answer.content["arrays"].values():
        array.__dict__["_chunks"] = array.slice_array()[:1] * CHUNKS
    return answer


def alie(weights: Arrays, message: Message, context: Context, call_next: Client) -> Arrays:
    """What all members send: the mean plus GAMMA deviations of their honest updates."""
    updates = []
    for member in range(int(context.run_config["byzantine-nodes"])):
        disguised = Context(
            context.run_id,
            context.node_id,
            {**context.node_config, "partition-id": member},
            context.state,
            context.run_config,
        )
        trained = call_next(message, disguised).content["arrays"]
        updates.append({name: weights[name] - trained[name].numpy() for name in weights})
    stacked = {name: np.stack([update[name] for update in updates]) for name in weights}
    return {n: weights[n] - (u.mean(0) + GAMMA * u.std(0)) for n, u in stacked.items()}


def vote(kind: str, message: Message, context: Context, call_next: Client) -> Message:
    """A ballot for the candidates of largest loss, or something that is not a ballot."""
    if kind in {"nan", "junk", "wrong-shape", "bomb"}:
        nonsense = MetricRecord({"approved": [-1, 10**6, 0, 0]})
        return Message(RecordDict({"ballot": nonsense}), reply_to=message)
    honest = set(call_next(message, context).content["ballot"]["approved"])
    candidates = message.content["candidates"]["stacked"].shape[0] - 1
    worst = [place for place in range(candidates) if place not in honest]
    return Message(RecordDict({"ballot": MetricRecord({"approved": worst})}), reply_to=message)


def reply(message: Message, arrays: Arrays | dict[str, Array]) -> Message:
    """A train reply with these weights, and a claim of very many examples."""
    record = ArrayRecord(
        {
            name: array if isinstance(array, Array) else Array(np.float32(array))
            for name, array in arrays.items()
        }
    )
    metrics = MetricRecord({"train_loss": 0.0, "num-examples": 10**6})
    return Message(RecordDict({"arrays": record, "metrics": metrics}), reply_to=message)
