"""What a rule may know besides the updates: the round, its own state, and whom it may ask."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from holdout import device
from holdout.custom_code import Kept
from holdout.ids import RoundNumber
from holdout.seeds import Stream, stream


class Root(Protocol):
    """The server's own clean rows (`data.root_samples`), as a rule may use them.

    Example:
        >>> class Pulling:
        ...     def update(self):
        ...         return torch.ones(2)
        ...
        ...     def losses(self, updates):
        ...         return -updates.sum(dim=1, dtype=torch.float64)
        >>> def best_of_all(updates, *, f, context):
        ...     return updates[context.root.losses(updates).argmin()]
        >>> from holdout import stream
        >>> context = RuleContext(1, torch.zeros(2), 0.1, stream(0), root=Pulling())
        >>> best_of_all(torch.tensor([[1.0, 1.0], [3.0, 0.0]]), f=0, context=context)
        tensor([3., 0.])
    """

    def update(self) -> Tensor:
        """What the server would itself propose by these rows, (d,)."""

    def losses(self, updates: Tensor) -> Tensor:
        """The mean loss of the rows at w - eta * u for each update u, (n,) of float64."""


class ReportingVoters(Protocol):
    """The voters of a round, as a rule may ask them; what liars among them say is a lie.

    Example:
        >>> class Three:
        ...     def impacts(self, updates):
        ...         fall = updates.double()[:, :2]
        ...         return [fall, fall, None]
        >>> def worst_off_class(updates, *, f, context):
        ...     reports = [r for r in context.voters.impacts(updates) if r is not None]
        ...     return updates[torch.stack(reports).mean(dim=0).amin(dim=1).argmax()]
        >>> from holdout import stream
        >>> context = RuleContext(1, torch.zeros(2), 0.1, stream(0), voters=Three())
        >>> worst_off_class(torch.tensor([[1.0, 2.0], [9.0, 0.0]]), f=0, context=context)
        tensor([1., 2.])
    """

    def impacts(self, updates: Tensor) -> Sequence[Tensor | None]:
        """What each voter reports, in the order of the draw; None: nothing valid.

        A report is (n, classes) of float64: how far the mean loss of the voter's rows of a class
        falls with an update, NaN where it holds none of that class. Other numbers are finite.
        """


@dataclass(frozen=True, slots=True, eq=False)
class RuleContext:
    """What a rule may know besides the updates.

    Args:
        round_number: The round, counted from 1.
        weights: A copy of the current weights w_t.
        learning_rate: The step size of this round.
        source: Random integers that only this rule draws, decided by the seed and the round.
        state: What the rule left here in the last round, at first nothing. What it holds when the
            rule returns is kept for the next round, and saved in checkpoints.
        root: The server's own clean rows; None where `data.root_samples` is 0.
        voters: The voters of the round, who can be asked about updates; None where there are none.

    Example:
        >>> def clip_to_last(updates, *, f, context):
        ...     centre = context.state.get("last", torch.zeros(updates.shape[1]))
        ...     away = updates - centre
        ...     short = away / away.norm(dim=1, keepdim=True).clamp(min=1.0)
        ...     context.state["last"] = centre + short.mean(dim=0)
        ...     return context.state["last"]
        >>> from holdout import stream
        >>> context = RuleContext(1, torch.zeros(2), 0.1, stream(0), {"last": torch.ones(2)})
        >>> clip_to_last(torch.tensor([[1.0, 1.0], [1.0, 5.0]]), f=0, context=context)
        tensor([1.0000, 1.5000])
    """

    round_number: RoundNumber
    weights: Tensor
    learning_rate: float
    source: Stream
    state: Kept = field(default_factory=dict)
    root: Root | None = None
    voters: ReportingVoters | None = None

    def generator(self) -> torch.Generator:
        """A generator for noise, decided by the seed and the round."""
        return device.generator(self.source.generator_seed())


def source_of(context: RuleContext | None) -> Stream:
    """Where a rule draws from; without a context, from the same integers every time."""
    return stream(0, "rule") if context is None else context.source


def made_context(
    make: Callable[[], RuleContext] | None,
    voters: Callable[[Sequence[int]], ReportingVoters] | None,
    lies: Sequence[int],
) -> RuleContext | None:
    """A new context whose voters know in which rows the coalition's updates stand."""
    context = make() if make else None
    if context is None or voters is None:
        return context
    return replace(context, voters=voters(lies))


@contextmanager
def part_of(context: RuleContext | None, prefix: str) -> Iterator[RuleContext | None]:
    """The context for one part of a composed rule: of the state, it sees only what it keeps."""
    if context is None or not prefix:
        yield context
        return
    state: dict[Any, Tensor] = context.state
    mine = [name for name in state if isinstance(name, str) and name.startswith(prefix)]
    own: dict[Any, Tensor] = {name.removeprefix(prefix): state.pop(name) for name in mine}
    try:
        yield replace(context, state=own)
    finally:
        # A name that is not a string stays what it is, to be refused with the state.
        state.update({prefix + n if isinstance(n, str) else n: t for n, t in own.items()})
