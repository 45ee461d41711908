"""A client that does no work: it returns the weights it got, and approves the first candidate."""

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Return the weights as they came, or a little larger, each client by another step."""
    arrays = message.content.array_records["arrays"]
    if context.run_config["weights"]:
        step = np.float32(0.01 * (1 + int(context.node_config["partition-id"])))
        arrays = ArrayRecord({name: Array(a.numpy() + step) for name, a in arrays.items()})
    metrics = MetricRecord({"num-examples": 1})
    content = RecordDict({"arrays": arrays, "metrics": metrics})
    return Message(content, reply_to=message)


@app.evaluate("vote")
def vote(message: Message, _context: Context) -> Message:
    """Approve the first candidate without looking at any."""
    return Message(RecordDict({"ballot": MetricRecord({"approved": [0]})}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, _context: Context) -> Message:
    """Return a constant loss."""
    return Message(
        RecordDict({"metrics": MetricRecord({"loss": 1.0, "num-examples": 1})}), reply_to=message
    )
