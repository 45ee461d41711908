"""HoldOut on Flower under attack, next to other rules: `docs/results/flower.md`.

    python tools/flower_attacks.py

Federations of 20 clients with 5 liars and of 18 with 6 train 784-32-10 networks on the 4,000
packaged digits, by three epochs of local SGD a round, 15 rounds, three seeds, on none of which the
vote's settings were chosen (decision 17). Strategies and messages are the real ones; the grid is in
this process, and trains all clients of a round in one batch. Each finished run is a line of
`docs/results/flower.jsonl`, so that a stopped command goes on where it was.
"""

import argparse
import json
import logging
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity
from torch import Tensor

from holdout.data.datasets import load
from holdout.flower.robust import Robust
from holdout.flower.strategy import HoldOut
from holdout.seeds import stream

PAGE = Path(__file__).resolve().parent.parent / "docs" / "results" / "flower.md"
LINES = PAGE.with_suffix(".jsonl")
PIXELS, HIDDEN, CLASSES = 784, 32, 10
ROUNDS, EPOCHS, BATCH, RATE = 15, 3, 32, 0.05
SEEDS = range(3, 6)
"""Seeds 0 to 2 were used to choose."""
LATE = 8
"""From which round on liars lie who wait."""
FIRST_NODE = 101
TARGET_CLASS = 0


@dataclass(frozen=True, slots=True)
class Setting:
    """A federation: how many clients, how many of them lie, who proposes, what Bulyan can do."""

    clients: int
    liars: int
    proposers: int
    bulyan: int
    """The most liars that Bulyan can be told of: n >= 4f + 3."""


SETTINGS = (Setting(20, 5, 14, 4), Setting(18, 6, 12, 3))
SPLITS = {"equal": "equal data", "two": "two classes a client"}
RULES = {
    "holdout": "HoldOut",
    "krum": "Krum",
    "multi-krum": "multi-Krum",
    "median": "median",
    "trimmed-mean": "trimmed mean",
    "geometric-median": "geom. median",
    "bulyan": "Bulyan",
}
ATTACKS = {
    "none": "nobody lies",
    "replace": "replace x 20",
    "flip-10": "sign flip x 10",
    "flip-1": "sign flip x 1",
    "late": f"sign flip x 1 from round {LATE} on",
    "labels": "label flip",
    "drift": "drift",
    "alie+1.5": "ALIE +1.5",
    "alie-1.5": "ALIE -1.5",
    "alie-10": "ALIE -10",
    "permute": "permuted units",
    "nan": "NaN, void ballots",
    "votes": "votes only",
    "backdoor": "backdoor",
}
NEAR, LOUD_MAX, BACKDOOR_MAX = 2, 10, 20
"""Targets: points, and percent."""
LOUD = ("replace", "flip-10", "alie-10", "permute", "nan")
ABOUT = (
    "Made by `python tools/flower_attacks.py` of the lines in [flower.jsonl](flower.jsonl).",
    "Final accuracy in percent,",
    f"after {ROUNDS} rounds of {EPOCHS} local epochs of SGD (batches of {BATCH}, rate {RATE}) of a",
    f"{PIXELS}-{HIDDEN}-{CLASSES} network on 4,000 packaged digits. All clients train every round.",
    "HoldOut (joint ballots, `byzantine_fraction` as it is by default) has 14 of 20 or 12 of 18",
    "propose and the others vote; the rules average or choose among all clients and are told the",
    "true number of liars, Bulyan the most that it can be told (4 of 20, 3 of 18). Liars do not",
    "know whether they propose or vote, except in *votes only*: there they propose honestly and,",
    "as voters, send the reverse of the honest mean. *Lies in*: how many of the proposed lies were",
    "averaged, and the same of honest proposals. Each cell is the mean over the seeds",
    f"{SEEDS.start} to {SEEDS.stop - 1}; a small number behind it says how many of them were run,",
    "where not all were, and an empty cell was not run at all.",
)
CAVEATS = (
    "**How to read this.** HoldOut's constants were chosen on the seeds 0 to 2, which are not",
    "here: [decision 17](../decisions/0017-the-vote-on-flower.md) says from what, and what",
    "failed. Where clients hold two classes each, a run's accuracy moves by about five points",
    "from one round to the next, so differences of a few points between columns are noise;",
    "the best of six rules is a high mark for the same reason. *Loud* was taken to mean",
    "replace, sign flip x 10, ALIE -10, permuted units and NaN. The targets speak of a sign",
    "flip without a factor: both are listed.",
)
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
    """HoldOut with its default share of liars; other rules are told the true one."""
    if rule == "holdout":
        voters = setting.clients - setting.proposers
        return HoldOut(
            num_proposers=setting.proposers, num_voters=voters, seed=seed, fraction_evaluate=0.0
        )
    told = setting.bulyan if rule == "bulyan" else setting.liars
    share = f"{told}/{setting.clients}"
    return Robust(rule=rule, byzantine_fraction=share, seed=seed, fraction_evaluate=0.0)


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


Key = tuple[int, str, str, str]
"""Clients, split, attack, rule."""
Runs = Mapping[int, Mapping[str, Any]]
"""Finished runs by seed."""


def read(path: Path) -> dict[Key, dict[int, dict[str, Any]]]:
    """The finished runs, by what was run and by seed."""
    found: dict[Key, dict[int, dict[str, Any]]] = {}
    for text in path.read_text("utf-8").splitlines() if path.exists() else ():
        line = json.loads(text)
        key = (line["clients"], line["split"], line["attack"], line["rule"])
        found.setdefault(key, {})[line["seed"]] = line
    return found


def average(runs: Runs, what: str) -> float:
    """The mean over the seeds."""
    return mean(float(line[what]) for line in runs.values())


def page(found: Mapping[Key, Runs]) -> str:
    """The page of results."""
    text = ["# HoldOut on Flower, under attack", "", " ".join(ABOUT)]
    for setting in SETTINGS:
        for split, title in SPLITS.items():
            text += ["", f"## {setting.liars} liars of {setting.clients}, {title}", ""]
            text += ["| attack | " + " | ".join(RULES.values()) + " | lies in | honest in |"]
            text += ["|---|" + "---|" * (len(RULES) + 2)]
            for attack, label in ATTACKS.items():
                cells, shares = [], ["", ""]
                for rule in RULES:
                    runs = found.get((setting.clients, split, attack, rule), {})
                    cells.append(_cell(runs, attack))
                    if rule == "holdout" and runs:
                        shares = [_share(runs, who) for who in ("lies", "honest")]
                text.append(f"| {label} | " + " | ".join([*cells, *shares]) + " |")
    text += [
        "",
        " ".join(CAVEATS),
        "",
        "In the row *backdoor* the number in brackets is the attack's success in percent.",
        "",
    ]
    return "\n".join([*text, *verdicts(found), ""])


def _cell(runs: Runs, attack: str) -> str:
    if not runs:
        return ""
    success = f" ({average(runs, 'success'):.0f})" if attack == "backdoor" else ""
    fewer = f" <sup>{len(runs)}</sup>" if len(runs) < len(SEEDS) else ""
    return f"{average(runs, 'accuracy'):.1f}{success}{fewer}"


def _share(runs: Runs, who: str) -> str:
    of = sum(line[who] for line in runs.values())
    return f"{sum(line[f'{who}_selected'] for line in runs.values())} of {of}" if of else ""


@dataclass(frozen=True, slots=True)
class Measured:
    """What was run in one setting."""

    found: Mapping[Key, Runs]
    setting: Setting

    def runs(self, split: str, attack: str, rule: str = "holdout") -> Runs:
        """The finished runs by seed."""
        return self.found.get((self.setting.clients, split, attack, rule), {})

    def value(self, split: str, attack: str) -> float:
        """HoldOut's mean accuracy."""
        return average(self.runs(split, attack), "accuracy")

    def loss(self) -> tuple[float, str] | None:
        """What HoldOut loses at most on equal data, and to which attack."""
        tried = [a for a in ATTACKS if a not in {"none", "backdoor"} and self.runs("equal", a)]
        if not tried or not self.runs("equal", "none"):
            return None
        worst = min(tried, key=lambda a: self.value("equal", a))
        return self.value("equal", "none") - self.value("equal", worst), ATTACKS[worst]

    def gaps(self, split: str) -> dict[str, float]:
        """How far HoldOut is below the best other rule, by attack, on the seeds that all have."""
        gaps = {}
        for attack in ATTACKS:
            rows = {rule: self.runs(split, attack, rule) for rule in RULES}
            rows = {rule: runs for rule, runs in rows.items() if runs}
            common = set[int](SEEDS).intersection(*rows.values())
            if len(rows) > 1 and "holdout" in rows and common:
                means = {
                    rule: average({seed: runs[seed] for seed in common}, "accuracy")
                    for rule, runs in rows.items()
                }
                gaps[attack] = max(v for r, v in means.items() if r != "holdout") - means["holdout"]
        return gaps

    def loudest(self, split: str) -> tuple[float, str] | None:
        """The largest share of a loud attack's lies that were averaged."""
        shares = []
        for attack in LOUD:
            lines = self.runs(split, attack).values()
            lies = sum(line["lies"] for line in lines)
            if lies:
                taken = sum(line["lies_selected"] for line in lines)
                shares.append((100 * taken / lies, ATTACKS[attack]))
        return max(shares, default=None)


def verdicts(found: Mapping[Key, Runs]) -> list[str]:
    """What was aimed at, and whether it was reached, as far as there are runs."""
    text = ["## What was aimed at", "", "| target | where | found | met |", "|---|---|---|---|"]
    for setting in SETTINGS:
        measured = Measured(found, setting)

        def add(target: str, value: str, reached: bool, setting: Setting = setting) -> None:
            where = f"{setting.liars} of {setting.clients}"
            text.append(f"| {target} | {where} | {value} | {'yes' if reached else 'no'} |")

        if loss := measured.loss():
            add(
                "at most 2 points lost on equal data", f"{loss[0]:.1f} ({loss[1]})", loss[0] <= NEAR
            )
        for attack, least in (("none", 75), ("flip-10", 65), ("flip-1", 65)):
            if measured.runs("two", attack):
                value = measured.value("two", attack)
                target = f"two classes, {ATTACKS[attack]}: at least {least}"
                add(target, f"{value:.1f}", value >= least)
        for split, title in SPLITS.items():
            gaps = measured.gaps(split)
            behind = [f"{ATTACKS[a]} {gap:.1f}" for a, gap in gaps.items() if gap > NEAR]
            target = (
                f"{title}: at most 2 points below the best other rule on the same seeds, "
                f"in {len(gaps)} rows"
            )
            add(target, ", ".join(behind) or "everywhere", not behind)
            if loudest := measured.loudest(split):
                target = f"{title}: at most a tenth of the loud lies selected"
                add(target, f"{loudest[0]:.0f} % ({loudest[1]})", loudest[0] <= LOUD_MAX)
            if runs := measured.runs(split, "backdoor"):
                success = average(runs, "success")
                target = f"{title}: a backdoor succeeds in less than 20 %"
                add(target, f"{success:.0f} %", success < BACKDOOR_MAX)
    return text


def todo() -> list[tuple[Key, int]]:
    """Every run, in the order of what they decide: targets, then HoldOut, then the others."""
    runs = [
        ((setting.clients, split, attack, rule), seed)
        for seed in SEEDS
        for split in reversed(SPLITS)
        for attack in ATTACKS
        for setting in SETTINGS
        for rule in RULES
    ]

    def place(run: tuple[Key, int]) -> tuple[bool, bool]:
        (_, split, attack, rule), _ = run
        return rule != "holdout", split != "two" or attack not in {"none", "flip-10", "flip-1"}

    return sorted(runs, key=place)


def main() -> None:
    """Run what is missing, then write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=LINES)
    parser.add_argument("--clients", type=int, choices=[s.clients for s in SETTINGS])
    options = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    # Outside of a Flower process, messages have no sender yet.
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
    found = read(options.out)
    for key, seed in todo():
        if options.clients in {None, key[0]} and seed not in found.get(key, {}):
            setting = next(setting for setting in SETTINGS if setting.clients == key[0])
            _, split, attack, rule = key
            line = dict(zip(("clients", "split", "attack", "rule"), key, strict=True))
            line |= {"seed": seed, **run(rule, setting, split, attack, seed)}
            with options.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
    PAGE.write_text(page(read(options.out)), "utf-8")


if __name__ == "__main__":
    main()
