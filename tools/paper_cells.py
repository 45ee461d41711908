"""The cells of the result tables: a curve's strands, one a seed, as a mean and a spread."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean, stdev
from types import MappingProxyType

from paper_experiments import VOTES
from paper_results import Measured, Strand

NUMBER = re.compile(r"[\d–]")
NOTHING = "–"
UNATTACKED = MappingProxyType(
    {
        **dict.fromkeys(("mnist-left", "mnist-right", "mnist-any"), "mnist-left"),
        "mnist-authors": "mnist-authors-none",
        **dict.fromkeys(("cifar10-all", "cifar10-any"), "cifar10-none"),
        "cifar10-authors": "cifar10-authors-none",
    }
)
"""For each attacked experiment the same one without liars: losses are measured from its mean."""

Results = Mapping[str, Measured]
Value = Callable[[Strand], float | None]


def published(results: Results, name: str, rule: str) -> list[Strand]:
    """All strands of a curve, however far they came."""
    measured = results.get(name)
    return [s for s in measured.strands if s.rule == rule] if measured else []


def strands(results: Results, name: str, rule: str) -> list[Strand]:
    """The strands of a curve that reached their last round or diverged."""
    if name == "mnist-any" and rule not in VOTES:
        # Whether any copy of the lie or every copy must pass matters to the votes alone.
        name = "mnist-right"
    return [s for s in published(results, name, rule) if s.outcome != "unfinished"]


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


def cell(found: Sequence[Strand], value: Value = final) -> str:
    """Mean and spread of `value` over the seeds of a curve."""
    values = [v for strand in found if (v := value(strand)) is not None]
    return mean_text(values, diverged=sum(s.outcome == "diverged" for s in found))


def lowest(found: Sequence[Strand]) -> str:
    """The lowest accuracy of any seed after round 20; a seed that diverged counts with its last."""
    if not found:
        return NOTHING
    values = [s.final_accuracy if s.lowest_after_20 is None else s.lowest_after_20 for s in found]
    return f"{100 * min(values):.1f}{' †' * any(s.outcome == 'diverged' for s in found)}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    body = list(rows)
    if not body:
        return "Not run yet."
    # Numbers to the right, words to the left.
    columns = zip(*body, strict=True)
    aligned = ["---:" if all(map(NUMBER.match, filter(None, c))) else "---" for c in columns]
    return "\n".join("| " + " | ".join(line) + " |" for line in [head, aligned, *body])


def seeds_text(counts: Iterable[int]) -> str:
    """How many seeds ran: one number, or the fewest to the most.

    >>> seeds_text([3, 3]), seeds_text([0, 2, 3])
    ('3', '0–3')
    """
    found = sorted(set(counts))
    return str(found[0]) if len(found) == 1 else f"{found[0]}–{found[-1]}"


CURVE_HEAD = (
    *("rule", "seeds", "final accuracy, %", "points below the unattacked mean"),
    *("lowest after round 20, %", "γ", "lies accepted a round", "empty rounds", "worst class, %"),
)


def curve_row(label: str, found: Sequence[Strand], unattacked: Sequence[Strand]) -> list[str]:
    """A row under `CURVE_HEAD`."""
    return [
        label,
        str(len(found)),
        cell(found),
        mean_text(drops(found, unattacked)),
        lowest(found),
        cell(found, lambda s: s.gamma),
        accepted(found),
        empty(found),
        cell(found, worst_class),
    ]


def drops(found: Sequence[Strand], unattacked: Sequence[Strand]) -> list[float]:
    """Points below the unattacked mean of the same seed."""
    upper = {strand.seed: final(strand) for strand in unattacked}
    return [upper[s.seed] - final(s) for s in found if s.seed in upper]


def accepted(found: Sequence[Strand]) -> str:
    """Lies accepted a round."""
    return cell(found, lambda s: s.byzantine_accepted_per_round)


def empty(found: Sequence[Strand]) -> str:
    """Rounds without a step."""
    return cell(found, lambda s: s.empty_rounds)
