"""The learning rate of each round, by `training.schedule`.

    constant             eta
    inverse              eta / t
    step                 eta times `factor` for every milestone passed
    cosine               from eta down to `learning_rate_min` along half a wave
    package.module:name  custom: (round, rounds, eta) -> the rate

Without a server t counts the steps that were made, not the rounds: an empty one does not count.
"""

import math
from collections.abc import Callable

from holdout.config import TrainingSection
from holdout.custom_code import refused
from holdout.dotted import resolve
from holdout.errors import HoldoutError, PluginError
from holdout.tracebacks import RAISED, failure_of, summary_of, with_place

SCHEDULES = ("constant", "inverse", "step", "cosine")
"""The schedules that a config names in `training.schedule`."""


def rate_at(training: TrainingSection, t: int, *, rounds: int) -> float:
    """The learning rate of round t, counted from 1; a PluginError if custom code gives none.

    Args:
        training: Names the schedule and holds its parameters.
        t: The round.
        rounds: How many rounds there are.

    Example:
        >>> from holdout.config import TrainingSection
        >>> halves = TrainingSection(schedule="step", milestones=[2, 3], factor=0.5)
        >>> [rate_at(halves, t, rounds=4) for t in (1, 2, 3, 4)]
        [0.1, 0.1, 0.05, 0.025]
    """
    base = training.learning_rate
    match training.schedule:
        case "constant":
            return base
        case "inverse":
            return base / t
        case "step":
            return base * training.factor ** sum(t > milestone for milestone in training.milestones)
        case "cosine":
            low = training.learning_rate_min
            return low + (base - low) * (1 + math.cos(math.pi * (t - 1) / rounds)) / 2
        case custom:
            return _custom_rate(custom, resolve(custom), t, rounds, base)


def rates_of(training: TrainingSection, *, rounds: int) -> tuple[float, ...]:
    """The rates of all rounds, as far as they change: the last one holds from there on."""
    count = 1 if training.schedule == "constant" else rounds
    return tuple(rate_at(training, t, rounds=rounds) for t in range(1, count + 1))


def _custom_rate(
    name: str, function: object | Callable[..., object], t: int, rounds: int, base: float
) -> float:
    if not callable(function):
        raise PluginError(f"the schedule {name} must be callable; got {type(function).__name__}")
    try:
        rate = function(t, rounds, base)
    except HoldoutError:
        raise
    except RAISED as error:
        kind, _, text = summary_of(error).partition(": ")
        message = f"the schedule {name} raised {kind} in round {t}: {text}"
        told = failure_of("run", name, error).traceback
        raise PluginError(with_place(message, error, function), told) from error
    if isinstance(rate, int | float) and not isinstance(rate, bool) and 0 < rate < math.inf:
        return float(rate)
    raise refused(
        f"the schedule {name} must give a finite rate above 0; got {rate!r} in round {t}", function
    )
