"""Write the pages of docs/results from the JSON files there.

Usage: python tools/paper_tables.py

A page's text is in tools/results_pages under the page's name; `[[NAME]]` there is where a table
goes, and `TABLES` says what makes it. No number in the tables is typed in by hand.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from types import MappingProxyType

from paper_cells import (
    CURVE_HEAD,
    NOTHING,
    UNATTACKED,
    Results,
    accepted,
    cell,
    curve_row,
    empty,
    final,
    lowest,
    mean_text,
    published,
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
    CIFAR_COMMITTEES,
    CIFAR_LIES,
    COMPARED,
    EXPERIMENTS,
    GAMMAS,
    LIES,
    PAPER,
    REDUCED,
    ROBUST,
    SETTINGS,
    VOTES,
    names_of,
)
from paper_results import FOLDER, Measured, Strand, read

from holdout.experiments.curves import name_of
from holdout.results import write_atomic

TEXTS = Path(__file__).with_name("results_pages")
SPEED = FOLDER / "bench" / "results.json"
PLACE = re.compile(r"^\[\[([\w.-]+)\]\]$", re.MULTILINE)
"""Where a table goes in a page's text."""
NAMING = ("mean", "krum", "multi-krum", *VOTES)
"""The rules that name the updates they average."""
WIDE = 6
"""A cell of the search that so many candidates share has a column of its own."""
LEAD_MIN = 0.3
"""In points; a smaller lead is within the noise of the seeds."""


def main() -> None:
    """Write every page anew."""
    results = read_all()
    for text in TEXTS.glob("*.md"):
        write_atomic(FOLDER / text.name, page(text.name, results).encode())


def read_all() -> dict[str, Measured]:
    """Every published experiment by name."""
    files = dict.fromkeys(experiment.file for experiment in EXPERIMENTS.values())
    return {name: found for file in files for name, found in read(file).items()}


def page(name: str, results: Results) -> str:
    """The whole text of a page."""
    text = (TEXTS / name).read_text("utf-8")
    return PLACE.sub(lambda place: TABLES[place[1]](results), text)


def _panel(name: str, results: Results) -> str:
    """One panel of the MNIST figure, a row for each curve."""
    unattacked = strands(results, UNATTACKED[name], "mean")
    rows = []
    if name != "mnist-left":
        rows.append(curve_row("mean, no attack", unattacked, unattacked))
    rows += [
        curve_row(name_of(rule), found, unattacked)
        for rule in (AUTHORS_RULES if name == "mnist-authors" else PAPER)
        if (found := strands(results, name, rule))
    ]
    return table(CURVE_HEAD, rows)


def _variants(results: Results) -> str:
    """Final accuracies for each choice that the paper or its authors' code leaves open."""
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
    """Final accuracies of the two votes by `gamma_max`, `passing` and the sign of the lie."""
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
    """One quantity by attack and rule, for the attacks with a strand `worth` showing."""
    head = ["attack", "seeds", *map(name_of, rules)]
    rows = []
    for attack in ("none", *ATTACKS):
        found = [strands(results, f"{prefix}-{attack}", rule) for rule in rules]
        if any(worth(strand) for curve in found for strand in curve):
            rows.append([_attack_text(attack), seeds_text(map(len, found)), *map(text, found)])
    return table(head, rows)


def _attack_text(attack: str) -> str:
    return "nobody lies" if attack == "none" else f"`{attack}`"


def _above(results: Results) -> str:
    """By how many points other rules end above `holdout-1`, attack by attack."""

    def ahead(name: str) -> str:
        holdout = strands(results, name, "holdout-1")
        leads = {
            rule: fmean(map(final, found)) - fmean(map(final, holdout))
            for rule in ROBUST
            if holdout and (found := strands(results, name, rule))
        }
        shown = [f"{name_of(r)} +{lead:.1f}" for r, lead in leads.items() if lead >= LEAD_MIN]
        return ", ".join(shown) or NOTHING

    prefixes = ("robustness", "dirichlet-0.5", "dirichlet-0.1")
    rows = [
        (
            _attack_text(attack),
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
            unattacked = strands(results, f"{prefix}-none", "mean")
            if found:
                rows.append([f"`{ballot}`", *curve_row(name_of(rule), found, unattacked)])
    return table(("ballot", *CURVE_HEAD), rows)


def _second_vote(setting: str, results: Results) -> str:
    """The vote with joint ballots under every attack, beside the rules that were run too."""
    others = [rule for rule in COMPARED if rule != "holdout"]
    shown = [
        rule
        for rule in others
        if any(strands(results, f"vote-{setting}-{attack}", rule) for attack in LIES)
    ]
    head = [
        *("attack", "seeds", "HoldOut", "lowest", "worst class", "lies accepted", "empty rounds"),
        *map(name_of, shown),
    ]
    rows = []
    for attack in LIES:
        name = f"vote-{setting}-{attack}"
        found = strands(results, name, "holdout")
        if found:
            text = [cell(found), lowest(found), cell(found, worst_class), accepted(found)]
            rest = [cell(strands(results, name, rule)) for rule in shown]
            rows.append([_attack_text(attack), str(len(found)), *text, empty(found), *rest])
    return table(head, rows)


def _worst_cases(results: Results) -> str:
    """For each setting and rule: where nobody lies, and the attack that costs most."""
    rows = []
    for setting in SETTINGS:
        calm = "dirichlet-0.1" if setting == "dirichlet-0.1-20" else setting
        for rule in COMPARED:
            found = {
                attack: fmean(map(final, curve))
                for attack in LIES
                if attack != "none"
                and (curve := strands(results, f"vote-{setting}-{attack}", rule))
            }
            if not found:
                continue
            worst = min(found, key=lambda attack: found[attack])
            curve = strands(results, f"vote-{setting}-{worst}", rule)
            unattacked = cell(strands(results, f"vote-{calm}-none", rule))
            says = [setting, name_of(rule), unattacked, cell(curve), cell(curve, worst_class)]
            rows.append([*says, f"`{worst}`", str(len(found)), str(len(curve))])
    head = ("setting", "rule", "nobody lies", "worst case", "worst class there", "attack")
    return table((*head, "attacks run", "seeds"), rows)


def _cifar_vote(size: int, results: Results) -> str:
    """The votes on CIFAR-10 with committees of one size; curves that have not ended say how far."""
    clean = f"vote-cifar10-{size}-none"
    unattacked = strands(results, clean, "mean")
    rows = []
    for attack in CIFAR_LIES:
        name = f"vote-cifar10-{size}-{attack}"
        for rule in EXPERIMENTS[name].rules:
            found = strands(results, name, rule)
            begun = [s for s in published(results, name, rule) if s.outcome == "unfinished"]
            shares = [share for s in found if (share := _lost(s, unattacked)) is not None]
            unfinished = ", ".join(f"{final(s):.1f} at {s.rounds}" for s in begun)
            numbers = [cell(found), mean_text(shares), lowest(found), cell(found, worst_class)]
            if found or begun:
                says = [_attack_text(attack), name_of(rule), str(len(found)), *numbers]
                rows.append([*says, unfinished or NOTHING])
    head = ("attack", "rule", "seeds", "final accuracy, %", "lost, % of the unattacked mean")
    return table((*head, "lowest", "worst class", "not ended: accuracy at a round"), rows)


def _lost(strand: Strand, unattacked: Sequence[Strand]) -> float | None:
    """How much of the same seed's unattacked accuracy is gone, in per cent of it."""
    upper = {s.seed: final(s) for s in unattacked}.get(strand.seed)
    return None if upper is None else 100 * (1 - final(strand) / upper)


def _search(_results: Results) -> str:
    """Every candidate of the search and every cell that was run: final accuracy, seed 0."""
    cells = json.loads((FOLDER / "search" / "vote.json").read_bytes())["cells"]
    columns = list(dict.fromkeys((c["setting"], c["attack"]) for c in cells))
    # Where most candidates were run comes first; single cells are named in the row.
    counts = {
        column: sum((c["setting"], c["attack"]) == column for c in cells) for column in columns
    }
    wide = [column for column in columns if counts[column] >= WIDE]
    rows = []
    for candidate in dict.fromkeys(c["candidate"] for c in cells):
        mine = {
            (c["setting"], c["attack"]): 100 * c["accuracy"][-1]
            for c in cells
            if c["candidate"] == candidate
        }
        rest = [f"{s}, {a}: {mine[s, a]:.1f}" for s, a in mine if (s, a) not in wide]
        shown = [f"{mine[c]:.1f}" if c in mine else NOTHING for c in wide]
        rows.append([candidate, *shown, "; ".join(rest) or NOTHING])
    return table(["candidate", *(f"{s}: {a}" for s, a in wide), "others"], rows)


def _choosing(_results: Results, *, file: str) -> str:
    """The candidates of a later stage: final accuracy, mean and spread over the choosing seeds."""
    cells = json.loads((FOLDER / "search" / file).read_bytes())["cells"]
    columns = sorted({(c["setting"], c["attack"]) for c in cells})
    candidates = list(dict.fromkeys(c["candidate"] for c in cells))
    rows = []
    for setting, attack in columns:
        for candidate in candidates:
            key = (setting, attack, candidate)
            found = [c for c in cells if (c["setting"], c["attack"], c["candidate"]) == key]
            if found:
                seeds = ", ".join(str(c["seed"]) for c in sorted(found, key=lambda c: c["seed"]))
                stopped = "".join(f", stopped after {c['rounds']}" for c in found if "rounds" in c)
                text = mean_text([100 * c["accuracy"] for c in found])
                rows.append([*key, f"{text}{stopped}", seeds])
    return table(("setting", "attack", "candidate", "final accuracy, %", "seeds"), rows)


def _environment(results: Results) -> str:
    """The versions with which the experiments were run, as a list."""
    seen = {
        tuple(f"{key} {value}" for key, value in environment.items())
        for measured in results.values()
        for environment in measured.environments
    }
    return "\n".join(f"- {', '.join(line)}" for line in sorted(seen)) or f"- {NOTHING}"


def _speed(_results: Results) -> str:
    """The rows of `make bench` as it wrote them, and the machine."""
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
        **{f"vote-{setting}": partial(_second_vote, setting) for setting in SETTINGS},
        **{f"vote-cifar10-{n}": partial(_cifar_vote, n) for n in CIFAR_COMMITTEES},
        "vote-worst": _worst_cases,
        "vote-search": _search,
        "vote-choosing": partial(_choosing, file="vote-choosing.json"),
        "vote-one-screen": partial(_choosing, file="vote-one-screen.json"),
        "environment": _environment,
        "speed": _speed,
        **_of_attacks("robustness"),
        **_of_attacks("dirichlet-0.5"),
        **_of_attacks("dirichlet-0.1"),
    }
)


if __name__ == "__main__":
    main()
