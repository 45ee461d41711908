"""The MNIST figure of one seed, from the files on.

Only with `make bench DATA=FOLDER`: the folder has `mnist` and `cifar10` in it.
"""

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench import memory
from bench.measure import Row
from holdout.experiments import reproduce

SECONDS = 300


def rows() -> list[Row]:
    """The paper's two panels, and all of `holdout reproduce`."""
    if not data():
        return []
    title = "mnist figure, one seed, all curves, {}: 5 minutes / time"
    return [
        row(title.format(words), SECONDS, "mnist", ["experiment.seeds=[0]"], panels=count)
        for count, words in ((2, "the paper's panels"), (None, "all panels"))
    ]


def row(
    title: str, seconds: int, name: str, settings: Sequence[str], *, panels: int | None = None
) -> Row:
    """How long a figure takes, or its first panels."""
    whole = reproduce.FIGURES
    reproduce.FIGURES = {name: whole[name][:panels]}
    try:
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "out"
            files = Path(data()) / name
            need = memory.spent(
                lambda: reproduce.reproduce(name, data=files, out=out, settings=settings)
            )
    finally:
        reproduce.FIGURES = whole
    return Row(title, seconds / need.seconds, 1.0, f"{need.seconds:.0f} s; memory: {need}")


def data() -> str:
    """The folder of the data sets; empty if none was named."""
    return os.environ.get("DATA", "")
