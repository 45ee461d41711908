"""What a report says about agreement without a server: sizes, periods, traffic, liars found out."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from holdout.config import parse
from holdout.experiments.curves import CurveResult, Round
from holdout.federation.network_sizes import notes_on

MEGABYTE = 1_000_000
HEAD = (
    "rule",
    "rounds",
    "proposers drawn",
    "voters drawn",
    "committee (quorum)",
    "periods a round",
    "messages a round",
    "MB a round",
    "seconds a round",
)
KINDS = ("update", "ballot", "lead", "vote")
"""What a worker may sign only once per round, period and step."""


def agreement_table(curves: Sequence[CurveResult]) -> tuple[list[str], list[list[str]]] | None:
    """Head and body, a line for each curve without a server; None where there is no such curve."""
    agreed = [
        (curve, lines)
        for curve in curves
        if (lines := [line for line in curve.rounds if line.get("agreement") is not None])
    ]
    if not agreed:
        return None
    found = [k for k in KINDS if any(_caught(line, k) for _, lines in agreed for line in lines)]
    head = [*HEAD, *(f"found out a round: two {kind}s" for kind in found)]
    return head, [_row(curve, lines, found) for curve, lines in agreed]


def _row(curve: CurveResult, lines: Sequence[Round], found: Sequence[str]) -> list[str]:
    def spread(read: Callable[[Round], float], digits: int = 1) -> str:
        return _spread([read(line) for line in lines], digits)

    committees = dict.fromkeys(
        f"{line['agreement']['committee']} ({line['agreement']['quorum']})" for line in lines
    )
    return [
        curve.label,
        str(len(lines)),
        spread(lambda line: len(line.get("proposers") or [])),
        spread(lambda line: len(line.get("voters") or [])),
        ", ".join(committees),
        spread(lambda line: line["agreement"]["periods"], 2),
        spread(lambda line: line["agreement"]["messages"], 0),
        spread(lambda line: line["agreement"]["bytes"] / MEGABYTE),
        spread(lambda line: line["agreement"]["virtual_seconds"]),
        *(_spread([_caught(line, kind) for line in lines], 1) for kind in found),
    ]


def _caught(line: Round, kind: str) -> int:
    number: int = line["agreement"]["evidence"].get(kind, 0)
    return number


def _spread(values: Iterable[float], digits: int) -> str:
    """Mean, and lowest to highest where they differ.

    >>> _spread([1, 1, 4], 1), _spread([2, 2], 0)
    ('2.0 (1–4)', '2')
    """
    numbers = list(values)
    mean, low, high = fmean(numbers), min(numbers), max(numbers)
    span = "" if low == high else f" ({_short(low)}–{_short(high)})"
    return f"{mean:,.{digits}f}{span}"


def _short(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def network_notes(config: Mapping[str, Any]) -> list[str]:
    """What the sizes of a network without a server do not guarantee, in sentences."""
    parsed = parse(config)
    if parsed.problems:  # A folder of another version still has its numbers.
        return []
    return [f"{note[0].upper()}{note[1:]}." for note in notes_on(parsed.config)]


def is_agreement_or_null(value: Any) -> bool:
    """Whether a line's `agreement` holds what the table reads, with values of the right kind."""
    if value is None:
        return True
    if not isinstance(value, dict):
        return False
    whole = ("committee", "quorum", "periods", "messages", "bytes")
    seconds, evidence = value.get("virtual_seconds"), value.get("evidence")
    return (
        all(is_whole(value.get(key)) for key in whole)
        and (is_whole(seconds) or isinstance(seconds, float))
        and isinstance(evidence, dict)
        and all(map(is_whole, evidence.values()))
    )


def is_whole(value: Any) -> bool:
    """Whether the value is a whole number; Python takes True for one."""
    return isinstance(value, int) and not isinstance(value, bool)
