"""What ByzFL 0.0.11 calls things, what the counterpart is called here, and how the two differ."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of one of ByzFL's parts."""

    default: float
    """What ByzFL takes if none is given."""
    ours: str | None = None
    """The key of the counterpart; None: it has none, and nothing follows from the value."""
    whole: bool = False
    lowest: float | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """The counterpart of an aggregator, a pre-aggregator or an attack."""

    ours: str
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    fixed: Mapping[str, object] = field(default_factory=dict)
    """Keys of the counterpart that are always set."""
    differs: str = ""
    """How it departs from ByzFL's, as a clause; empty: it computes the same."""


AGGREGATORS: Mapping[str, Part] = MappingProxyType(
    {
        "Average": Part("mean"),
        "Median": Part("median"),
        "TrMean": Part("trimmed-mean"),
        "GeometricMedian": Part(
            "geometric-median",
            {"nu": Parameter(0.1, lowest=0), "T": Parameter(3, whole=True, lowest=1)},
            differs="it iterates until it converges, where ByzFL takes T smoothed steps from the "
            "zero vector",
        ),
        "Krum": Part(
            "krum",
            differs="it looks at the n - f - 2 nearest others, ByzFL at n - f - 1, and it needs "
            "n > 2f + 2, ByzFL n > 2f",
        ),
        "MultiKrum": Part(
            "multi-krum",
            differs="it looks at the n - f - 2 nearest others, ByzFL at n - f - 1, and it needs "
            "n > 2f + 2, ByzFL n > 2f",
        ),
        "CenteredClipping": Part(
            "centered-clipping",
            {
                "tau": Parameter(100.0, "radius", lowest=0),
                "L": Parameter(1, "iterations", whole=True, lowest=1),
            },
        ),
        "MDA": Part("mda"),
        "MoNNA": Part("monna", {"idx": Parameter(0, "pivot", whole=True, lowest=0)}),
        "Meamed": Part("mean-around-median"),
        "CAF": Part(
            "caf",
            differs="it finds the top eigenvector to convergence, ByzFL by one power iteration "
            "from an unseeded random vector",
        ),
        "SMEA": Part(
            "smea",
            differs="it finds the top eigenvalue exactly, ByzFL by one power iteration from an "
            "unseeded random vector",
        ),
    }
)

PRE_AGGREGATORS: Mapping[str, Part] = MappingProxyType(
    {
        "NNM": Part("nnm"),
        "Bucketing": Part("bucketing", {"s": Parameter(1, "size", whole=True, lowest=1)}),
        "Clipping": Part("clipping", {"c": Parameter(2.0, "radius", lowest=0)}),
        "ARC": Part("arc"),
    }
)

_SEARCH = {
    "evals": Parameter(20, whole=True, lowest=1),
    "start": Parameter(0.0),
    "delta": Parameter(10.0),
    "ratio": Parameter(0.8),
}
_SEARCHED = "it also tries the opposite sign, and its search is not ByzFL's 20 evaluations from 0"

ATTACKS: Mapping[str, Part] = MappingProxyType(
    {
        "NoAttack": Part("none"),
        "SignFlipping": Part("sign-flip"),
        "InnerProductManipulation": Part("ipm", {"tau": Parameter(2.0, "gamma", lowest=0)}),
        "Optimal_InnerProductManipulation": Part("opt-ipm", _SEARCH, differs=_SEARCHED),
        "ALittleIsEnough": Part(
            "alie", {"tau": Parameter(1.5, "gamma", lowest=0)}, {"direction": 1}
        ),
        "Optimal_ALittleIsEnough": Part("opt-alie", _SEARCH, differs=_SEARCHED),
        "Mimic": Part("mimic", {"epsilon": Parameter(0, "target", whole=True, lowest=0)}),
        "Inf": Part("nan", differs="it sends every kind of junk in turn, ByzFL infinity alone"),
        "Gaussian": Part(
            "gaussian",
            {"mu": Parameter(0.0), "sigma": Parameter(1.0, "scale", lowest=0)},
            differs="the noise is drawn for each liar and has mean 0, ByzFL's is one vector for "
            "all, of mean mu",
        ),
        "LabelFlipping": Part(
            "label-flip",
            differs="each liar works on flipped labels of its own rows, ByzFL's liars send the "
            "mean over the honest workers' rows with flipped labels",
        ),
    }
)

DISTRIBUTIONS: Mapping[str, Part] = MappingProxyType(
    {
        "iid": Part("iid", differs="workers draw rows for themselves, so two may hold the same"),
        "gamma_similarity_niid": Part(
            "gamma",
            {"distribution_parameter": Parameter(1.0, "gamma", lowest=0)},
            differs="rows are divided among all workers, liars too, not among honest ones alone",
        ),
        "dirichlet_niid": Part(
            "dirichlet",
            {"distribution_parameter": Parameter(1.0, "alpha", lowest=0)},
            differs="each worker draws its own mix of labels and all hold equally many rows, where "
            "ByzFL divides each label among the workers",
        ),
        "extreme_niid": Part(
            "extreme",
            differs="rows are divided among all workers, liars too, not among honest ones alone",
        ),
    }
)

MODELS: Mapping[str, Part] = MappingProxyType(
    {
        "fc_mnist": Part("mlp"),
        "cnn_mnist": Part("holdout.sweeps.byzfl_models:cnn_mnist"),
        "logreg_mnist": Part(
            "holdout.sweeps.byzfl_models:logreg_mnist",
            differs="it is trained on the cross-entropy of its logits; ByzFL puts a sigmoid before "
            "its loss",
        ),
        "cnn_cifar": Part("holdout.sweeps.byzfl_models:cnn_cifar"),
    }
)
MODELS_WITHOUT = ("ResNet18", "ResNet34", "ResNet50", "ResNet101", "ResNet152")
"""ByzFL's models that normalise over batches, which a flat vector of weights cannot carry."""

DATASETS: Mapping[str, tuple[str, int]] = MappingProxyType(
    {"mnist": ("mnist", 60_000), "cifar10": ("cifar10", 50_000)}
)
"""The counterpart, and how many training rows it has."""
DATASETS_WITHOUT = ("fashionmnist", "emnist", "cifar100", "imagenet")
LOSSES = ("NLLLoss", "CrossEntropyLoss")
"""Of a model that ends in a log-softmax, and of one that ends in logits: the same here."""
