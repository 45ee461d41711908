"""How the time of a round grows with N_p, N_c, m_c and d: fitted exponents and a small plot.

The vote's work is proportional to each of the four; an exponent well above 1 would be a fault.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from bench.measure import Row, seconds
from bench.simulated import rounds
from holdout.experiments.plugins import Plugins

PLOT = Path(__file__).with_name("growth.png")
SIZES: dict[str, Sequence[int]] = {
    "N_p": (8, 16, 32, 64, 128),
    "N_c": (8, 16, 32, 64, 128),
    "m_c": (125, 250, 500, 1000, 2000),
    "d": (20_000, 40_000, 80_000, 160_000, 320_000),
}
USUAL = {"N_p": 16, "N_c": 16, "m_c": 500, "d": 80_000}
SAMPLES = 400_000
"""In the whole data set: many, since a sample that several voters draw is scored once for all."""
INPUTS, CLASSES = 196, 10
REPETITIONS = 9
EXPONENT_MAX = 1.15
"""More than 1 by what the measurement may be off."""


def rows() -> list[Row]:
    """One row for each quantity; the plot is written on the way."""
    data = _data()
    curves = {
        name: [_seconds(USUAL | {name: size}, data) for size in sizes]
        for name, sizes in SIZES.items()
    }
    exponents = {
        name: float(np.polyfit(np.log(SIZES[name]), np.log(times), 1)[0])
        for name, times in curves.items()
    }
    _plot(curves, exponents)
    return [
        Row(
            f"a holdout-1 round grows as {name}^{exponent:.2f}; {EXPONENT_MAX} / exponent",
            EXPONENT_MAX / max(exponent, 0.01),
            1.0,
            ", ".join(
                f"{size:,}: {time:.3f} s"
                for size, time in zip(SIZES[name], curves[name], strict=True)
            ),
        )
        for name, exponent in exponents.items()
    ]


def _data() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return (
        torch.randn(SAMPLES, INPUTS, generator=generator),
        torch.randint(0, CLASSES, (SAMPLES,), generator=generator),
        torch.randn(50, INPUTS, generator=generator),
        torch.randint(0, CLASSES, (50,), generator=generator),
    )


def _seconds(sizes: dict[str, int], data: tuple[Tensor, Tensor, Tensor, Tensor]) -> float:
    hidden = max(1, sizes["d"] // (INPUTS + CLASSES + 1))

    def factory(_shape: tuple[int, ...], classes: int) -> nn.Module:
        return nn.Sequential(nn.Linear(INPUTS, hidden), nn.ReLU(), nn.Linear(hidden, classes))

    config = {
        "experiment": {
            "rules": ["holdout-1"],
            "baseline": False,
            "rounds": 10**6,
            "evaluate_every": 10**6,
        },
        "data": {"samples_per_worker": 2000, "normalise": False},
        "federation": {
            "workers": sizes["N_p"] + sizes["N_c"],
            "proposers": sizes["N_p"],
            "voters": sizes["N_c"],
            "byzantine": 0,
        },
        "training": {"batch_size": 32},
        "vote": {"samples": sizes["m_c"]},
        "attack": {"name": "none"},
    }
    action = rounds(config, Plugins(data=data, model=factory))
    return seconds({"round": action}, repetitions=REPETITIONS)["round"]


def _plot(curves: dict[str, list[float]], exponents: dict[str, float]) -> None:
    figure = Figure(figsize=(11, 2.8), layout="constrained")
    axes = figure.subplots(1, len(curves), sharey=True)
    for axis, (name, times) in zip(axes, curves.items(), strict=True):
        sizes = np.array(SIZES[name])
        axis.loglog(sizes, times, "o-", label="measured")
        axis.loglog(sizes, times[0] * sizes / sizes[0], ":", color="grey", label="proportional")
        axis.set_title(f"{name}: exponent {exponents[name]:.2f}")
        axis.set_xlabel(name)
        axis.set_xticks(
            sizes, [f"{size:g}" if name != "d" else f"{size // 1000} k" for size in sizes]
        )
        axis.minorticks_off()
    axes[0].set_ylabel("seconds a round")
    axes[0].legend()
    figure.savefig(PLOT, dpi=80)
