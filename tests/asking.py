"""What rules ask besides the updates, as sums of squares: the best update is 5 everywhere."""

from functools import partial

import torch

from holdout.rules import RULES, Rule, RuleContext
from holdout.seeds import stream

BEST = 5.0
CLASSES = 3


class Squares:
    """A root set and five voters whose loss is the squared distance to the best update.

    Class c is judged by the coordinates c, c + 3, c + 6, ...; where there are none, by nobody.
    """

    def __init__(self, dimension, liars=0):
        self.dimension, self.liars = dimension, liars

    def update(self):
        return torch.full((self.dimension,), BEST)

    def losses(self, updates):
        return (updates.double() - BEST).square().sum(dim=1)

    def impacts(self, updates):
        squares = (updates.double() - BEST).square()
        columns = [squares[:, c::CLASSES].sum(dim=1) for c in range(CLASSES)]
        sizes = [len(range(c, self.dimension, CLASSES)) for c in range(CLASSES)]
        falls = [
            BEST**2 * size - column if size else torch.full_like(column, torch.nan)
            for column, size in zip(columns, sizes, strict=True)
        ]
        honest = torch.stack(falls, dim=1).clamp(min=-1e6)
        return [honest * (1 + voter / 10) for voter in range(5 - self.liars)] + [
            -honest for _ in range(self.liars)
        ]


def context_of(updates, liars=0):
    squares = Squares(updates.shape[-1] if updates.ndim else 0, liars)
    weights = torch.zeros(squares.dimension)
    return RuleContext(1, weights, 0.1, stream(0), root=squares, voters=squares)


def with_context(function, updates, *args, **settings):
    return function(updates, *args, context=context_of(updates), **settings)


def called(rule):
    """The rule as a function of updates and f, whatever else it asks."""
    entry = rule if isinstance(rule, Rule) else RULES[rule]
    return entry if entry.needs_updates_alone else partial(with_context, entry)
