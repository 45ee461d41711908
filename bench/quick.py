"""Both figures of the paper cut down by `--quick`; only with `make bench DATA=FOLDER`."""

from bench import figures
from bench.measure import Row
from holdout.experiments.reproduce import QUICK

SECONDS = 180


def rows() -> list[Row]:
    """A figure after the other."""
    if not figures.data():
        return []
    return [
        figures.row(f"{name} figure, `--quick`: 3 minutes / time", SECONDS, name, settings)
        for name, settings in QUICK.items()
    ]
