"""The vote with joint ballots (rule `holdout`): its rounds, what voters send, its peak memory.

Rounds are timed without evaluation, which costs the same whatever the rule.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from bench import memory
from bench.measure import Row, seconds
from bench.simulated import rounds
from holdout.data.datasets import Dataset, load
from holdout.experiments.plugins import Plugins
from holdout.ids import ProposalId, WorkerId
from holdout.joint_vote import JointMemory
from holdout.rounds import admit_proposals, conclude_joint
from holdout.voting import Ballot, JointBallot, Terms
from holdout.workers import HonestWorker

QUIET, ATTACKED, RESIDUAL = 3.0, 6.0, 10.0
"""How many rounds of the mean a round may take, without and with lies; and how many times faster
than a vote that tries every update it must be, with a residual network."""
COPIES_MAX = 2.5
FLOAT = 4  # Bytes.
MANY, FEW = 30, 5
"""Proposals; what a voter receives is the same."""
D, SENDERS = 11_000_000, 10
ENDLESS: Mapping[str, Any] = {"baseline": False, "rounds": 10**6, "evaluate_every": 10**6}
NOBODY: Mapping[str, Any] = {"federation": {"byzantine": 0}, "attack": {"name": "none"}}


def rows() -> list[Row]:
    """Time, bytes, memory."""
    return [_quiet(), _attacked(), _residual(), *_bytes(), _memory()]


def _quiet() -> Row:
    data = _digits()
    times = seconds(
        {
            "mean": _mlp("mean", data, NOBODY),
            "holdout": _mlp("holdout", data, NOBODY),
            "holdout-1": _mlp("holdout-1", data, NOBODY),
            "first-order": _mlp("holdout-1", data, NOBODY, scoring="first-order"),
        },
        repetitions=25,
    )
    took, exact, first_order = (
        times[name] / times["mean"] for name in ("holdout", "holdout-1", "first-order")
    )
    return Row(
        f"holdout round, 30 + 30, MLP, m_c = 200: {QUIET:g} rounds of the mean / time",
        QUIET / took,
        1.0,
        f"{took:.2f} rounds of the mean, each {1000 * times['mean']:.0f} ms; "
        f"holdout-1: {exact:.1f}, to first order {first_order:.1f}",
    )


def _attacked() -> Row:
    data = _digits()
    times = seconds(
        {"mean": _mlp("mean", data, NOBODY), "holdout": _mlp("holdout", data)}, repetitions=15
    )
    took = times["holdout"] / times["mean"]
    return Row(
        f"the same with adaptive alie, 33 of 100 lie: {ATTACKED:g} rounds of the mean / time",
        ATTACKED / took,
        1.0,
        f"{took:.2f} rounds of the mean without lies, each {1000 * times['mean']:.0f} ms",
    )


def _mlp(
    rule: str, data: Dataset, more: Mapping[str, Any] | None = None, *, scoring: str = "exact"
) -> Callable[[], None]:
    config = {
        "experiment": {"rules": [rule], **ENDLESS},
        "vote": {"samples": 200, "scoring": scoring},
        **(more or {}),
    }
    return rounds(config, Plugins(data=data))


def _digits() -> Dataset:
    """60,000 rows, the 4,000 that come with a dependency again and again."""
    digits = load("mnist-5k")
    return Dataset(
        "digits",
        digits.x_train.repeat(15, 1, 1, 1),
        digits.y_train.repeat(15),
        digits.x_test,
        digits.y_test,
        digits.classes,
    )


# --------------------------------------------------------------------------------- residual network


class Block(nn.Module):
    """x + f(x), of two convolutions."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.GroupNorm(4, channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.GroupNorm(4, channels),
        )

    def forward(self, x: Tensor) -> Tensor:
        """The body's output added to the input."""
        return torch.relu(x + self.body(x))


def resnet(_shape: tuple[int, ...], classes: int) -> nn.Module:
    """A residual network of about 20,000 parameters, for images of three channels."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, stride=2, bias=False),
        nn.GroupNorm(4, 16),
        nn.ReLU(),
        Block(16),
        Block(16),
        Block(16),
        nn.Conv2d(16, 36, 3, padding=1, stride=2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(36, classes),
    )


def _residual() -> Row:
    times = seconds({rule: _images(rule) for rule in ("holdout", "holdout-1")}, repetitions=5)
    d = sum(p.numel() for p in resnet((3, 32, 32), 10).parameters())
    return Row(
        f"ResNet, d = {d:,}, 8 + 8 x 100 samples, adaptive alie: holdout-1 / holdout",
        times["holdout-1"] / times["holdout"],
        RESIDUAL,
        f"{times['holdout-1']:.2f} s and {times['holdout']:.2f} s",
    )


def _images(rule: str) -> Callable[[], None]:
    generator = torch.Generator().manual_seed(0)
    data = Dataset(
        "images",
        torch.randn(4000, 3, 32, 32, generator=generator),
        torch.randint(0, 10, (4000,), generator=generator),
        torch.randn(100, 3, 32, 32, generator=generator),
        torch.randint(0, 10, (100,), generator=generator),
        10,
    )
    config = {
        "experiment": {"rules": [rule], **ENDLESS},
        "data": {"normalise": False, "samples_per_worker": 200},
        "federation": {"workers": 24, "proposers": 8, "voters": 8, "byzantine": 8},
        "training": {"batch_size": 100},
        "vote": {"samples": 100},
    }
    return rounds(config, Plugins(data=data, model=resnet))


# -------------------------------------------------------------------------------------------- bytes


@dataclass(frozen=True, slots=True, eq=False)
class Counted:
    """An honest worker that notes how many bytes it is given to vote, and how many it answers."""

    honest: HonestWorker
    received: set[int] = field(default_factory=set)
    sent: set[int] = field(default_factory=set)

    def propose(self, weights: Tensor, **round_facts: Any) -> Tensor:
        """As the honest worker does."""
        return self.honest.propose(weights, **round_facts)

    def vote(
        self, weights: Tensor, proposals: Mapping[ProposalId, Tensor], **round_facts: Any
    ) -> Ballot:
        """As the honest worker does, but counted."""
        ballot = self.honest.vote(weights, proposals, **round_facts)
        given = [weights, *proposals.values()]
        self.received.add(sum(vector.nbytes for vector in given))
        self.sent.add(ballot.update.nbytes if isinstance(ballot, JointBallot) else 0)
        return ballot


def _bytes() -> list[Row]:
    data = _digits()
    (few, sent_few), (many, sent_many) = (_traffic("holdout", n, data) for n in (FEW, MANY))
    by_names = [_traffic("holdout-1", n, data)[0] for n in (FEW, MANY)]
    return [
        Row(
            f"holdout, bytes to a voter: with {FEW} proposals / with {MANY}",
            few / many,
            1.0,
            f"{many:,} bytes, one model; holdout-1: {by_names[0]:,} and {by_names[1]:,}",
        ),
        Row(
            f"holdout, bytes from a voter: with {FEW} proposals / with {MANY}",
            sent_few / sent_many,
            1.0,
            f"{sent_many:,} bytes, one update",
        ),
    ]


def _traffic(rule: str, proposers: int, data: Dataset) -> tuple[int, int]:
    """The most bytes that a voter receives and sends in one round."""
    workers: list[Counted] = []

    def counted(honest: HonestWorker) -> Counted:
        workers.append(Counted(honest))
        return workers[-1]

    config = {
        "experiment": {"rules": [rule], **ENDLESS},
        "federation": {"byzantine": 0, "proposers": proposers},
        "vote": {"samples": 200},
        "attack": {"name": "none"},
    }
    rounds(config, Plugins(data=data, worker=counted))()
    return (
        max(count for worker in workers for count in worker.received),
        max(count for worker in workers for count in worker.sent),
    )


# ------------------------------------------------------------------------------------------- memory


def _memory() -> Row:
    need = memory.of(__name__, D)
    above = need.bytes / (FLOAT * SENDERS * D)
    # The proposals are one copy and the messages another; both are there before.
    return Row(
        f"conclude_joint, {SENDERS} + {SENDERS}, d = {D:,}: {COPIES_MAX} copies of the proposals "
        "/ peak memory, proposals and messages included",
        COPIES_MAX / (2 + above),
        1.0,
        f"{2 + above:.2f} copies, of which {above:.2f} ({need}) above the start",
    )


def prepare(d: str) -> Callable[[], object]:
    """A vote on proposals and messages that are there already, and on a direction remembered."""
    _conclude(*_sent(1000))  # Loads what is loaded on demand.
    return partial(_conclude, *_sent(int(d)))


def _sent(d: int) -> tuple[Tensor, Tensor, JointMemory]:
    generator = torch.Generator().manual_seed(0)
    common = torch.randn(d, generator=generator)
    proposals, messages = (
        torch.randn(SENDERS, d, generator=generator).add_(common) for _ in range(2)
    )
    radius = float(proposals[0].norm())
    return proposals, messages, JointMemory(3, radius, radius, common / common.norm())


def _conclude(proposals: Tensor, messages: Tensor, remembered: JointMemory) -> object:
    voters = [WorkerId(number) for number in range(len(messages))]
    return conclude_joint(
        admit_proposals(list(proposals), dimension=proposals.shape[1]),
        list(zip(voters, messages, strict=True)),
        voters=voters,
        terms=Terms.joint(Fraction(1, 3)),
        memory=remembered,
    )
