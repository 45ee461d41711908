"""Voters whom a rule asks what updates do to the loss of every class, liars among them.

An honest voter looks at its holdout rows of the round, at most `ROWS_OF_A_CLASS` of each class. A
loss beyond `LOSS_MAX` counts as that much: such an update is hopeless either way, and reports stay
comparable.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from holdout import device
from holdout.attacks import ReportView
from holdout.custom_code import ask_each, guard, spare
from holdout.errors import MisuseError
from holdout.federation.round_setup import BALLOT, VOTE, RoundSetup
from holdout.ids import WorkerId
from holdout.learning import sparse
from holdout.learning.scoring import Samples, sample_losses, takes_sparse
from holdout.seeds import stream
from holdout.tracebacks import Failure
from holdout.voting import BallotFault
from holdout.workers import HonestWorker, is_plain

ROWS_OF_A_CLASS = 20
LOSS_MAX = 100.0
REPORT_MAX = 1e6
"""A report with a number beyond this is void: no honest one comes near it."""


@dataclass(frozen=True, eq=False)
class Reporters:
    """The voters of a round before they are asked; what does not depend on updates is kept."""

    setup: RoundSetup
    stand_ins: Mapping[WorkerId, HonestWorker] = field(default_factory=dict)
    """Whose data is taken for an honest voter's; others speak for themselves."""
    only: WorkerId | None = None
    """The one voter who is asked, if not all are."""

    def about(self, lies: Sequence[int], failures: list[Failure] | None = None) -> "Asked":
        """The voters, of whom the liars know that these rows are the coalition's.

        What custom code raises when they are asked goes into `failures`.
        """
        return Asked(self, tuple(lies), [] if failures is None else failures)

    @cached_property
    def workers(self) -> Mapping[WorkerId, HonestWorker]:
        """Those who can be asked, by id; custom workers cannot, and stay silent."""
        setup = self.setup
        held: dict[WorkerId, HonestWorker] = {}
        for voter in setup.committee.voters:
            if self.only not in (None, voter):
                continue
            if voter in setup.byzantine:
                (held[voter],) = setup.honest_part([voter])
                continue
            worker = self.stand_ins.get(voter, setup.federation.workers[voter])
            if is_plain(worker):
                held[voter] = worker
        return held

    @cached_property
    def classes(self) -> int:
        """How many columns a report has."""
        classes = self.setup.federation.classes
        if classes is None:
            raise MisuseError("voters report on classes; real-valued targets have none")
        return classes

    @cached_property
    def samples(self) -> tuple[Samples, Tensor, Tensor]:
        """The rows of all voters, their labels, and in which (voter, class) each counts."""
        parts = []
        for place, worker in enumerate(self.workers.values()):
            rows = worker.holdout_rows(self.setup.number)
            labels = worker.shard.y[rows]
            few = torch.cat(
                [
                    torch.nonzero(labels == c).flatten()[:ROWS_OF_A_CLASS]
                    for c in range(self.classes)
                ]
            )
            parts.append((rows[few], labels[few], place * self.classes + labels[few]))
        rows, y, cells = (torch.cat(part) for part in zip(*parts, strict=True))
        return self._take(rows, [len(part[0]) for part in parts]), y, cells

    def _take(self, rows: Tensor, counts: Sequence[int]) -> Samples:
        pools = [worker.shard.x for worker in self.workers.values()]
        if any(pool is not pools[0] for pool in pools):
            apart = zip(pools, torch.split(rows, list(counts)), strict=True)
            return torch.cat([pool[some] for pool, some in apart])
        x = pools[0]
        if takes_sparse(self.setup.federation.model, tuple(x.shape[1:])):
            compressed = sparse.of(x)
            if compressed is not None:
                return sparse.take(compressed, rows)
        return x[rows]

    @cached_property
    def current(self) -> Tensor:
        """The losses of the model as it is, (voters, 1, classes)."""
        return self.losses(torch.zeros_like(self.setup.state.weights)[None])

    def truths(self, updates: Tensor) -> Tensor:
        """How far each update lowers the losses of each voter, (voters, n, classes)."""
        return self.current - self.losses(updates)

    def losses(self, updates: Tensor) -> Tensor:
        """The mean loss of each voter's rows of each class, (voters, n, classes); NaN: no rows."""
        setup = self.setup
        x, y, cells = self.samples
        candidates = setup.state.weights - setup.learning_rate * updates
        losses = guard(
            "a worker's model or data",
            lambda: sample_losses(
                setup.federation.model, candidates, x, y, loss=setup.federation.loss
            ),
        )
        bounded = losses.double().clamp(max=LOSS_MAX)
        size = len(self.workers) * self.classes
        sums = device.zeros(len(updates), size, dtype=torch.float64).index_add_(1, cells, bounded)
        means = sums / torch.bincount(cells, minlength=size)
        return means.view(len(updates), len(self.workers), self.classes).transpose(0, 1)


@dataclass(frozen=True, eq=False)
class Asked:
    """The voters as a rule asks them: `holdout.rules.ReportingVoters`."""

    reporters: Reporters
    lies: tuple[int, ...]
    failures: list[Failure]
    """What custom code raised."""
    void: dict[WorkerId, BallotFault] = field(default_factory=dict)
    """Whose report was void when they were last asked, and why."""

    def impacts(self, updates: Tensor) -> list[Tensor | None]:
        """What each voter reports, in the order of the draw; None: nothing valid."""
        reporters, setup = self.reporters, self.reporters.setup
        self.void.clear()
        sent: dict[WorkerId, Tensor | BallotFault] = {}
        if reporters.workers:
            pairs = self._truths(updates.to(setup.state.weights))
            sent = {voter: self._report(voter, own) for voter, own in pairs.items()}
        return [
            self._admit(voter, sent.get(voter, BallotFault.MISSING))
            for voter in setup.committee.voters
        ]

    def _truths(self, updates: Tensor) -> dict[WorkerId, Tensor]:
        """What each voter would report if it were honest; if custom code raises, each alone."""
        reporters = self.reporters
        voters = list(reporters.workers)
        truths = ask_each(
            lambda some: (
                reporters if len(some) == len(voters) else replace(reporters, only=some[0])
            ).truths(updates),
            voters,
            kind=VOTE,
            who=lambda voter: f"worker {voter}, asked to report: ",
            failures=self.failures,
        )
        pairs = zip(voters, truths, strict=True)
        return {voter: truth for voter, truth in pairs if truth is not None}

    def _admit(self, voter: WorkerId, report: Tensor | BallotFault) -> Tensor | None:
        if isinstance(report, Tensor):
            return report
        self.void[voter] = report
        return None

    def _report(self, voter: WorkerId, own: Tensor) -> Tensor | BallotFault:
        setup = self.reporters.setup
        if voter not in setup.byzantine:
            return own
        view = ReportView(
            voter=voter,
            lies=[row for row in self.lies if row < len(own)],
            own=own.clone,
            source=stream(setup.federation.seed, "ballot", setup.number, voter),
        )
        told: object = spare(
            lambda: guard("the attack on ballots", lambda: setup.report_attack(view)),
            kind=BALLOT,
            failures=self.failures,
        )
        return admitted_report(told, like=own)


def admitted_report(report: object, *, like: Tensor) -> Tensor | BallotFault:
    """The report as the server reads it, or why it is void."""
    if report is None:
        return BallotFault.MISSING
    if not isinstance(report, Tensor) or report.layout is not torch.strided:
        return BallotFault.MALFORMED
    if not device.is_here(report) or report.shape != like.shape:
        return BallotFault.MALFORMED
    if not report.is_floating_point():
        return BallotFault.MALFORMED
    numbers = report.detach().double()
    known = numbers[~numbers.isnan()]
    return numbers if bool((known.abs() <= REPORT_MAX).all()) else BallotFault.NOT_FINITE
