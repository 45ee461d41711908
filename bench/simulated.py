"""Rounds of a simulated federation, to be timed."""

from collections.abc import Callable, Mapping
from typing import Any

from holdout.experiments.plan import make_plan
from holdout.experiments.plugins import Plugins
from holdout.federation.central import run_round
from holdout.federation.round_setup import first_state


def rounds(values: Mapping[str, Any], own: Plugins) -> Callable[[], None]:
    """Each call does the next round of the first curve of a config."""
    plan = make_plan(values, own)
    curve, seed = plan.curves[0]
    federation = plan.federation(curve, seed)
    state = first_state(federation)

    def next_round() -> None:
        nonlocal state
        _, state = run_round(federation, curve, state)

    return next_round
