"""One joint round on Flower of ten proposers and ten voters with 11,000,000 weights each.

The grid is in this process. A reply is made when it is fetched, so that what is measured is what a
server holds: the replies, and whatever it makes of them.
"""

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from holdout.flower.exchange import PollingGrid
from holdout.flower.strategy import HoldOut

WEIGHTS, LAYERS, HALF = 11_000_000, 10, 10
MODEL_BYTES = 4 * WEIGHTS
RECEIVED_BYTES = 2 * HALF * MODEL_BYTES


def model(noise: int = 0) -> ArrayRecord:
    """Ten layers; a client's differ a little from the others'."""
    part = np.full(WEIGHTS // LAYERS, 0.01 * noise, np.float32)
    return ArrayRecord({f"layer{number}": Array(part + number) for number in range(LAYERS)})


class Answering(Grid):
    """Twenty nodes, each with an answer to whatever it is asked."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self._ids = itertools.count(1)

    def get_node_ids(self) -> Iterable[int]:
        """Twenty."""
        return range(1, 1 + 2 * HALF)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Note what is asked."""
        identifiers = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = str(next(self._ids))
            self.sent.append(message)
            identifiers.append(message.metadata.message_id)
        return identifiers

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Make the answers."""
        asked = {message.metadata.message_id: message for message in self.sent}
        return [self._answer(asked[identifier]) for identifier in message_ids]

    def _answer(self, message: Message) -> Message:
        metrics = MetricRecord({"num-examples": 1})
        content = RecordDict({"arrays": model(message.metadata.dst_node_id), "metrics": metrics})
        return Message(content, reply_to=message)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Both at once."""
        del timeout
        return self.pull_messages(self.push_messages(messages))

    def set_run(self, run: Any) -> None:
        """There is none."""

    @property
    def run(self) -> Any:
        """There is none."""
        raise NotImplementedError

    def create_message(self, *_: Any, **__: Any) -> Message:
        """Strategies make their own."""
        raise NotImplementedError


def prepare() -> Callable[[], object]:
    """A round; what it returns is how many bytes a voter was sent, and all messages together."""
    # Outside of a Flower process, messages have no sender yet.
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
    grid, current = Answering(), model()
    strategy = HoldOut(num_proposers=HALF, num_voters=HALF, seed=1, fraction_evaluate=0.0)

    def act() -> object:
        asked = list(strategy.configure_train(1, current, ConfigRecord(), grid))
        replies = PollingGrid(grid, {}).send_and_receive(asked)
        _, metrics = strategy.aggregate_train(1, replies)
        if metrics is None or metrics["holdout-ballots-accepted"] != HALF:
            raise RuntimeError(f"the round went wrong: {metrics}")
        # Messages with the same content are stored once: by the hash of what they hold.
        one = sum(_size(record) for record in asked[0].content.array_records.values())
        contents = {id(message.content): message.content for message in asked}
        stored = sum(
            _size(record)
            for content in contents.values()
            for record in content.array_records.values()
        )
        return np.array([one, stored])

    return act


def _size(record: ArrayRecord) -> int:
    return sum(len(array.data) for array in record.values())
