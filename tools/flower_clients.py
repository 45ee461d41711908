"""A federation on Flower in this process: honest clients and liars, for `flower_attacks.py`."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from holdout.data.datasets import load
from holdout.errors import InfeasibleError
from holdout.flower.robust import Robust
from holdout.flower.strategy import HoldOut
from holdout.rules import RULES
from holdout.seeds import stream

PIXELS, HIDDEN, CLASSES = 784, 32, 10
ROUNDS, EPOCHS, BATCH, RATE = 15, 3, 32, 0.05
LATE = 8
"""From which round on liars lie who wait."""
FIRST_NODE = 101
TARGET_CLASS = 0
DRAWN = "drawn "
"""Before the name of a rule that gets the updates of HoldOut's proposers alone."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A federation: how many clients, how many of them lie, how many propose in a round."""

    clients: int
    liars: int
    proposers: int


Parts = tuple[Tensor, Tensor, Tensor, Tensor]


def parts(rows: Tensor) -> Parts:
    """The layers' weights and biases in flat weights, (n, d)."""
    n, first, second = len(rows), PIXELS * HIDDEN, HIDDEN * CLASSES
    w1, b1, w2, b2 = torch.split(rows, [first, HIDDEN, second, CLASSES], dim=1)
    return w1.view(n, PIXELS, HIDDEN), b1.view(n, 1, -1), w2.view(n, HIDDEN, -1), b2.view(n, 1, -1)


def first_weights(seed: int) -> Tensor:
    """The initial network, uniform as torch has it."""
    generator = torch.Generator().manual_seed(seed)
    w1 = (2 * torch.rand(PIXELS * HIDDEN, generator=generator) - 1) / math.sqrt(PIXELS)
    w2 = (2 * torch.rand(HIDDEN * CLASSES, generator=generator) - 1) / math.sqrt(HIDDEN)
    return torch.cat([w1, torch.zeros(HIDDEN), w2, torch.zeros(CLASSES)])


def train(weights: Tensor, x: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
    """The weights of all clients after local SGD, (n, d); x is (n, m, pixels)."""
    rows = weights.repeat(len(x), 1)
    w1, b1, w2, b2 = parts(rows)
    for _ in range(EPOCHS):
        for batch in torch.split(torch.randperm(x.shape[1], generator=generator), BATCH):
            inputs, labels = x[:, batch], y[:, batch, None]
            hidden = torch.baddbmm(b1, inputs, w1).relu_()
            slope = torch.softmax(torch.baddbmm(b2, hidden, w2), -1)
            slope.scatter_add_(2, labels, -torch.ones_like(labels, dtype=slope.dtype))
            slope *= RATE / len(batch)
            back = (slope @ w2.transpose(1, 2)) * (hidden > 0)
            w2 -= hidden.transpose(1, 2) @ slope
            b2 -= slope.sum(1, keepdim=True)
            w1.baddbmm_(inputs.transpose(1, 2), back, alpha=-1.0)
            b1 -= back.sum(1, keepdim=True)
    return rows


def predict(weights: Tensor, x: Tensor) -> Tensor:
    """The class that a network sees in each row."""
    w1, b1, w2, b2 = (part[0] for part in parts(weights[None]))
    return ((x @ w1 + b1).relu() @ w2 + b2).argmax(1)


def with_trigger(x: Tensor) -> Tensor:
    """A white square in the corner."""
    marked = x.clone()
    marked.view(*x.shape[:-1], 28, 28)[..., 24:27, 24:27] = x.max()
    return marked


def share_out(y: Tensor, clients: int, split: str, seed: int) -> Tensor:
    """Which rows each client holds, (n, m)."""
    source = stream(seed, "partition")
    each = len(y) // clients
    if split == "equal":
        return torch.tensor(source.sample(range(len(y)), clients * each)).view(clients, each)
    slots = [number % CLASSES for number in range(2 * clients)]
    pairs: list[list[int]] = [[0, 0]]
    while any(first == second for first, second in pairs):
        drawn = source.sample(slots, len(slots))
        pairs = [drawn[place : place + 2] for place in range(0, len(slots), 2)]
    taken = [0] * CLASSES
    rows = []
    for pair in pairs:
        own: list[int] = []
        for label in pair:
            held = (y == label).nonzero().flatten()
            places = (torch.arange(each // 2) + taken[label]) % len(held)
            own += held[places].tolist()
            taken[label] += each // 2
        rows.append(source.sample(own, len(own)))
    return torch.tensor(rows)


@dataclass(eq=False)
class Clients(Grid):
    """All clients in this process; the first message of a round trains them all."""

    setting: Setting
    split: str
    attack: str
    seed: int
    voters: Callable[[], list[int]]
    _round: int = 0
    _updates: Tensor = field(default_factory=lambda: torch.empty(0))
    _replies: dict[str, Message] = field(default_factory=dict)

    def __post_init__(self) -> None:
        data = load("mnist-5k")
        rows = share_out(data.y_train, self.setting.clients, self.split, self.seed)
        self.x, self.y = data.x_train.flatten(1)[rows], data.y_train[rows]
        drawn = stream(self.seed, "byzantine").sample(
            range(self.setting.clients), self.setting.liars
        )
        self.liars = [] if self.attack == "none" else sorted(drawn)
        self.generator = torch.Generator().manual_seed(self.seed)
        noise = torch.randn(len(first_weights(0)), generator=self.generator)
        self.drift: Tensor = noise / torch.linalg.vector_norm(noise)

    def updates(self, weights: Tensor) -> Tensor:
        """What each client sends, as an update w - w_j."""
        sent = weights - train(weights, self.x, self.y, self.generator)
        if self.liars:
            honest = [c for c in range(len(sent)) if c not in self.liars]
            sent[self.liars] = self._lies(weights, sent[self.liars], sent[honest])
        return sent

    def _lies(self, weights: Tensor, own: Tensor, honest: Tensor) -> Tensor:
        name, _, number = self.attack.partition("-" if "-" in self.attack else "+")
        centre, spread = honest.mean(0), honest.std(0, unbiased=False)
        x, y = self.x[self.liars], self.y[self.liars]
        match name:
            case "replace":
                return (20 * (weights - first_weights(10**6))).expand_as(own)
            case "flip":
                return -float(number) * own
            case "late":
                return own if self._round < LATE else -own
            case "labels":
                return weights - train(weights, x, CLASSES - 1 - y, self.generator)
            case "drift":
                usual = float(torch.linalg.vector_norm(honest, dim=1).median())
                moved: Tensor = self.drift * usual
                return moved.expand_as(own)
            case "alie":
                sign = -1 if "-" in self.attack else 1
                return (centre + sign * float(number) * spread).expand_as(own)
            case "permute":
                return weights - torch.stack([self._permuted(row) for row in weights - own])
            case "nan":
                return torch.full_like(own, math.nan)
            case "backdoor":
                half = x.shape[1] // 2
                x, y = x.clone(), y.clone()
                x[:, :half], y[:, :half] = with_trigger(x[:, :half]), TARGET_CLASS
                return weights - train(weights, x, y, self.generator)
            case _:  # Liars who propose honestly.
                return own

    def _permuted(self, row: Tensor) -> Tensor:
        order = torch.randperm(HIDDEN, generator=self.generator)
        w1, b1, w2, b2 = (part[0] for part in parts(row[None]))
        return torch.cat([w1[:, order].flatten(), b1[0, order], w2[order].flatten(), b2[0]])

    def answer(self, message: Message) -> Message:
        """What one client returns."""
        node, number = message.metadata.dst_node_id, int(message.metadata.group_id)
        weights = torch.from_numpy(message.content.array_records["arrays"]["all"].numpy())
        if number != self._round:
            self._round, self._updates = number, self.updates(weights)
        update = self._updates[node - FIRST_NODE]
        is_liar = node - FIRST_NODE in self.liars
        if self.attack == "votes" and is_liar and node in self.voters():
            honest = [c for c in range(len(self._updates)) if c not in self.liars]
            update = -self._updates[honest].mean(0)
        arrays = ArrayRecord({"all": Array((weights - update).numpy())})
        metrics = MetricRecord({"num-examples": self.x.shape[1]})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    def get_node_ids(self) -> Iterable[int]:
        """All clients."""
        return range(FIRST_NODE, FIRST_NODE + self.setting.clients)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Answer at once."""
        identifiers = []
        for message in messages:
            identifier = f"{message.metadata.group_id}-{message.metadata.dst_node_id}"
            message.metadata.__dict__["_message_id"] = identifier
            self._replies[identifier] = self.answer(message)
            identifiers.append(identifier)
        return identifiers

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The answers."""
        return [self._replies.pop(name) for name in message_ids if name in self._replies]

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


def make_strategy(rule: str, setting: Setting, seed: int) -> HoldOut | Robust:
    """HoldOut with its default share of liars; other rules are told the true number if they can."""
    if rule == "holdout":
        voters = setting.clients - setting.proposers
        return HoldOut(
            num_proposers=setting.proposers, num_voters=voters, seed=seed, fraction_evaluate=0.0
        )
    name = rule.removeprefix(DRAWN)
    asked = setting.proposers if rule.startswith(DRAWN) else setting.clients
    share = f"{most_told(name, asked, setting.liars)}/{asked}"
    return Robust(
        rule=name, num_proposers=asked, byzantine_fraction=share, seed=seed, fraction_evaluate=0.0
    )


def most_told(rule: str, updates: int, liars: int) -> int:
    """The number of liars, or the largest below it that the rule can be told among so many."""
    told = min(liars, (updates - 1) // 2)
    while told:
        try:
            RULES[rule].check_feasible(rule, n=updates, f=told)
        except InfeasibleError:
            told -= 1
        else:
            break
    return told


def run(rule: str, setting: Setting, split: str, attack: str, seed: int) -> dict[str, Any]:
    """One federation: final accuracy in percent, lies selected, the backdoor's success."""
    strategy = make_strategy(rule, setting, seed)
    drawn: list[int] = []

    def voters() -> list[int]:
        return strategy._open.voters if strategy._open else drawn  # noqa: SLF001

    grid = Clients(setting, split, attack, seed, voters)
    start = ArrayRecord({"all": Array(first_weights(seed).numpy())})
    result = strategy.start(grid, start, num_rounds=ROUNDS)
    data, weights = load("mnist-5k"), torch.from_numpy(result.arrays["all"].numpy())
    x, y = data.x_test.flatten(1), data.y_test
    counts = {"lies": 0, "lies_selected": 0, "honest": 0, "honest_selected": 0}
    for line in strategy._recorder.lines:  # noqa: SLF001
        if line["selection"] is None:
            continue
        for place, client in enumerate(line["proposers"]):
            who = "lies" if client in grid.liars else "honest"
            counts[who] += 1
            counts[f"{who}_selected"] += place in line["selection"]
    others = y != TARGET_CLASS
    caught = predict(weights, with_trigger(x[others])) == TARGET_CLASS
    return {
        "accuracy": 100 * float((predict(weights, x) == y).double().mean()),
        "success": 100 * float(caught.double().mean()),
        **counts,
    }
