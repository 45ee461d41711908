"""Write the tables of docs/paper.md, robustness.md and benchmarks.md from docs/results.

Usage: python tools/paper_tables.py

A table stands between `<!-- results NAME -->` and `<!-- /results -->`; `TABLES` says who makes it.
No number in these tables is typed in by hand.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from types import MappingProxyType

from paper_cells import (
    CALM,
    CURVE_HEAD,
    NOTHING,
    Results,
    accepted,
    cell,
    curve_row,
    empty,
    final,
    lowest,
    seeds_text,
    strands,
    table,
    worst_class,
)
from paper_claims import cifar10, cifar10_claims, mnist_claims, overflow
from paper_experiments import (
    ATTACKS,
    AUTHORS_RULES,
    BALLOTS,
    EXPERIMENTS,
    GAMMAS,
    PAPER,
    REDUCED,
    ROBUST,
    VOTES,
    names_of,
)
from paper_results import Measured, Strand, read

from holdout.experiments.curves import name_of

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGES = ("paper.md", "robustness.md", "benchmarks.md")
SPEED = DOCS / "results" / "bench" / "results.json"
MARKED = re.compile(r"(<!-- results ([\w.-]+) -->\n).*?(<!-- /results -->)", re.DOTALL)
NAMING = ("mean", "krum", "multi-krum", *VOTES)
"""The rules that name the updates they average."""
LEAD_MIN = 0.3
"""In points: less is noise of the seeds."""


def main() -> None:
    """Rewrite the tables of every page."""
    results = read_all()
    for page in PAGES:
        path = DOCS / page
        path.write_text(filled(path.read_text("utf-8"), results), encoding="utf-8")


def read_all() -> dict[str, Measured]:
    """Every experiment of docs/results, by name."""
    files = dict.fromkeys(experiment.file for experiment in EXPERIMENTS.values())
    return {name: found for file in files for name, found in read(file).items()}


def filled(text: str, results: Results) -> str:
    """A page with its tables made anew."""
    return MARKED.sub(lambda m: f"{m[1]}{TABLES[m[2]](results)}\n{m[3]}", text)


def _panel(name: str, results: Results) -> str:
    """One panel of the MNIST figure, with everything that is said of a curve."""
    calm = strands(results, CALM[name], "mean")
    rows = [] if name == "mnist-left" else [curve_row("mean, no attack", calm, calm)]
    rows += [
        curve_row(name_of(rule), found, calm)
        for rule in (AUTHORS_RULES if name == "mnist-authors" else PAPER)
        if (found := strands(results, name, rule))
    ]
    return table(CURVE_HEAD, rows)


def _variants(results: Results) -> str:
    """Each switch that the paper or the authors' code leaves open: final accuracies."""
    head = ["name", "panel", "what is different", "settings", "seeds", *map(name_of, PAPER)]
    rows = []
    for name in names_of("mnist-variants"):
        experiment = EXPERIMENTS[name]
        rules = AUTHORS_RULES if "krum-unsquared" in experiment.rules else PAPER
        found = [strands(results, name, rule) for rule in rules]
        counts = [len(f) for f, r in zip(found, rules, strict=True) if r in experiment.rules]
        settings = " ".join(f"`{s}`" for s in experiment.settings[len(REDUCED) :]) or NOTHING
        if any(counts):
            panel = experiment.panel.removeprefix("mnist-")
            says = [f"`{name}`", panel, experiment.says, settings, seeds_text(counts)]
            rows.append([*says, *map(cell, found)])
    return table(head, rows)


def _passing(results: Results) -> str:
    """`passing` by `gamma_max` by sign, for the two votes, beside the odds of an overflow."""
    columns = [(p, sign) for p in ("any", "all") for sign in ("plus", "minus")]
    words = {"plus": "+", "minus": "−"}
    head = ["rule", "γ_max", "seeds", *(f"{p}, {words[sign]}" for p, sign in columns)]
    rows = []
    for rule in VOTES:
        for gamma in GAMMAS:
            found = [strands(results, f"passing-{p}-{gamma}-{s}", rule) for p, s in columns]
            seeds = seeds_text(map(len, found))
            if any(found):
                rows.append([name_of(rule), str(gamma), seeds, *map(cell, found)])
    return table(head, rows)


def _attacks(
    prefix: str,
    rules: Sequence[str],
    text: Callable[[Sequence[Strand]], str],
    results: Results,
    *,
    worth: Callable[[Strand], bool] = lambda _: True,
) -> str:
    """Attack by rule, one quantity; the rows in which some strand is worth showing."""
    head = ["attack", "seeds", *map(name_of, rules)]
    rows = []
    for attack in ("none", *ATTACKS):
        found = [strands(results, f"{prefix}-{attack}", rule) for rule in rules]
        says = "nobody lies" if attack == "none" else f"`{attack}`"
        if any(worth(strand) for curve in found for strand in curve):
            rows.append([says, seeds_text(map(len, found)), *map(text, found)])
    return table(head, rows)


def _above(results: Results) -> str:
    """By how many points other rules end above `holdout`, attack by attack."""

    def ahead(name: str) -> str:
        own = strands(results, name, "holdout")
        leads = {
            rule: fmean(map(final, found)) - fmean(map(final, own))
            for rule in ROBUST
            if own and (found := strands(results, name, rule))
        }
        shown = [f"{name_of(r)} +{lead:.1f}" for r, lead in leads.items() if lead >= LEAD_MIN]
        return ", ".join(shown) or NOTHING

    prefixes = ("robustness", "dirichlet-0.5", "dirichlet-0.1")
    rows = [
        (
            "nobody lies" if attack == "none" else f"`{attack}`",
            *(ahead(f"{prefix}-{attack}") for prefix in prefixes),
        )
        for attack in ("none", *ATTACKS)
    ]
    return table(("attack", "equal data", "Dirichlet 0.5", "Dirichlet 0.1"), rows)


def _ballots(prefix: str, ballots: str, results: Results) -> str:
    """Byzantine ballots under the paper's attack, for the two votes."""
    rows = []
    for ballot in ("coalition", *BALLOTS):
        name = f"{prefix}-alie" if ballot == "coalition" else f"{ballots}-{ballot}"
        for rule in VOTES:
            found = strands(results, name, rule)
            calm = strands(results, f"{prefix}-none", "mean")
            if found:
                rows.append([f"`{ballot}`", *curve_row(name_of(rule), found, calm)])
    return table(("ballot", *CURVE_HEAD), rows)


def _environment(results: Results) -> str:
    """The versions that everything was run with."""
    seen = {
        tuple(f"{key} {value}" for key, value in environment.items())
        for measured in results.values()
        for environment in measured.environments
    }
    return "\n".join(f"- {', '.join(line)}" for line in sorted(seen)) or f"- {NOTHING}"


def _speed(_results: Results) -> str:
    """One whole run of `make bench`, as it was written."""
    if not SPEED.exists():
        return "Not run yet."
    found = json.loads(SPEED.read_bytes())
    rows = [
        (
            row["name"],
            f"{row['ratio']:.2f}",
            f"{row['target']:.3g}",
            "met" if row["met"] else "**missed**",
            row["note"],
        )
        for row in found["rows"]
    ]
    where = ", ".join(f"{key} {value}" for key, value in found["machine"].items())
    head = ("what", "ratio", "target", "", "notes; memory is the peak above the start")
    return f"{table(head, rows)}\n\nMachine: {where}."


def _of_attacks(prefix: str) -> dict[str, Callable[[Results], str]]:
    return {
        f"{prefix}-final": partial(_attacks, prefix, ROBUST, cell),
        f"{prefix}-lowest": partial(_attacks, prefix, ROBUST, lowest),
        f"{prefix}-accepted": partial(_attacks, prefix, NAMING, accepted),
        f"{prefix}-empty": partial(
            _attacks, prefix, ROBUST, empty, worth=lambda s: s.empty_rounds > 0
        ),
        f"{prefix}-worst": partial(_attacks, prefix, ROBUST, partial(cell, value=worst_class)),
    }


TABLES: Mapping[str, Callable[[Results], str]] = MappingProxyType(
    {
        "claims": mnist_claims,
        "mnist-left": partial(_panel, "mnist-left"),
        "mnist-right": partial(_panel, "mnist-right"),
        "mnist-any": partial(_panel, "mnist-any"),
        "mnist-authors": partial(_panel, "mnist-authors"),
        "variants": _variants,
        "passing": _passing,
        "overflow": overflow,
        "cifar10": cifar10,
        "cifar10-claims": cifar10_claims,
        "above": _above,
        "ballots": partial(_ballots, "robustness", "ballots"),
        **{
            f"{prefix}-ballots": partial(_ballots, prefix, f"{prefix}-ballots")
            for prefix in ("dirichlet-0.5", "dirichlet-0.1")
        },
        "environment": _environment,
        "speed": _speed,
        **_of_attacks("robustness"),
        **_of_attacks("dirichlet-0.5"),
        **_of_attacks("dirichlet-0.1"),
    }
)


if __name__ == "__main__":
    main()
