"""Who holds which labels: counted once a run, and drawn in its report.

`shards.json` holds, for the run's first seed, how many rows of each label each worker holds. Where
targets are real-valued, tenths of their range of ranks stand in for labels.
"""

import html
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from holdout.config import Config
from holdout.data.datasets import Dataset
from holdout.experiments.sizes_fit import shards_of
from holdout.results import to_json

SHARDS = "shards.json"

WORKERS_MAX, CELLS_MAX = 250, 2500
"""How many workers, and numbers of theirs, the page shows; of more workers, evenly spaced ones."""
HEIGHT, BAR, LEFT, BOTTOM = 180, 9, 52, 34


def shards_json(config: Config, dataset: Dataset) -> str:
    """The content of `shards.json`."""
    labels, classes = dataset.strata()
    seed = config.experiment.seeds[0]
    held = shards_of(config, dataset, seed)
    counts = [np.bincount(labels[rows], minlength=classes).tolist() for rows in held]
    kind = "tenths of the targets" if dataset.classes is None else "labels"
    return to_json({"seed": seed, "kind": kind, "counts": counts}) + "\n"


def holders_html(folder: Path) -> str:
    """A picture of `shards.json` with a line on it; empty if there is none, or it is damaged."""
    try:
        found = json.loads((folder / SHARDS).read_text("utf-8"))
        counts = np.array(found["counts"])
        if counts.ndim != 2 or counts.dtype.kind != "i" or counts.size == 0 or counts.min() < 0:  # noqa: PLR2004
            return ""
        shown, kind = _shown(counts), str(found["kind"])
        return _text(found, counts) + _picture(counts, shown, kind) + _numbers(counts, shown, kind)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ""


def _text(found: Mapping[str, Any], counts: Any) -> str:
    sizes, kinds = counts.sum(axis=1), (counts > 0).sum(axis=1)
    workers, labels = counts.shape
    said = (
        f"{workers} workers hold {_span(sizes)} rows each, of {_span(kinds)} of {labels} "
        f"{found['kind']} (seed {found['seed']}). A bar is a worker; colours are {found['kind']}."
    )
    if workers > (count := len(_shown(counts))):
        said += f" {count} evenly spaced ones are shown."
    return f"<p>{html.escape(said)}</p>"


def _span(values: Any) -> str:
    low, high = int(values.min()), int(values.max())
    return str(low) if low == high else f"{low} to {high}"


def _shown(counts: Any) -> Any:
    """Which workers the page shows."""
    workers, labels = counts.shape
    count = min(workers, WORKERS_MAX, max(1, CELLS_MAX // labels))
    return np.linspace(0, workers - 1, count).round().astype(int)


def _picture(counts: Any, shown: Any, kind: str) -> str:
    """Stacked bars, one for each worker, as an SVG; an edge tells each from any ground."""
    labels = counts.shape[1]
    most = max(1, int(counts.sum(axis=1).max()))
    width = LEFT + BAR * len(shown) + 8
    parts = [
        f'<svg viewBox="0 0 {width} {HEIGHT + BOTTOM}" role="img" '
        f'aria-label="Rows by worker and {html.escape(kind)}" '
        f'style="width:100%;max-width:{round(1.4 * width)}px">'
    ]
    for place, worker in enumerate(shown):
        top = float(HEIGHT)
        told = ", ".join(f"{label}: {n}" for label, n in enumerate(counts[worker]) if n)
        held = int(counts[worker].sum())
        parts.append(f"<g><title>worker {worker}: {held} rows ({told})</title>")
        for label, count in enumerate(counts[worker]):
            if count:
                tall = (HEIGHT - 8) * int(count) / most
                top -= tall
                parts.append(
                    f'<rect x="{LEFT + BAR * place}" y="{top:.2f}" width="{BAR - 1}" '
                    f'height="{tall:.2f}" fill="{_colour(label, labels)}"/>'
                )
        parts.append(
            f'<rect x="{LEFT + BAR * place}" y="{top:.2f}" width="{BAR - 1}" '
            f'height="{HEIGHT - top:.2f}" style="fill:none;stroke:var(--edge)"/></g>'
        )
    style = 'font-size="11" fill="currentColor"'
    parts.append(f'<text x="{LEFT - 6}" y="12" text-anchor="end" {style}>{most}</text>')
    parts.append(f'<text x="{LEFT - 6}" y="{HEIGHT}" text-anchor="end" {style}>0</text>')
    parts.append(f'<text x="{LEFT - 6}" y="{HEIGHT // 2}" text-anchor="end" {style}>rows</text>')
    parts.append(f'<text x="{LEFT}" y="{HEIGHT + 20}" {style}>workers, from 0</text>')
    return "".join([*parts, "</svg>"])


def _numbers(counts: Any, shown: Any, kind: str) -> str:
    """The picture as a table, for those who cannot see it or tell its colours apart."""
    head = "".join(f'<th scope="col">{label}</th>' for label in range(counts.shape[1]))
    rows = "".join(
        f'<tr><th scope="row">worker {worker}</th>'
        + "".join(f"<td>{count}</td>" for count in counts[worker])
        + "</tr>"
        for worker in shown
    )
    return (
        f"<details><summary>Rows by worker and {html.escape(kind)}, in numbers</summary>"
        f'<table><thead><tr><th scope="col">{html.escape(kind)}</th>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></details>"
    )


def _colour(label: int, labels: int) -> str:
    """Hues around the circle; every second one is darker, so that neighbours can be told apart."""
    return f"hsl({360 * label // labels} 55% {62 if label % 2 else 42}%)"
