"""Models as flat vectors of weights: building, training, scoring."""

from typing import TYPE_CHECKING

from holdout import lazy

__all__ = [
    "MODELS",
    "Evaluation",
    "ModelFactory",
    "build",
    "dimension",
    "evaluate",
    "flatten",
    "lenet5",
    "mlp",
    "unflatten",
]

if TYPE_CHECKING:
    from holdout.learning.models import MODELS, ModelFactory, build, lenet5, mlp
    from holdout.learning.training import Evaluation, evaluate
    from holdout.learning.vector import dimension, flatten, unflatten
else:
    __getattr__, __dir__ = lazy.attributes(
        __name__,
        {
            "holdout.learning.models": ("MODELS", "ModelFactory", "build", "lenet5", "mlp"),
            "holdout.learning.training": ("Evaluation", "evaluate"),
            "holdout.learning.vector": ("dimension", "flatten", "unflatten"),
        },
    )
