"""An experiment small enough to be run many times: custom data, ten workers, a few rounds."""

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from holdout.config import apply_settings

Sections = dict[str, dict[str, Any]]


def write_data(folder: Path, rows: int = 120, classes: int = 3) -> Path:
    """Noisy points around one corner a class, as an .npz file."""
    rng = np.random.default_rng(0)
    y = np.arange(rows + 60) % classes
    x = (np.eye(5)[y] * 2 + rng.normal(size=(len(y), 5))).astype(np.float32)
    path = folder / "points.npz"
    np.savez(path, x_train=x[:rows], y_train=y[:rows], x_test=x[rows:], y_test=y[rows:])
    return path


def values(data: Path, /, **changes: dict[str, Any]) -> Sections:
    """A config of every section that matters, with changes put over it."""
    sections: Sections = {
        "experiment": {
            "name": "tiny",
            "rules": ["mean", "holdout"],
            "rounds": 3,
            # In seed 10, a round with more liars than honest proposers stretches the bound.
            "seeds": [0, 10],
            "evaluate_every": 2,
            "threads": 1,
        },
        "data": {"name": "npz", "path": str(data), "samples_per_worker": 30},
        "training": {"batch_size": 8, "momentum": 0.5},
        "federation": {"workers": 10, "proposers": 5, "voters": 5, "byzantine": 4},
        "vote": {"samples": 10},
        "attack": {"name": "bomb", "scale": 1e30, "knowledge": "last-round"},
    }
    for section, keys in changes.items():
        sections[section] = {**sections.get(section, {}), **keys}
    return sections


def rounds(folder: Path) -> str:
    """The bytes of `results.jsonl` but for how long each round took."""
    text = (folder / "results.jsonl").read_text("utf-8")
    return re.sub(r'"seconds": [0-9.e-]+\}', '"seconds": 0}', text)


def contents(folder: Path) -> dict[str, bytes | None]:
    """Every file of a folder with its bytes, every folder in it with None."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


@contextmanager
def beside_code(name: str, code: str, data: Path) -> Iterator[Callable[..., Sections]]:
    """Write a module of custom code here; gives a function from rules and settings to a config."""
    Path(f"{name}.py").write_text(code, "utf-8")

    def make(rules: Sequence[str], *changes: str) -> Sections:
        experiment = {"rules": list(rules), "seeds": [0], "baseline": False}
        plain = {**values(data, experiment=experiment), "attack": {"name": "sign-flip"}}
        return apply_settings(plain, list(changes))

    yield make
    sys.modules.pop(name, None)
