"""How Byzantine voters lie where a rule asks voters what updates do to the loss of every class.

The names are those of `attacks.ballots`, for the same intents. A report has a row for each update
and a column for each class: how far the loss falls, NaN where the voter holds no row of the class.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from holdout import device
from holdout.ids import WorkerId
from holdout.seeds import Stream


@dataclass(frozen=True, slots=True, eq=False)
class ReportView:
    """What a Byzantine voter knows when it reports.

    Example:
        >>> import torch
        >>> from holdout import stream
        >>> from holdout.attacks import REPORT_ATTACKS
        >>> own = torch.tensor([[0.3, 0.1], [-0.2, 0.0]])
        >>> view = ReportView(voter=9, lies=[1], own=lambda: own, source=stream(0))
        >>> promote = REPORT_ATTACKS["coalition"]
        >>> promote(view)
        tensor([[-0.2000,  0.0000],
                [ 0.3000,  0.1000]])
    """

    voter: WorkerId
    """Who reports."""
    lies: list[int]
    """The rows of the updates that Byzantine workers sent."""
    own: Callable[[], Tensor]
    """What this voter would report if it were honest, (n, classes)."""
    source: Stream
    """Random integers that only this voter draws in this round."""

    @property
    def others(self) -> list[int]:
        """The rows of everybody else's updates."""
        return [row for row in range(len(self.own())) if row not in self.lies]


class ReportAttack(Protocol):
    """What a Byzantine voter reports, None for silence; it is checked.

    Example:
        >>> import holdout
        >>> def nothing_helps(view):
        ...     return -view.own().abs()
        >>> plugins = holdout.Plugins(ballots=nothing_helps)
    """

    def __call__(self, view: ReportView) -> Tensor | None:
        """Decide what this voter reports."""


def honest(view: ReportView) -> Tensor | None:
    """What the voter's data says."""
    return view.own()


def coalition(view: ReportView) -> Tensor | None:
    """Every lie is as good as the best update by the voter's data, every other as bad as the worst.

    No number is larger than an honest report's could be.
    """
    return _blame(_praise(view.own(), view.lies), view.others, like=view.own())


def starve(view: ReportView) -> Tensor | None:
    """Everybody else's updates are as bad as the worst; the lies are what the data says."""
    return _blame(view.own(), view.others, like=view.own())


def short(view: ReportView) -> Tensor | None:
    """The lies are as good as the best update; the others are what the data says."""
    return _praise(view.own(), view.lies)


def blank(view: ReportView) -> Tensor | None:
    """Nothing."""
    del view
    return None


def random(view: ReportView) -> Tensor | None:
    """What the data says, about updates in another order."""
    own = view.own()
    generator = device.generator(view.source.generator_seed())
    return own[device.randperm(len(own), generator=generator)]


def inverted(view: ReportView) -> Tensor | None:
    """The opposite of what the data says."""
    return -view.own()


def _praise(report: Tensor, rows: list[int]) -> Tensor:
    praised = report.clone()
    if rows:
        praised[rows] = report.amax(dim=0)
    return praised


def _blame(report: Tensor, rows: list[int], *, like: Tensor) -> Tensor:
    blamed = report.clone()
    if rows:
        blamed[rows] = like.amin(dim=0)
    return blamed
