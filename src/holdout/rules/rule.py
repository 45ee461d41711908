"""What a rule is: a function from many updates to one, and what others need to know about it.

A rule is a plain function `rule(updates, *, f)`. One that draws at random, looks at the model or
remembers something also takes a `context`. Parameters of its own are keyword arguments with
defaults; `Rule.with_parameters` sets them. A `Rule` puts beside the function what the rest of the
project asks: what people call it, which updates it names, how an attacker rehearses it, how many
updates it needs. A pre-aggregation changes the updates before the rule sees them, and `compose`
puts one in front of any rule.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from holdout import device
from holdout.custom_code import describe, guard, refused, takes
from holdout.errors import InfeasibleError, MisuseError
from holdout.rules.context import ReportingVoters, Root, RuleContext, made_context, part_of

RuleFunction = Callable[..., Tensor]
"""(updates (n, d), f=..., and `context=...` if it takes one) -> the update (d,) to apply."""

PreFunction = Callable[..., Tensor]
"""(updates (n, d), f=..., and `context=...` if it takes one) -> the updates that the rule sees."""

Choose = Callable[..., Sequence[int]]
"""(updates, f, and by name what it takes of the context and the rule's parameters) -> the places of
the updates that the rule averages."""


@dataclass(frozen=True, slots=True, eq=False)
class LieLine:
    """What an attacker tries: `copies` copies of base + s * direction beside the honest updates."""

    honest: Tensor
    base: Tensor
    direction: Tensor
    copies: int
    f: int
    ladder: Sequence[float] = ()
    """The strengths on the way up to the strongest lie that is tried."""
    context: "Callable[[], RuleContext] | None" = None
    """Makes what a rule that takes a context gets; each is a copy."""
    voters: "Callable[[Sequence[int]], ReportingVoters] | None" = None
    """The voters of that context, for updates of which these are lies."""

    @property
    def count(self) -> int:
        """The number of all updates, n."""
        return len(self.honest) + self.copies

    def at(self, strength: float) -> Tensor:
        """The lie of this strength."""
        return self.base + strength * self.direction

    def updates(self, strength: float) -> Tensor:
        """What the rule gets, (n, d): the honest updates, then the copies of the lie."""
        return torch.cat([self.honest, self.at(strength).expand(self.copies, -1)])

    def new_context(self) -> "RuleContext | None":
        """What a rule that takes a context gets."""
        return made_context(self.context, self.voters, range(len(self.honest), self.count))


Mix = Callable[..., npt.NDArray[np.float64] | None]
"""(inner products of the updates, f=..., and a pre-aggregation's parameters by name) -> the share
of every update in each row that it makes; None where a near tie decides, so that rounding might."""

Weigh = Callable[..., npt.NDArray[np.float64] | None]
"""(inner products of the updates, f=...) -> the weight of each in the result; None where a near tie
decides, so that rounding might. What the rule compares updates with (`Rule.beside`) stands behind
them; a rule that asks about each update (`Rule.told`) gets the answers as `told=...`."""

Beside = Callable[[Root], Tensor]
Told = Callable[[Root, Tensor], Tensor]
"""The server's own rows -> vectors that a rule compares updates with, (a, d); and these rows and
updates -> what it asks of each by itself, (n,)."""

Farthest = Callable[[npt.NDArray[np.float64]], float]
"""(inner products of the updates and, last, of one more vector) -> how far from that vector the
result can be, whatever the rule is told."""

Rehearse = Callable[[LieLine], Callable[[float], bool]]
"""A line of lies -> for a strength, whether the rule selects the lie."""

LEAVES_NOBODY_OUT = None
"""In place of a rehearsal: every update counts, so no strength of a lie is too much."""

NAMES_NOBODY = None
"""In place of a choice: the rule blends coordinates of all updates."""


@dataclass(frozen=True, slots=True)
class Needs:
    """How many updates a rule needs to withstand f liars, and what else.

    Example:
        >>> Needs("n > 3f", lambda f: 3 * f + 1).least(2)
        7
    """

    bound: str
    """The condition as people write it."""
    least: Callable[[int], int]
    """f -> the smallest n."""
    most: Callable[[int], int] | None = None
    """f -> the largest n, where more would be too much work; without it there is no limit."""
    root: bool = False
    """Whether it needs `context.root`, the server's own rows."""
    voters: bool = False
    """Whether it needs `context.voters`."""

    def allow(self, *, n: int, f: int) -> bool:
        """Whether n updates are enough, and not too many."""
        return n >= max(self.least(f), 1) and (self.most is None or n <= self.most(f))


ANY_NUMBER = Needs("n >= 1", lambda f: 1 + 0 * f)
HONEST_MAJORITY = Needs("n > 2f", lambda f: 2 * f + 1)


def as_many(n: int) -> int:
    """How many rows a pre-aggregation makes of n: as many."""
    return n


@dataclass(frozen=True, slots=True)
class PreAggregation:
    """A function from updates to updates, to be composed with a rule.

    Args:
        function: `function(updates, *, f)` -> updates; may take a `context` like a rule.
        label: What people call it.
        keeps_rows: Whether row i of the result stands for proposal i, changed by itself alone; a
            rule behind it can then still say which proposals it chose.
        needs: How many updates it needs.
        leaves: How many rows it makes of n, `leaves(n)`; takes the function's parameters by name.
        mix: How it mixes updates, if their inner products decide that (`holdout.rules.outlook`).

    Example:
        >>> from holdout.rules import PRE_AGGREGATIONS
        >>> PRE_AGGREGATIONS["clipping"](torch.tensor([[3.0, 4.0], [0.5, 0.0]]), f=0)
        tensor([[1.2000, 1.6000],
                [0.5000, 0.0000]])
    """

    function: PreFunction
    label: str
    keeps_rows: bool
    needs: Needs
    leaves: Callable[..., int] = as_many
    mix: Mix | None = None

    def __call__(self, updates: Tensor, *, f: int, context: RuleContext | None = None) -> Tensor:
        """The updates as the rule behind it sees them."""
        return call(self.function, updates, f=f, context=context)

    def with_parameters(self, **parameters: Any) -> "PreAggregation":
        """The same with other values for parameters of its function."""
        return replace(
            self,
            function=partial(self.function, **parameters),
            leaves=_with_those_it_takes(self.leaves, parameters),
            mix=self.mix and _with_those_it_takes(self.mix, parameters),
        )


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule and what the rest of the project must know about it; called like its function.

    Args:
        function: `function(updates, *, f)` -> the update to apply; may take a `context`.
        label: What people call it.
        choose: Which updates it averages, `choose(updates, f)`, or `NAMES_NOBODY`; may take a
            `context` and the function's parameters by name.
        rehearse: How an attacker finds out whether it selects a lie, or `LEAVES_NOBODY_OUT`.
        needs: How many updates it needs, and whether a root set or voters.
        pre: The pre-aggregations in front of it, first to last.
        weigh: How it weighs updates, if their inner products decide that (`holdout.rules.outlook`).
        is_steady: Whether updates that are a little different give a result that is.
        beside: Vectors that it compares updates with, if it asks the server's own rows.
        told: What it asks these rows about each update.
        farthest: How far its result can be from some vector, if no more than that is known.

    Example:
        >>> from holdout.rules import RULES
        >>> RULES["median"](torch.tensor([[1.0], [2.0], [9.0]]), f=1)
        tensor([2.])
        >>> RULES["krum"].label, RULES["krum"].needs.bound
        ('Krum', 'n > 2f + 2')
    """

    function: RuleFunction
    label: str
    choose: Choose | None
    rehearse: Rehearse | None
    needs: Needs
    pre: tuple[PreAggregation, ...] = ()
    weigh: Weigh | None = None
    is_steady: bool = False
    beside: Beside | None = None
    told: Told | None = None
    farthest: Farthest | None = None

    def __repr__(self) -> str:
        return f"<Rule: {self.label}, {self.needs.bound}>"

    def __call__(self, updates: Tensor, *, f: int, context: RuleContext | None = None) -> Tensor:
        """The update to apply."""
        prepared = self.prepare(updates, f=f, context=context)
        try:
            return self.finish(prepared, f=f, context=context)
        except InfeasibleError as error:
            if len(prepared) == len(updates):
                raise
            front = " + ".join(pre.label for pre in self.pre)
            raise InfeasibleError(
                f"{error}: {front} makes {len(prepared)} rows of {len(updates)} updates"
            ) from error

    def prepare(self, updates: Tensor, *, f: int, context: RuleContext | None = None) -> Tensor:
        """The updates after the pre-aggregations."""
        for place, pre in enumerate(self.pre):
            with part_of(context, f"pre{place}/") as own:
                updates = pre(updates, f=f, context=own)
        return updates

    def finish(self, updates: Tensor, *, f: int, context: RuleContext | None = None) -> Tensor:
        """The update to apply, from updates that the pre-aggregations have prepared."""
        with part_of(context, "rule/" if self.pre else "") as own:
            return call(self.function, updates, f=f, context=own)

    def choice(
        self, updates: Tensor, *, f: int, context: RuleContext | None = None
    ) -> Sequence[int]:
        """The places of the prepared updates that a rule with a `choose` averages."""
        if self.choose is None:
            raise MisuseError(f"{self.label} names no updates")
        with part_of(context, "rule/" if self.pre else "") as own:
            extra = {"context": own} if takes(self.choose, "context") else {}
            return self.choose(updates, f, **extra)

    def with_parameters(self, **parameters: Any) -> "Rule":
        """The same with other values for parameters of its function.

        What an attacker knows of a rule by heart holds for its defaults: with other values it
        rehearses the rule by running it.
        """
        choose = self.choose and _with_those_it_takes(self.choose, parameters)
        function = partial(self.function, **parameters)
        rule = replace(self, function=function, choose=choose, weigh=None, farthest=None)
        return rule if self.rehearse is LEAVES_NOBODY_OUT else rehearsed_by_running(rule)

    @property
    def needs_updates_alone(self) -> bool:
        """Whether it can do without the server's own rows and without voters."""
        return not (self.needs_root or self.needs_voters)

    @property
    def needs_root(self) -> bool:
        """Whether it, or a pre-aggregation in front of it, needs the server's own rows."""
        return any(part.root for part in self._parts)

    @property
    def needs_voters(self) -> bool:
        """Whether it, or a pre-aggregation in front of it, needs voters."""
        return any(part.voters for part in self._parts)

    @property
    def _parts(self) -> list[Needs]:
        return [self.needs, *(part.needs for part in self.pre)]

    @property
    def names_proposals(self) -> bool:
        """Whether the updates it chooses are proposals as they were sent."""
        return self.choose is not NAMES_NOBODY and all(pre.keeps_rows for pre in self.pre)

    def is_feasible(self, *, n: int, f: int) -> bool:
        """Whether n updates are enough for the rule and for the pre-aggregations in front of it.

        A pre-aggregation that makes fewer rows of them leaves the rule behind it these: with as
        many liars, since a liar spoils the row that it is part of.
        """
        for pre in self.pre:
            if not pre.needs.allow(n=n, f=f):
                return False
            n = pre.leaves(n)
        return self.needs.allow(n=n, f=f)

    def check_feasible(self, name: str, *, n: int, f: int) -> None:
        """Raise an `InfeasibleError` if n updates are not enough; `name` is what it is called."""
        if self.needs_updates_alone:
            self(device.zeros(n, 1), f=f)
        elif not self.is_feasible(n=n, f=f):
            bounds = " and ".join(dict.fromkeys(part.bound for part in self._parts))
            raise InfeasibleError(f"{name} needs {bounds} updates; got n={n}, f={f}")


def custom_rule(function: RuleFunction, label: str) -> Rule:
    """A user's function as a `Rule` about which nothing else is known; an attacker runs it."""
    if isinstance(function, Rule):
        return function
    rule = Rule(function, label, NAMES_NOBODY, LEAVES_NOBODY_OUT, ANY_NUMBER)
    return replace(rule, rehearse=partial(_rehearse_by_following, rule))


def checked_update(owner: str, update: object, shape: torch.Size, code: object = None) -> Tensor:
    """What a rule returned, once it is known to be an update."""
    if (
        not isinstance(update, Tensor)
        or update.shape != shape
        or not update.is_floating_point()
        or update.layout is not torch.strided
        or not device.is_here(update)
    ):
        raise refused(
            f"{owner} must return floats of shape {tuple(shape)}; got {describe(update)}", code
        )
    return update.detach()


def call(function: Callable[..., Tensor], updates: Tensor, *, f: int, context: Any) -> Tensor:
    """Call a rule's or a pre-aggregation's function, with a context if it takes one."""
    if takes(function, "context"):
        return function(updates, f=f, context=context)
    return function(updates, f=f)


def _with_those_it_takes(function: Callable[..., Any], given: Mapping[str, Any]) -> Any:
    """The function with those of the given arguments that it takes."""
    return partial(function, **{name: v for name, v in given.items() if takes(function, name)})


def put_in_front(pre: PreAggregation, rule: Rule) -> Rule:
    """The rule behind one more pre-aggregation; an attacker rehearses it by running it."""
    return rehearsed_by_running(
        replace(rule, label=f"{pre.label} + {rule.label}", pre=(pre, *rule.pre))
    )


def rehearsed_by_running(rule: Rule) -> Rule:
    """The rule, with a rehearsal that runs it on lies of many strengths."""
    return replace(rule, rehearse=partial(_rehearse_by_running, rule))


def _rehearse_by_running(rule: Rule, line: LieLine) -> Callable[[float], bool]:
    """A lie passes up to the strength that carries the result furthest the way of the lie.

    A mixture need not follow a lie step by step: it may fall back, and follow again where the lie
    is stronger. So strengths on the whole ladder are tried: some rungs first, then those between
    the neighbours of the best.
    """
    reach, places = _reach_of(rule, line), _first_places(line)
    reached = {place: reach(line.ladder[place]) for place in places}
    if max(reached.values()) == -math.inf:
        return lambda _strength: False
    best = places.index(max(places, key=lambda place: reached[place]))
    low, high = places[max(best - 1, 0)], places[min(best + 1, len(places) - 1)]
    reached |= {p: reach(line.ladder[p]) for p in range(low, high) if p not in reached}
    furthest = line.ladder[max(reached, key=lambda place: reached[place])]
    return lambda strength: strength <= furthest


def _rehearse_by_following(rule: Rule, line: LieLine) -> Callable[[float], bool]:
    """A lie passes up to the last strength, on the way up, at which the result still follows it.

    It follows if a lie that is a little stronger takes it a little further, or a weaker one less
    far: it then holds a share of the lie. (Krum follows while it selects the lie, the mean always.)
    A result that does not even follow a lie of strength 0 may still jump, as that of a vote on
    signs does: then the strength counts that carries it furthest.
    """
    reach, ladder = _reach_of(rule, line), line.ladder
    length = float(line.direction.double().square().sum())

    def follows(place: int) -> bool:
        strength, little = ladder[place], LITTLE * max(ladder[place], 1.0)
        here = reach(strength)
        shares = (
            (reach(strength + by) - here) / (by * length) if length else 0.0
            for by in (little, -little)
        )
        # Where the rule is infeasible the share is no number.
        return math.isfinite(here) and any(SHARE_MIN < share < math.inf for share in shares)

    places = _first_places(line)
    failed = next((place for place in places if not follows(place)), None)
    if failed is None:
        return lambda strength: strength <= ladder[-1]
    if failed == 0:
        return _rehearse_by_running(rule, line)
    between = range(places[places.index(failed) - 1] + 1, failed)
    last = next((place for place in between if not follows(place)), failed) - 1
    return lambda strength: strength <= ladder[last]


LITTLE = 1e-3
"""By how much a lie is changed to see whether the result follows."""
SHARE_MIN = 1e-3
"""The share of a lie below which the result does not follow it: less may be rounding."""


def _reach_of(rule: Rule, line: LieLine) -> Callable[[float], float]:
    """For a strength of the lie, how far the rule's result goes its way; -inf: nowhere."""
    direction, owner = line.direction.double(), f"rule {rule.label!r}"

    def reach(strength: float) -> float:
        context = line.new_context()
        updates = line.updates(strength)
        try:
            result = guard(
                owner, lambda: rule(updates, f=line.f, context=context), code=rule.function
            )
        except InfeasibleError:
            return -math.inf
        moved = checked_update(owner, result, direction.shape, rule.function)
        reached = float(moved.double() @ direction)
        return reached if math.isfinite(reached) else -math.inf

    return reach


def _first_places(line: LieLine) -> list[int]:
    """The rungs of the ladder that are tried first."""
    return sorted({*range(0, len(line.ladder), RUNGS), len(line.ladder) - 1})


RUNGS = 6
"""The distance between the rungs of the ladder that are tried first."""


def admit(rule: str, updates: Tensor, *, f: int, needs: Needs) -> Tensor:
    """The updates, detached from autograd, once they are known to suit the rule."""
    if updates.ndim != 2 or updates.shape[1] == 0:  # noqa: PLR2004 - rows and columns.
        shape = tuple(updates.shape)
        raise MisuseError(f"{rule} needs updates of shape (n, d) with d >= 1; got {shape}")
    if updates.dtype not in (torch.float32, torch.float64):
        raise MisuseError(f"{rule} needs float32 or float64 updates; got {updates.dtype}")
    if f < 0:
        raise MisuseError(f"{rule} needs f >= 0; got f={f}")
    if not needs.allow(n=len(updates), f=f):
        raise InfeasibleError(f"{rule} needs {needs.bound} updates; got n={len(updates)}, f={f}")
    return updates.detach()
