"""HoldOut SGD: federated learning in which a committee of voters keeps poisoned updates out.

    import holdout

    result = holdout.run("my.toml")  # Or a dict, or a holdout.Config.
    print(result)
    rows = holdout.read_run(result)  # Or the path of a run folder.

`__all__` below, and the `__all__` of the sub-packages it lists, are the public names; docs/api.md
describes each. Everything else may change from one version to the next. The names are imported at
first use: `import holdout` alone loads neither torch nor numpy.
"""

from typing import TYPE_CHECKING

from holdout import lazy

__version__ = "0.2.0"

__all__ = [
    "Config",
    "ConfigError",
    "DataError",
    "DissimilarityFit",
    "Heterogeneity",
    "HoldoutError",
    "HonestWorker",
    "InfeasibleError",
    "LiarsDrawn",
    "PluginError",
    "Plugins",
    "Progress",
    "Recipe",
    "Result",
    "Run",
    "RunFailed",
    "RunFolderError",
    "RunWatcher",
    "Stream",
    "SweepProgress",
    "SweepResult",
    "TableRow",
    "UserError",
    "Weights",
    "Worker",
    "__version__",
    "apply_settings",
    "attacks",
    "data",
    "flower",
    "learning",
    "read_run",
    "rules",
    "run",
    "stream",
    "sweep",
    "voting",
]

if TYPE_CHECKING:
    from holdout import attacks, data, flower, learning, rules, voting
    from holdout.config import Config, apply_settings
    from holdout.errors import (
        ConfigError,
        DataError,
        HoldoutError,
        InfeasibleError,
        PluginError,
        RunFailed,
        RunFolderError,
        UserError,
    )
    from holdout.experiments.curves import TableRow
    from holdout.experiments.plugins import Plugins
    from holdout.experiments.runner import Progress, Result, run
    from holdout.experiments.watchers import RunWatcher
    from holdout.heterogeneity import DissimilarityFit, Heterogeneity, LiarsDrawn
    from holdout.results import read_run
    from holdout.runs import Run
    from holdout.saved_models import Weights
    from holdout.seeds import Stream, stream
    from holdout.sweeps.runner import SweepResult, sweep
    from holdout.sweeps.workforce import SweepProgress
    from holdout.workers import HonestWorker, Recipe, Worker
else:
    __getattr__, __dir__ = lazy.attributes(
        __name__,
        {
            "holdout.attacks": (),
            "holdout.data": (),
            "holdout.flower": (),
            "holdout.learning": (),
            "holdout.rules": (),
            "holdout.voting": (),
            "holdout.config": ("Config", "apply_settings"),
            "holdout.errors": (
                "ConfigError",
                "DataError",
                "HoldoutError",
                "InfeasibleError",
                "PluginError",
                "RunFailed",
                "RunFolderError",
                "UserError",
            ),
            "holdout.experiments.curves": ("TableRow",),
            "holdout.experiments.plugins": ("Plugins",),
            "holdout.experiments.runner": ("Progress", "Result", "run"),
            "holdout.experiments.watchers": ("RunWatcher",),
            "holdout.heterogeneity": ("DissimilarityFit", "Heterogeneity", "LiarsDrawn"),
            "holdout.results": ("read_run",),
            "holdout.runs": ("Run",),
            "holdout.saved_models": ("Weights",),
            "holdout.seeds": ("Stream", "stream"),
            "holdout.sweeps.runner": ("SweepResult", "sweep"),
            "holdout.sweeps.workforce": ("SweepProgress",),
            "holdout.workers": ("HonestWorker", "Recipe", "Worker"),
        },
    )
