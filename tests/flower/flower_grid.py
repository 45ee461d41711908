"""A federation in one process: a grid whose nodes are functions, and small records to send."""

import importlib.util
import itertools
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

OFFLINE = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
}

EXAMPLE = Path(__file__).resolve().parent.parent.parent / "examples" / "flower-mnist"

Node = Callable[[Message], object]


class SilentError(Exception):
    """Raised by a node that does not answer."""


class FakeGrid(Grid):
    """Nodes by id; each is called with what is sent to it.

    A node returns a message or a list of them; an exception among them is raised when it is pulled.
    """

    def __init__(self, nodes: dict[int, Node]) -> None:
        self.nodes = nodes
        self.sent: list[Message] = []
        self._replies: dict[str, list[object]] = {}
        self._ids = itertools.count(1)

    def set_run(self, run):
        raise NotImplementedError

    @property
    def run(self):
        raise NotImplementedError

    def create_message(self, content, message_type, dst_node_id, group_id, ttl=None):
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def push_messages(self, messages):
        identifiers = []
        for message in messages:
            identifier = f"message-{next(self._ids)}"
            message.metadata.__dict__["_message_id"] = identifier
            identifiers.append(identifier)
            self.sent.append(message)
            try:
                reply = self.nodes[message.metadata.dst_node_id](message)
            except SilentError:
                continue
            except Exception as error:  # noqa: BLE001  (As a SuperNode does when an app raises.)
                reply = Message(Error(2, f"{type(error)}:<'{error}'>"), reply_to=message)
            self._replies[identifier] = reply if isinstance(reply, list) else [reply]
        return identifiers

    def pull_messages(self, message_ids):
        found = [m for identifier in message_ids for m in self._replies.pop(identifier, [])]
        for message in found:
            if isinstance(message, Exception):
                raise message
        return found

    def send_and_receive(self, messages, *, timeout=None):  # noqa: ARG002  (Nobody waits.)
        return self.pull_messages(self.push_messages(messages))


class WatchedGrid(FakeGrid):
    """Answers when so many questions have been open at once, and then not before the second asking.

    That gives the server the time to send more than it may.
    """

    def __init__(self, nodes, wanted):
        super().__init__(nodes)
        self.wanted, self.most, self._fetched, self._asked = wanted, 0, 0, set()

    def push_messages(self, messages):
        identifiers = super().push_messages(messages)
        self.most = max(self.most, len(self.sent) - self._fetched)
        return identifiers

    def pull_messages(self, message_ids):
        if self._asked.issuperset(message_ids):
            # Before the reply is on its way, so that nothing is counted as open that is not.
            found = super().pull_messages(message_ids)
            self._fetched += len(found)
            return found
        if self.most >= self.wanted:
            self._asked.update(message_ids)
        return []


SHAPES = {"weight": (3, 4), "bias": (3,)}


def arrays(value: float = 0.0, **changes: Array) -> ArrayRecord:
    """A model of fifteen weights, all alike."""
    named = {name: Array(np.full(shape, value, np.float32)) for name, shape in SHAPES.items()}
    return ArrayRecord({**named, **changes})


def train_reply(message: Message, record: ArrayRecord, **metrics: float) -> Message:
    """What an ordinary client returns."""
    numbers = MetricRecord({"num-examples": 10, **metrics})
    return Message(RecordDict({"arrays": record, "metrics": numbers}), reply_to=message)


def ballot_reply(message: Message, approved: object) -> Message:
    """What a voter returns."""
    return Message(RecordDict({"ballot": MetricRecord({"approved": approved})}), reply_to=message)


def weights(record: ArrayRecord) -> np.ndarray:
    """All numbers of a record, as one vector."""
    return np.concatenate([array.numpy().ravel() for array in record.values()])


def context(**config) -> Context:
    return Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=config)


def client_app(goal: float, *, mods=()) -> ClientApp:
    """Trains half the way to `goal`; its evaluation's loss is the squared distance to 1."""
    app = ClientApp(mods=list(mods))

    @app.train()
    def train(message, _context):
        record = {
            name: Array(np.float32(0.5 * array.numpy() + 0.5 * goal))
            for name, array in message.content["arrays"].items()
        }
        return train_reply(message, ArrayRecord(record), train_loss=1.0)

    @app.evaluate()
    def evaluate(message, _context):
        loss = float(((weights(message.content["arrays"]) - 1.0) ** 2).mean())
        metrics = MetricRecord({"num-examples": 3, "eval_loss": loss, "eval_acc": 0.5})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def as_node(app: ClientApp) -> Node:
    return lambda message: app(message, context())


def load_deploy() -> ModuleType:
    """The script with which the example is deployed."""
    spec = importlib.util.spec_from_file_location("flower_mnist_deploy", EXAMPLE / "deploy.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
