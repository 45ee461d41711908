"""Custom rules are tried before any curve starts: on made-up updates of the run's own size.

So a slip in a rule costs a second, not the hour until its curve begins. What is tried: that it can
be called, returns floats of the right shape that are finite, gives the same result twice, leaves
the updates as they are, and keeps a state that can be saved.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from holdout import device
from holdout.custom_code import checked_copy, guard, refused
from holdout.errors import InfeasibleError
from holdout.experiments.plan import ExperimentPlan
from holdout.federation.reports import Reporters
from holdout.federation.round_setup import draw_round, first_state, rule_context
from holdout.rules import Rule, RuleContext
from holdout.rules.rule import PreAggregation, checked_update
from holdout.seeds import stream
from holdout.tracebacks import is_custom
from holdout.voting import tolerated_count


def try_rules(plan: ExperimentPlan) -> None:
    """Try each rule that is custom, or has a custom part; a PluginError says what is wrong."""
    seed = plan.config.experiment.seeds[0]
    methods = {curve.rule: curve.method for curve, _ in plan.curves}
    rules = {
        name: method
        for name, method in methods.items()
        if isinstance(method, Rule) and any(map(is_custom, _parts(method)))
    }
    if not rules:
        return
    curve = next(curve for curve, _ in plan.curves if curve.rule in rules)
    federation = plan.federation(curve, seed)
    setup = draw_round(federation, curve, first_state(federation))
    n = plan.config.federation.proposers
    generator = device.generator(stream(seed, "trial").generator_seed())
    updates = device.randn(n, len(setup.state.weights), generator=generator)
    for name, rule in rules.items():
        _Trial(
            f"rule {name!r}",
            rule,
            updates,
            f=tolerated_count(n, plan.config.federation.f),
            context=lambda: replace(rule_context(setup), voters=Reporters(setup).about([])),
        ).run()


def _parts(rule: Rule) -> list[Callable[..., object]]:
    return [rule.function, *(pre.function for pre in rule.pre)]


class _Trial:
    def __init__(
        self,
        name: str,
        rule: Rule,
        updates: Tensor,
        *,
        f: int,
        context: Callable[[], RuleContext],
    ) -> None:
        self.name, self.rule, self.updates, self.f, self.context = name, rule, updates, f, context

    def run(self) -> None:
        try:
            seen = self.updates
            for pre in self.rule.pre:
                seen = self._prepared(pre, seen)
            first, second = self._result(), self._result()
        except InfeasibleError:
            return  # Rounds in which it is are counted.
        code = self.rule.function
        if not first.isfinite().all():
            raise refused(f"{self.name} must return finite numbers; some are not", code)
        if not torch.equal(first, second):
            raise refused(
                f"{self.name} must give the same result for the same updates and an equal "
                "context; it gave two (draw from context.generator(), remember in context.state)",
                code,
            )

    def _prepared(self, pre: PreAggregation, updates: Tensor) -> Tensor:
        """The updates after one pre-aggregation."""
        if not is_custom(pre.function):
            return pre(updates, f=self.f, context=self.context())
        owner = f"{self.name}: pre-aggregation {pre.label!r}"
        prepared = self._unchanged(
            owner, pre.function, updates, partial(pre, f=self.f, context=self.context())
        )
        plain = isinstance(prepared, Tensor) and prepared.is_floating_point()
        shape = tuple(prepared.shape) if isinstance(prepared, Tensor) else type(prepared).__name__
        if not plain or prepared.ndim != updates.ndim or prepared.shape[1:] != updates.shape[1:]:
            raise refused(
                f"{owner} must return floats of shape (n, {updates.shape[1]}); got {shape}",
                pre.function,
            )
        return prepared.detach()

    def _result(self) -> Tensor:
        code, context = self.rule.function, self.context()
        ask = partial(self.rule, f=self.f, context=context)
        result = self._unchanged(self.name, code, self.updates, ask)
        checked_copy(self.name, context.state, code)
        return checked_update(self.name, result, self.updates.shape[1:], code).clone()

    @staticmethod
    def _unchanged(
        owner: str, code: object, updates: Tensor, ask: Callable[[Tensor], Tensor]
    ) -> Tensor:
        given = updates.clone()
        answer: Tensor = guard(owner, lambda: ask(given), code)
        if not torch.equal(given, updates):
            raise refused(f"{owner} must leave the updates as they are; it changed them", code)
        return answer
