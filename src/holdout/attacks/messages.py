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
from holdout.learning.vector import norm, of_length
from holdout.seeds import Stream


@dataclass(frozen=True, eq=False)
class CoalitionView:
    """What all Byzantine voters of a round know.

    Example:
        >>> known = torch.tensor([[2.0, 0.0], [0.0, 2.0]])
        >>> CoalitionView([torch.tensor([-4.0, 0.0])], known, usual_norm=2.0).promoting
        tensor([-2.,  0.])
    """

    lies: Sequence[Tensor]
    """What the coalition's proposers send, as far as a server would admit it."""
    known: Tensor
    """(h, d) the honest voters' messages, as far as `attack.knowledge` shows them."""
    usual_norm: float
    """The median of their L2 norms; 0 where none is known."""

    @cached_property
    def promoting(self) -> Tensor | None:
        """The mean of the lies at the usual length; None where there are no lies."""
        if not self.lies:
            return None
        first = self.lies[0]
        same = all(lie is first for lie in self.lies)
        mean = first if same else torch.stack(list(self.lies)).mean(dim=0)
        return of_length(mean, self.usual_norm) if self.usual_norm else mean

    @cached_property
    def opposing(self) -> Tensor | None:
        """The mean of the known messages, reversed, at the usual length; None if none is known."""
        if not len(self.known):
            return None
        return of_length(-self.known.mean(dim=0), self.usual_norm)


@dataclass(frozen=True, slots=True, eq=False)
class MessageView:
    """What a Byzantine voter knows when it sends its joint ballot.

    Example:
        >>> from holdout import stream
        >>> from holdout.attacks import MESSAGE_ATTACKS
        >>> shared = CoalitionView([torch.tensor([-4.0, 0.0])], torch.tensor([[2.0, 0.0]]), 2.0)
        >>> view = MessageView(9, shared, own=lambda: torch.tensor([1.0, 1.0]), source=stream(0))
        >>> promote, invert = MESSAGE_ATTACKS["coalition"], MESSAGE_ATTACKS["inverted"]
        >>> promote(view), invert(view)
        (tensor([-2.,  0.]), tensor([-1., -1.]))
    """

    voter: WorkerId
    """Who votes."""
    shared: CoalitionView
    """What all Byzantine voters know."""
    own: Callable[[], Tensor]
    """What this voter would send if it were honest."""
    source: Stream
    """Random integers that only this voter draws in this round."""


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
    """What the voter's data says.

        message = the honest message

    Source: this project.

    Needs: joint ballots.
    """
    return view.own()


def coalition(view: MessageView) -> Tensor | None:
    """The coalition's mean lie at the usual length: a direction that speaks for it.

        message = (median length of honest messages) · m / |m|, m = the mean of the lies

    Source: this project.

    Needs: joint ballots.
    """
    return view.shared.promoting


def starve(view: MessageView) -> Tensor | None:
    """The honest messages' mean, reversed: a direction that speaks against honest proposals.

        message = -(median length of honest messages) · m / |m|, m = the mean of honest messages

    Source: this project.

    Needs: joint ballots.
    """
    return view.shared.opposing


def short(view: MessageView) -> Tensor | None:
    """The coalition's first lie as it is.

        message = lie_1

    Source: this project.

    Needs: joint ballots.
    """
    return view.shared.lies[0] if view.shared.lies else None


def blank(view: MessageView) -> Tensor | None:
    """Nothing.

        message = silence

    Source: this project.

    Needs: joint ballots.
    """
    del view
    return None


def random(view: MessageView) -> Tensor | None:
    """Noise of the usual length.

        message = (median length of honest messages) · z / |z|, z[k] standard normal

    Source: this project.

    Needs: joint ballots.
    """
    own = view.own()
    noise = device.randn(len(own), generator=device.generator(view.source.generator_seed()))
    return of_length(noise, view.shared.usual_norm or norm(own))


def inverted(view: MessageView) -> Tensor | None:
    """The opposite of what the voter's data says.

        message = -(the honest message)

    Source: this project.

    Needs: joint ballots.
    """
    return -view.own()
