"""Trackers that a config names in `[track]`: a module for each package, which it loads when used.

Each tells its package of every curve as a run of its own, with one value a round for each of
`holdout.experiments.trackers.numbers.NUMBERS`; what was measured before the first step is step 0.
"""

import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from holdout.config import Config
from holdout.errors import UserError
from holdout.experiments.trackers import mlflow_tracker, tensorboard_tracker, wandb_tracker
from holdout.experiments.watchers import GuardedTracker, RunWatcher

TRACKERS: Mapping[str, Callable[[Config, Path | None], RunWatcher]] = MappingProxyType(
    {
        "tensorboard": tensorboard_tracker.make_tracker,
        "mlflow": mlflow_tracker.make_tracker,
        "wandb": wandb_tracker.make_tracker,
    }
)
"""What makes the tracker of each key of `[track]`; its package and its extra are called alike."""


def wanted(config: Config) -> list[str]:
    """The keys of `[track]` that are switched on."""
    return [name for name in TRACKERS if getattr(config.track, name) not in (False, "off")]


def missing_packages(config: Config) -> list[str]:
    """What to tell the user of trackers whose package is not installed, a line for each."""
    return [
        f"track.{name} = {getattr(config.track, name)!r}: needs a package that is not installed: "
        f'pip install "holdout-sgd[{name}]"'
        for name in wanted(config)
        if importlib.util.find_spec(name) is None
    ]


def make_trackers(
    config: Config, folder: Path | None, tell: Callable[[str], None]
) -> list[GuardedTracker]:
    """The trackers that a config names; nothing is written before their first round.

    Args:
        config: The complete config.
        folder: The run folder, if there is one.
        tell: Takes a note for the user if a tracker fails.
    """
    if config.track.tensorboard is True and folder is None:
        raise UserError(
            "track.tensorboard = True: puts its files into the run folder, and there is none; "
            "name a folder, or pass out"
        )
    return [GuardedTracker(name, TRACKERS[name](config, folder), tell) for name in wanted(config)]
