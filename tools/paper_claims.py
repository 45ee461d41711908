"""Tables that put the paper's claims beside what was measured, and odds beside draws."""

from collections.abc import Sequence
from fractions import Fraction
from statistics import fmean

from paper_cells import (
    NOTHING,
    UNATTACKED,
    Results,
    Value,
    accepted,
    cell,
    drops,
    final,
    mean_text,
    published,
    seeds_text,
    strands,
    table,
)
from paper_experiments import EXPERIMENTS, VOTES, names_of
from paper_results import Strand

from holdout.experiments.curves import name_of
from holdout.experiments.sizes import plan_committee as plan
from holdout.voting import Terms
from holdout.voting.odds import hypergeometric_tail

CIFAR_ROUNDS = (80, 200, 400, 600, 800, 1000)
COMPARED = ("mean", "trimmed-mean", *VOTES, "krum")
LAST_POINTS = 5
SHARE = Fraction(33, 100)


def mnist_claims(results: Results) -> str:
    """The paper's claims on MNIST, beside both experiments."""

    def seeds(*names: str) -> str:
        counts = (len(strands(results, n, rule)) for n in names for rule in EXPERIMENTS[n].rules)
        return seeds_text(counts)

    def unattacked(says: str, value: Value = final) -> str:
        found = {rule: strands(results, "mnist-left", rule) for rule in COMPARED}
        return f"{says}: {', '.join(f'{name_of(r)} {cell(s, value)}' for r, s in found.items())}"

    def drop(name: str, *rules: str) -> str:
        upper = strands(results, UNATTACKED[name], "mean")
        return ", ".join(
            f"{name_of(rule)} {mean_text(drops(strands(results, name, rule), upper))}"
            for rule in rules
        )

    def early(strand: Strand) -> float:
        return 100 * dict(strand.curve)[20]

    rows = [
        (
            "without liars HoldOut is as fast as mean and trimmed mean",
            unattacked("accuracy after round 20", early),
            "not run apart",
        ),
        ("and all beat Krum", unattacked("accuracy"), "not run apart"),
    ]
    for claim, rules in (
        ("trimmed mean loses 4 points", ("trimmed-mean", "mean-around-median", "mean")),
        ("Krum loses over 50 points", ("krum",)),
        ("HoldOut loses about none", VOTES),
    ):
        as_authors = [rule if rule != "krum" else "krum-unsquared" for rule in rules]
        text = drop("mnist-right", *rules)
        if rules == VOTES:
            text = f"{text} if all copies must pass; {drop('mnist-any', *rules)} if any copy"
        authors = drop("mnist-authors", *as_authors)
        rows.append((claim, f"points lost: {text}", f"points lost: {authors}"))
    head = (
        "paper",
        f"by the text, seeds: {seeds('mnist-left', 'mnist-right', 'mnist-any')}",
        f"by the authors' code, seeds: {seeds('mnist-authors-none', 'mnist-authors')}",
    )
    return table(head, rows)


def overflow(results: Results) -> str:
    """The odds of a bad draw for the paper's committees, and how often one was drawn."""
    rows = []
    for label, size, rounds, name, rule in (
        ("MNIST, the figure", 30, 100, "mnist-right", "mean"),
        ("MNIST, the table of signs", 30, 60, "passing-any-30-plus", "holdout-1"),
        ("CIFAR-10", 12, 1000, "cifar10-all", "mean"),
    ):
        found = plan(
            workers=100, byzantine=SHARE, rounds=rounds, delta=0.01, committee=size
        ).committee
        assert found is not None  # noqa: S101
        # All rules of a seed see the same draws: one of them is enough.
        drawn = published(results, name, rule)
        seen = sum(s.overflow_rounds for s in drawn) / max(1, sum(s.rounds for s in drawn))
        alone = [
            hypergeometric_tail(
                workers=100,
                byzantine=33,
                drawn=size,
                at_least=terms.quorum(drawn=size, valid=size),
            )
            for terms in (Terms.paper(SHARE), Terms(SHARE))
        ]
        rows.append(
            (
                label,
                f"{size}",
                f"{100 * found.overflow_round:.1f} %",
                f"{100 * seen:.1f} %" if drawn else NOTHING,
                f"{100 * found.majority_failure_round:.1f} %",
                *(f"{100 * chance:.2f} %" for chance in alone),
            )
        )
    head = (
        *("", "N_p = N_c", "overflow in a round, exact", "in the rounds run"),
        "half or more lie, exact",
        *(f"the liars alone are a quorum, {name_of(rule)}" for rule in VOTES),
    )
    return table(head, rows)


def cifar10(results: Results) -> str:
    """CIFAR-10: the accuracies of every curve, as far as it was run."""
    shown = [
        r
        for r in CIFAR_ROUNDS
        if any(
            s.rounds >= r for n in names_of("cifar10") if n in results for s in results[n].strands
        )
    ]
    head = [
        *("name", "experiment", "rule", "seeds", "rounds run"),
        *(f"after {r}" for r in shown),
        *("γ", "lies accepted a round"),
    ]
    rows = []
    for name in names_of("cifar10"):
        for rule in EXPERIMENTS[name].rules:
            if found := published(results, name, rule):
                says = [f"`{name}`", EXPERIMENTS[name].says, name_of(rule)]
                rows.append([*says, *cifar10_row(found, shown)])
    return table(head, rows)


def cifar10_row(found: Sequence[Strand], shown: Sequence[int]) -> list[str]:
    """How far a curve came, its accuracy on the way, and how strong its lies were."""

    def after(number: int) -> str:
        there = [s for s in found if number in dict(s.curve)]
        gone = [s for s in found if s.outcome == "diverged" and s.rounds < number]
        values = [100 * dict(s.curve)[number] for s in there] + [final(s) for s in gone]
        counted = f" ({len(values)})" if 0 < len(values) < len(found) else ""
        return mean_text(values, diverged=len(gone)) + counted

    attacked = [cell(found, lambda s: s.gamma), accepted(found)]
    return [str(len(found)), seeds_text(s.rounds for s in found), *map(after, shown), *attacked]


def cifar10_claims(results: Results) -> str:
    """The paper's claims on CIFAR-10: the share of the unattacked accuracy that is lost."""

    def lost(name: str, rule: str) -> str:
        upper = {s.seed: s for s in strands(results, UNATTACKED[name], "mean")}
        found = [(upper[s.seed], s) for s in strands(results, name, rule) if s.seed in upper]
        last = mean_text([100 * (1 - s.final_accuracy / u.final_accuracy) for u, s in found])
        late = mean_text([100 * (1 - _late(s) / _late(u)) for u, s in found])
        return f"{name_of(rule)} {last} ({late})"

    rows = [
        ("trimmed mean loses about 50 %", ("trimmed-mean", "mean-around-median", "mean")),
        ("Krum loses over 65 %", ("krum", "krum-unsquared")),
        ("HoldOut loses about 15 %", VOTES),
    ]
    shown = ("cifar10-all", "cifar10-any", "cifar10-authors")
    seeds = {
        name: seeds_text(len(strands(results, name, rule)) for rule in EXPERIMENTS[name].rules)
        for name in shown
    }
    return table(
        ("paper", *(f"{EXPERIMENTS[name].says}, seeds: {seeds[name]}" for name in shown)),
        [
            (
                claim,
                *(
                    ", ".join(lost(name, rule) for rule in rules if rule in EXPERIMENTS[name].rules)
                    or "the same"
                    for name in shown
                ),
            )
            for claim, rules in rows
        ],
    )


def _late(strand: Strand) -> float:
    """The mean of the last published accuracies: a single one goes up and down."""
    return fmean(accuracy for _, accuracy in strand.curve[-LAST_POINTS:])
