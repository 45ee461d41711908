"""The client: trains and evaluates, and can name the candidates that it approves.

With joint ballots (`strategy="holdout"`) `train` is all that HoldOut SGD asks for. Only approvals
(`strategy="holdout-1"`) need `vote`. Without it, `ClientApp(mods=[vote_mod])` lets the ordinary
`evaluate` vote: slower, but it works with any framework and any loss.
"""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from flower_mnist import task
from flower_mnist.byzantine import byzantine_mod
from holdout import flower

torch.set_num_threads(1)  # Several clients share this machine.

app = ClientApp(mods=[byzantine_mod])  # Makes some clients lie; a real client has no such mod.


@app.train()
def train(message: Message, context: Context) -> Message:
    """Return the weights after training on the client's own digits."""
    x, y = own_digits(context)
    model = received_model(message)
    config = context.run_config
    loss = task.train(
        model,
        x,
        y,
        epochs=int(config["local-epochs"]),
        batch_size=int(config["batch-size"]),
        rate=float(config["learning-rate"]),
    )
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(x)})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content, reply_to=message)


@app.evaluate("vote")
def vote(message: Message, context: Context) -> Message:
    """Say which of the candidates do well on the client's own digits."""
    x, y = own_digits(context)
    return flower.vote(message, model=task.make_model(), x=x, y=y)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Loss and accuracy of the common model on the client's own digits."""
    x, y = own_digits(context)
    loss, accuracy = task.test(received_model(message), x, y)
    metrics = MetricRecord({"eval_loss": loss, "eval_acc": accuracy, "num-examples": len(x)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


def own_digits(context: Context) -> tuple[torch.Tensor, torch.Tensor]:
    """The digits of the client's partition."""
    node = context.node_config
    return task.partition(int(node["partition-id"]), int(node["num-partitions"]))


def received_model(message: Message) -> torch.nn.Module:
    """The network with the weights that the message holds."""
    model = task.make_model()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    return model
