"""Write the tables of docs/paper.md, robustness.md and benchmarks.md from docs/results.

Usage: python tools/paper_tables.py

A table stands between `<!-- results NAME -->` and `<!-- /results -->`; `TABLES` says who makes it.
No number in these tables is typed in by hand.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from types import MappingProxyType

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

from holdout.experiments.committees import plan
from holdout.experiments.curves import name_of

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGES = ("paper.md", "robustness.md", "benchmarks.md")
SPEED = DOCS / "results" / "bench" / "results.json"
MARKED = re.compile(r"(<!-- results ([\w.-]+) -->\n).*?(<!-- /results -->)", re.DOTALL)
NUMBER = re.compile(r"[\d–]")
NOTHING = "–"
NAMING = ("mean", "krum", "multi-krum", *VOTES)
"""The rules that name the updates they average."""
CIFAR_ROUNDS = (80, 200, 400, 600, 800, 1000)

Results = Mapping[str, Measured]
Value = Callable[[Strand], float | None]


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


def strands(results: Results, name: str, rule: str) -> list[Strand]:
    """The strands of a curve that came to their end."""
    if name == "mnist-any" and rule not in VOTES:
        # The attacker's reading of "selected" matters to the votes alone.
        name = "mnist-right"
    measured = results.get(name)
    if measured is None:
        return []
    return [s for s in measured.strands if s.rule == rule and s.outcome != "unfinished"]


def final(strand: Strand) -> float:
    """The last accuracy, in per cent."""
    return 100 * strand.final_accuracy


def worst_class(strand: Strand) -> float:
    """Recall of the class recognised worst, in per cent."""
    return 100 * strand.worst_class_recall


def mean_text(values: Sequence[float], *, diverged: int = 0) -> str:
    """Mean and, over several seeds, their standard deviation; a dagger where some diverged.

    >>> mean_text([90.0, 92.0]), mean_text([5.0]), mean_text([])
    ('91.0 ± 1.4', '5.0', '–')
    """
    if not values:
        return NOTHING
    spread = f" ± {stdev(values):.1f}" if len(values) > 1 else ""
    return f"{fmean(values):.1f}{spread}{' †' * bool(diverged)}"


def _cell(found: Sequence[Strand], value: Value = final) -> str:
    values = [v for strand in found if (v := value(strand)) is not None]
    return mean_text(values, diverged=sum(s.outcome == "diverged" for s in found))


def _lowest(found: Sequence[Strand]) -> str:
    """Of all seeds; one that diverged counts with what it had come to."""
    if not found:
        return NOTHING
    values = [s.final_accuracy if s.lowest_after_20 is None else s.lowest_after_20 for s in found]
    return f"{100 * min(values):.1f}{' †' * any(s.outcome == 'diverged' for s in found)}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    body = list(rows)
    if not body:
        return "Not run yet."
    # Numbers to the right, words to the left.
    columns = zip(*body, strict=True)
    aligned = ["---:" if NUMBER.match(max(column, key=len)) else "---" for column in columns]
    return "\n".join("| " + " | ".join(line) + " |" for line in [head, aligned, *body])


def _seeds(counts: Iterable[int]) -> str:
    """How many seeds really ran: one number, or the fewest to the most.

    >>> _seeds([3, 3]), _seeds([0, 2, 3])
    ('3', '0–3')
    """
    found = sorted(set(counts))
    return str(found[0]) if len(found) == 1 else f"{found[0]}–{found[-1]}"


def _panel(name: str, results: Results) -> str:
    """One panel of the MNIST figure, with everything that is said of a curve."""
    calm = strands(results, "mnist-left", "mean")
    rows = [] if name == "mnist-left" else [_curve_row("mean, no attack", calm, calm)]
    rows += [
        _curve_row(name_of(rule), found, calm)
        for rule in (AUTHORS_RULES if name == "mnist-authors" else PAPER)
        if (found := strands(results, name, rule))
    ]
    return _table(CURVE_HEAD, rows)


CURVE_HEAD = (
    *("rule", "seeds", "final accuracy, %", "points below the unattacked mean"),
    *("lowest after round 20, %", "γ", "lies accepted a round", "empty rounds", "worst class, %"),
)


def _curve_row(label: str, found: Sequence[Strand], calm: Sequence[Strand]) -> list[str]:
    return [
        label,
        str(len(found)),
        _cell(found),
        mean_text(_drops(found, calm)),
        _lowest(found),
        _cell(found, lambda s: s.gamma),
        _accepted(found),
        _empty(found),
        _cell(found, worst_class),
    ]


def _drops(found: Sequence[Strand], calm: Sequence[Strand]) -> list[float]:
    """Points below the unattacked mean of the same seed."""
    upper = {strand.seed: final(strand) for strand in calm}
    return [upper[s.seed] - final(s) for s in found if s.seed in upper]


def _claims(results: Results) -> str:
    """The paper's claims on MNIST, beside what was measured."""
    calm = strands(results, "mnist-left", "mean")

    seeds = _seeds(
        len(strands(results, name, rule))
        for name in ("mnist-left", "mnist-right", "mnist-any", "mnist-authors")
        for rule in EXPERIMENTS[name].rules
    )

    def left(rule: str) -> str:
        return f"{name_of(rule)} {_cell(strands(results, 'mnist-left', rule))}"

    def early(rule: str) -> str:
        found = strands(results, "mnist-left", rule)
        return f"{name_of(rule)} {_cell(found, lambda s: 100 * dict(s.curve)[20])}"

    def drop(name: str, *rules: str) -> str:
        return ", ".join(
            f"{name_of(rule)} {mean_text(_drops(strands(results, name, rule), calm))}"
            for rule in rules
        )

    compared = ("mean", "trimmed-mean", "holdout-paper", "holdout", "krum")
    attacked = [
        ("trimmed mean loses 4 points", ("trimmed-mean", "mean-around-median")),
        ("Krum loses over 50 points", ("krum",)),
        ("HoldOut loses about none", VOTES),
    ]
    rows = [
        (
            "without liars HoldOut is as fast as mean and trimmed mean",
            f"accuracy after round 20: {', '.join(map(early, compared))}",
            "the same",
        ),
        ("and all beat Krum", f"accuracy: {', '.join(map(left, compared))}", "the same"),
    ]
    for claim, rules in attacked:
        as_authors = [rule if rule != "krum" else "krum-unsquared" for rule in rules]
        text = drop("mnist-right", *rules)
        if rules == VOTES:
            text = f"{text} if all copies must pass; {drop('mnist-any', *rules)} if any copy"
        rows.append((claim, f"points lost: {text}", drop("mnist-authors", *as_authors)))
    return _table(("paper", f"by the text, {seeds} seeds", "by the authors' code"), rows)


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
            says = [f"`{name}`", panel, experiment.says, settings, _seeds(counts)]
            rows.append([*says, *map(_cell, found)])
    return _table(head, rows)


def _passing(results: Results) -> str:
    """`passing` by `gamma_max` by sign, for the two votes, beside the odds of an overflow."""
    columns = [(p, sign) for p in ("any", "all") for sign in ("plus", "minus")]
    words = {"plus": "+", "minus": "−"}
    head = ["rule", "γ_max", "seeds", *(f"{p}, {words[sign]}" for p, sign in columns)]
    rows = []
    for rule in VOTES:
        for gamma in GAMMAS:
            found = [strands(results, f"passing-{p}-{gamma}-{s}", rule) for p, s in columns]
            seeds = _seeds(map(len, found))
            if any(found):
                rows.append([name_of(rule), str(gamma), seeds, *map(_cell, found)])
    return _table(head, rows)


def _overflow(results: Results) -> str:
    """The odds that `holdout plan` gives for the paper's committees, and how often it was so."""
    rows = []
    for label, size, rounds, name, rule in (
        ("MNIST, the figure", 30, 100, "mnist-right", "mean"),
        ("MNIST, the table below", 30, 60, "passing-any-30-plus", "holdout"),
        ("CIFAR-10", 12, 1000, "cifar10-all", "mean"),
    ):
        found = plan(
            workers=100, byzantine=Fraction(33, 100), rounds=rounds, delta=0.01, committee=size
        ).committee
        assert found is not None  # noqa: S101
        # All rules of a seed see the same draws: one of them is enough.
        drawn = [s for s in results[name].strands if s.rule == rule] if name in results else []
        seen = sum(s.overflow_rounds for s in drawn) / max(1, sum(s.rounds for s in drawn))
        rows.append(
            (
                label,
                f"{size}",
                f"{100 * found.overflow_round:.1f} %",
                f"{100 * seen:.1f} %" if drawn else NOTHING,
                f"{100 * found.majority_failure_round:.1f} %",
            )
        )
    head = ("", "N_p", "overflow in a round, exact", "in the rounds run", "half or more lie, exact")
    return _table(head, rows)


def _cifar(results: Results) -> str:
    """CIFAR-10: accuracies as far as the curves came."""
    shown = [
        r
        for r in CIFAR_ROUNDS
        if any(
            s.rounds >= r for n in names_of("cifar10") if n in results for s in results[n].strands
        )
    ]
    head = ["name", "experiment", "rule", "seeds", "rounds run", *(f"after {r}" for r in shown)]
    rows = []
    for name in names_of("cifar10"):
        for rule in EXPERIMENTS[name].rules:
            measured = results.get(name)
            found = [s for s in measured.strands if s.rule == rule] if measured else []
            if found:
                says = [f"`{name}`", EXPERIMENTS[name].says, name_of(rule)]
                rows.append([*says, *_cifar_row(found, shown)])
    return _table(head, rows)


def _cifar_row(found: Sequence[Strand], shown: Sequence[int]) -> list[str]:
    def after(number: int) -> str:
        there = [s for s in found if number in dict(s.curve)]
        gone = [s for s in found if s.outcome == "diverged" and s.rounds < number]
        values = [100 * dict(s.curve)[number] for s in there] + [final(s) for s in gone]
        counted = f" ({len(values)})" if 0 < len(values) < len(found) else ""
        return mean_text(values, diverged=len(gone)) + counted

    return [str(len(found)), _seeds(s.rounds for s in found), *map(after, shown)]


def _cifar_claims(results: Results) -> str:
    """The paper's claims on CIFAR-10: the share of the unattacked accuracy that is lost."""
    calm = {s.seed: s.final_accuracy for s in strands(results, "cifar10-none", "mean")}

    def lost(name: str, rule: str) -> str:
        found = [s for s in strands(results, name, rule) if s.seed in calm]
        shares = [100 * (1 - s.final_accuracy / calm[s.seed]) for s in found]
        return f"{name_of(rule)} {mean_text(shares)}"

    rows = [
        ("trimmed mean loses about 50 %", ("trimmed-mean", "mean-around-median")),
        ("Krum loses over 65 %", ("krum", "krum-unsquared")),
        ("HoldOut loses about 15 %", VOTES),
    ]
    shown = ("cifar10-all", "cifar10-any", "cifar10-authors")
    seeds = {
        name: _seeds(len(strands(results, name, rule)) for rule in EXPERIMENTS[name].rules)
        for name in shown
    }
    return _table(
        ("paper", *(f"{EXPERIMENTS[name].says}, seeds: {seeds[name]}" for name in shown)),
        [
            (
                claim,
                *(
                    ", ".join(lost(name, rule) for rule in EXPERIMENTS[name].rules if rule in rules)
                    or "the same"
                    for name in shown
                ),
            )
            for claim, rules in rows
        ],
    )


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
        if any(worth(strand) for cell in found for strand in cell):
            rows.append([says, _seeds(map(len, found)), *map(text, found)])
    return _table(head, rows)


def _ballots(results: Results) -> str:
    """Byzantine ballots under the paper's attack, for the two votes."""
    rows = []
    for ballot in ("coalition", *BALLOTS):
        name = "robustness-alie" if ballot == "coalition" else f"ballots-{ballot}"
        for rule in VOTES:
            found = strands(results, name, rule)
            calm = strands(results, "robustness-none", "mean")
            if found:
                rows.append([f"`{ballot}`", *_curve_row(name_of(rule), found, calm)])
    return _table(("ballot", *CURVE_HEAD), rows)


def _environment(results: Results) -> str:
    """The versions that everything was run with."""
    seen = {
        tuple(f"{key} {value}" for key, value in environment.items())
        for measured in results.values()
        for environment in measured.environments
    }
    return "\n".join(f"- {', '.join(line)}" for line in sorted(seen)) or f"- {NOTHING}"


def _accepted(found: Sequence[Strand]) -> str:
    return _cell(found, lambda s: s.byzantine_accepted_per_round)


def _empty(found: Sequence[Strand]) -> str:
    return _cell(found, lambda s: s.empty_rounds)


def _speed(_results: Results) -> str:
    """One whole run of `make bench`, as it was written."""
    if not SPEED.exists():
        return "Not run yet."
    found = json.loads(SPEED.read_bytes())
    rows = [
        (
            row["name"],
            f"{row['ratio']:.2f}",
            f"{row['target']:g}",
            "met" if row["met"] else "**missed**",
            row["note"],
        )
        for row in found["rows"]
    ]
    where = ", ".join(f"{key} {value}" for key, value in found["machine"].items())
    head = ("what", "ratio", "target", "", "notes; memory is the peak above the start")
    return f"{_table(head, rows)}\n\nMachine: {where}."


def _of_attacks(prefix: str) -> dict[str, Callable[[Results], str]]:
    return {
        f"{prefix}-final": partial(_attacks, prefix, ROBUST, _cell),
        f"{prefix}-lowest": partial(_attacks, prefix, ROBUST, _lowest),
        f"{prefix}-accepted": partial(_attacks, prefix, NAMING, _accepted),
        f"{prefix}-empty": partial(
            _attacks, prefix, ROBUST, _empty, worth=lambda s: s.empty_rounds > 0
        ),
        f"{prefix}-worst": partial(_attacks, prefix, ROBUST, partial(_cell, value=worst_class)),
    }


TABLES: Mapping[str, Callable[[Results], str]] = MappingProxyType(
    {
        "claims": _claims,
        "mnist-left": partial(_panel, "mnist-left"),
        "mnist-right": partial(_panel, "mnist-right"),
        "mnist-any": partial(_panel, "mnist-any"),
        "mnist-authors": partial(_panel, "mnist-authors"),
        "variants": _variants,
        "passing": _passing,
        "overflow": _overflow,
        "cifar10": _cifar,
        "cifar10-claims": _cifar_claims,
        "ballots": _ballots,
        "environment": _environment,
        "speed": _speed,
        **_of_attacks("robustness"),
        **_of_attacks("dirichlet-0.5"),
        **_of_attacks("dirichlet-0.1"),
    }
)


if __name__ == "__main__":
    main()
