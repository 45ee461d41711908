"""A client that answers everything at once: weights as they came, a ballot for the first."""

from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message: Message, _context: Context) -> Message:
    """The weights as they came."""
    metrics = MetricRecord({"num-examples": 1})
    content = RecordDict({"arrays": message.content["arrays"], "metrics": metrics})
    return Message(content, reply_to=message)


@app.evaluate("vote")
def vote(message: Message, _context: Context) -> Message:
    """A ballot, without looking."""
    return Message(RecordDict({"ballot": MetricRecord({"approved": [0]})}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, _context: Context) -> Message:
    """A number."""
    return Message(
        RecordDict({"metrics": MetricRecord({"loss": 1.0, "num-examples": 1})}), reply_to=message
    )
