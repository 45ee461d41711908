"""How Byzantine voters lie where a ballot is an update of the voter's own (a joint ballot).

The names are those of `attacks.ballots`, for the same intents: to promote the coalition's lies, to
work against the honest, to say nothing, to say anything.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from holdout import device
from holdout.ids import WorkerId
from holdout.learning.vector import of_length
from holdout.seeds import Stream


@dataclass(frozen=True, eq=False)
class MessageView:
    """What a Byzantine voter knows when it sends its joint ballot.

    Example:
        >>> from holdout import stream
        >>> view = MessageView(
        ...     voter=9, lies=[torch.tensor([-4.0, 0.0])], own=lambda: torch.tensor([1.0, 1.0]),
        ...     known=lambda: torch.tensor([[2.0, 0.0], [0.0, 2.0]]), source=stream(0),
        ... )
        >>> coalition(view), inverted(view)
        (tensor([-2., 0.]), tensor([-1., -1.]))
    """

    voter: WorkerId
    """Who votes."""
    lies: Sequence[Tensor]
    """What the coalition's proposers send, as far as a server would admit it."""
    own: Callable[[], Tensor]
    """What this voter would send if it were honest."""
    known: Callable[[], Tensor]
    """(h, d) the honest voters' messages, as far as `attack.knowledge` shows them."""
    source: Stream
    """Random integers that only this voter draws in this round."""

    @cached_property
    def usual_norm(self) -> float:
        """The (lower) median of the known messages' L2 norms; where none is known, the own one."""
        known = self.known()
        rows = known if len(known) else self.own()[None]
        return float(torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64).median())


class MessageAttack(Protocol):
    """What a Byzantine voter sends as its joint ballot, None for silence; it is checked.

    Example:
        >>> import holdout
        >>> def twice_as_sure(view):
        ...     return 2 * view.own()
        >>> plugins = holdout.Plugins(ballots=twice_as_sure)
    """

    def __call__(self, view: MessageView) -> Tensor | None:
        """Decide what this voter sends."""


def honest(view: MessageView) -> Tensor | None:
    """What the voter's data says."""
    return view.own()


def coalition(view: MessageView) -> Tensor | None:
    """The coalition's mean lie at the usual length: a direction that speaks for it."""
    if not view.lies:
        return None
    return of_length(torch.stack(list(view.lies)).mean(dim=0), view.usual_norm)


def starve(view: MessageView) -> Tensor | None:
    """The honest messages' mean, reversed: a direction that speaks against honest proposals."""
    known = view.known()
    return of_length(-known.mean(dim=0), view.usual_norm) if len(known) else -view.own()


def short(view: MessageView) -> Tensor | None:
    """The coalition's first lie as it is."""
    return view.lies[0] if view.lies else None


def blank(view: MessageView) -> Tensor | None:
    """Nothing."""
    del view
    return None


def random(view: MessageView) -> Tensor | None:
    """Noise of the usual length."""
    own = view.own()
    noise = device.randn(len(own), generator=device.generator(view.source.generator_seed()))
    return of_length(noise, view.usual_norm)


def inverted(view: MessageView) -> Tensor | None:
    """The opposite of what the voter's data says."""
    return -view.own()
