"""The client: a network with batch norm, local epochs, the whole state dict. It knows no votes."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from flower_batchnorm import task

torch.set_num_threads(1)  # Several clients share this machine.

app = ClientApp()
FLIP = 10.0


@app.train()
def train(message: Message, context: Context) -> Message:
    """Return weights, statistics and counters after training on the client's own images."""
    x, y = task.partition(
        int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])
    )
    model = task.make_model()
    before = message.content["arrays"].to_torch_state_dict()
    model.load_state_dict(before)
    task.train(model, x, y, epochs=int(context.run_config["local-epochs"]))
    state = model.state_dict()
    if int(context.node_config["partition-id"]) < int(context.run_config["byzantine-nodes"]):
        state = {
            name: (before[name] - FLIP * (part - before[name])).to(part.dtype)
            for name, part in state.items()
        }
    metrics = MetricRecord({"num-examples": len(x)})
    content = RecordDict({"arrays": ArrayRecord(state), "metrics": metrics})
    return Message(content, reply_to=message)
