"""Small sweeps, and a store filled with made-up curves."""

from typing import Any

from tests import tiny

from holdout.sweeps.curve_store import CurveStore
from holdout.sweeps.planning import BASELINE, plan_sweep
from holdout.sweeps.sweep_file import read_sweep


def values(
    data, *, grid: dict[str, Any], rules=("mean", "trimmed-mean"), **parts
) -> dict[str, Any]:
    """A sweep of a few rounds over points in five dimensions."""
    base = tiny.values(
        data,
        experiment={"name": "small", "rules": list(rules), "seeds": [0], "rounds": 2},
        federation={"workers": 10, "proposers": 5, "voters": 5},
        attack={"name": "sign-flip"},
    )
    base["federation"].pop("byzantine")
    base["attack"] = {}
    for section, changes in parts.pop("changes", {}).items():
        base[section] = {**base.get(section, {}), **changes}
    return {**base, "grid": grid, **parts}


def filled(sweep: dict[str, Any], store: CurveStore, accuracy) -> Any:
    """The plan of a sweep whose curves are all in the store, with accuracies by a function."""
    plan = plan_sweep(read_sweep(sweep))
    file = plan.file
    for contender, point in plan.everything():
        for seed in (*file.seeds, *file.settings.select_seeds):
            curve = plan.find(contender, point, seed)
            if isinstance(curve, str):
                continue
            is_baseline = contender is BASELINE
            at = {} if is_baseline else file.values_at(point, contender)
            found = accuracy(contender.label, at, seed)
            store.write(curve.key, rows(curve, found), {})
    return plan


def rows(curve, accuracies) -> list[dict[str, Any]]:
    """The rounds of a curve that is measured after each of them."""
    return [
        {
            "rule": curve.rule,
            "attack": curve.attack,
            "seed": curve.seed,
            "round": number,
            "accuracy": accuracy,
            "outcome": "diverged" if accuracy is None else "step",
            "seconds": 0.5,
            "voters": [1, 2, 3],
        }
        for number, accuracy in enumerate(accuracies, start=1)
    ]
