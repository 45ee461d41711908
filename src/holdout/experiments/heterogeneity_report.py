"""What a report and the terminal say about heterogeneity, from the rows and `summary.json`.

How much honest workers differ (G^2 and B^2), which classes they can judge, and how many liars the
draws held; see `holdout.heterogeneity`.
"""

import html
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from holdout.curve_rows import BASELINE
from holdout.experiments.curves import CurveResult, group
from holdout.heterogeneity import DissimilarityFit, Heterogeneity, LiarsDrawn
from holdout.runs import Run
from holdout.shares import byzantine_count, read_share

HEAD = (
    "rule",
    "G²",
    "B²",
    "1 / (2 + B²)",
    "liars among proposers",
    "rounds without honest majority",
    "liars among voters",
    "rounds without honest majority",
)
NONE = "–"
CLASSES_MAX = 60
"""More bars than these would be too thin to tell apart."""
HEIGHT, BAR, LEFT, BOTTOM, TOP = 150, 34, 48, 36, 14


def heterogeneity_table(run: Run) -> tuple[Sequence[str], list[list[str]]] | None:
    """Head and body, a line for each rule and attack, means over the seeds; None without rounds."""
    found = run.heterogeneity()
    curves = group(run.rows)
    return (HEAD, [_row(curve, _of(curve, found)) for curve in curves]) if curves else None


def heterogeneity_lines(run: Run) -> list[str]:
    """The same for the terminal, in at most three lines over all curves."""
    found = run.heterogeneity()
    calm = [one for one in found if (one.rule, one.attack) == BASELINE]
    fits = [one.dissimilarity for one in calm or found if one.dissimilarity is not None]
    lines = []
    if fits:
        whose = " (mean, no attack)" if calm else ""
        lines.append(
            f"honest updates differ{whose}: G² {_span([fit.g2 for fit in fits])}, B² "
            f"{_span([fit.b2 for fit in fits])}, mini-batch noise included"
        )
    said = [
        f"{_span([drawn.mean for drawn in all_drawn])} {who} a round "
        f"(at most {max(drawn.largest for drawn in all_drawn)}; without an honest majority: "
        f"{_percent([drawn.majority for drawn in all_drawn])} of the rounds)"
        for who, all_drawn in _attacked(found).items()
    ]
    if said:
        lines.append(f"liars drawn: {', '.join(said)}")
    if (judged := judges_text(run)) is not None:
        lines.append(judged)
    return lines


def judges_text(run: Run) -> str | None:
    """Who can judge which class, in a sentence; None if nobody counted."""
    shares = mean_judges(run)
    if not shares:
        return None
    fewest = min(range(len(shares)), key=shares.__getitem__)
    said = (
        f"voters that can judge a class: {_share(fmean(shares))} on average, "
        f"{_share(shares[fewest])} for class {fewest}, the least"
    )
    needed = coverage_needed(run.config)
    if needed is None:
        return said
    if needed >= 1:
        return f"{said}; with so many liars honest judges are never the majority"
    lacking = sum(share <= needed for share in shares)
    which = {0: "all have it", len(shares): "none has it"}.get(lacking, f"{lacking} have less")
    return f"{said}; an honest majority of judges needs more than {_share(needed)}: {which}"


def mean_judges(run: Run) -> list[float]:
    """For each class the share of voters that can judge it, over the seeds."""
    seeds = list(run.judges.values())
    if len({len(shares) for shares in seeds}) != 1:
        return []
    return [fmean(of_class) for of_class in zip(*seeds, strict=True)]


def coverage_needed(config: Mapping[str, Any]) -> float | None:
    """The share c of voters that must be able to judge a class: c (1 - f) > f; None: it is unknown.

    >>> coverage_needed({"federation": {"workers": 100, "byzantine": 0.2}})
    0.25
    """
    federation = config.get("federation")
    if not isinstance(federation, Mapping):
        return None
    workers, share = federation.get("workers"), federation.get("byzantine")
    if not isinstance(workers, int) or share is None:
        return None
    try:
        liars = byzantine_count(read_share(share), workers)
    except ValueError:
        return None
    return liars / (workers - liars) if liars < workers else None


def judges_html(run: Run) -> str:
    """A bar for each class: the share of voters that can judge it, and what is needed."""
    shares, text = mean_judges(run), judges_text(run)
    if not shares or text is None:
        return ""
    sentence = html.escape(f"{text[0].upper()}{text[1:]}.")
    picture = _picture(run, shares) if len(shares) <= CLASSES_MAX else ""
    frame = 'class="scroll" tabindex="0" role="group" aria-label="Who can judge which class"'
    return f"<div {frame}><p>{sentence}</p>{picture}</div>"


def _picture(run: Run, shares: Sequence[float]) -> str:
    needed = coverage_needed(run.config)
    width = LEFT + BAR * len(shares) + 90
    parts = [
        f'<svg viewBox="0 0 {width} {HEIGHT + BOTTOM + TOP}" role="img" aria-label="Share of '
        f'voters that can judge each class" style="width:100%;max-width:{round(1.3 * width)}px">'
    ]
    style = 'font-size="11" fill="currentColor"'
    parts += [
        f'<line class="grid" x1="{LEFT}" x2="{LEFT + BAR * len(shares)}" y1="{_y(mark)}" '
        f'y2="{_y(mark)}"/><text x="{LEFT - 6}" y="{_y(mark) + 4}" text-anchor="end" {style}>'
        f"{_share(mark)}</text>"
        for mark in (0.0, 0.5, 1.0)
    ]
    for place, share in enumerate(shares):
        seeds = [one[place] for one in run.judges.values()]
        spread = (
            f" ({_share(min(seeds))} to {_share(max(seeds))} over the seeds)"
            if len(seeds) > 1
            else ""
        )
        x = LEFT + BAR * place
        parts.append(
            f"<g><title>class {place}: {_share(share)}{spread}</title>"
            f'<rect x="{x + 5}" y="{_y(share)}" width="{BAR - 10}" height="{_y(0) - _y(share):.1f}"'
            f' style="fill:var(--honest)"/><text x="{x + BAR / 2}" y="{_y(0) + 15}" '
            f'text-anchor="middle" {style}>{place}</text></g>'
        )
    if needed is not None and needed <= 1:
        end = LEFT + BAR * len(shares)
        parts.append(
            f'<line x1="{LEFT}" x2="{end}" y1="{_y(needed)}" y2="{_y(needed)}" '
            f'style="stroke:var(--liar);stroke-width:2;stroke-dasharray:5 4"/>'
            f'<text x="{end + 6}" y="{_y(needed) + 4}" {style}>needed: {_share(needed)}</text>'
        )
    parts.append(f'<text x="{LEFT}" y="{_y(0) + 31}" {style}>class</text>')
    return "".join([*parts, "</svg>"])


def _y(share: float) -> float:
    return round(TOP + HEIGHT * (1 - share), 1)


def _of(curve: CurveResult, found: Sequence[Heterogeneity]) -> list[Heterogeneity]:
    return [one for one in found if (one.rule, one.attack) == (curve.rule, curve.attack)]


def _row(curve: CurveResult, found: Sequence[Heterogeneity]) -> list[str]:
    fits = [one.dissimilarity for one in found if one.dissimilarity is not None]
    return [
        curve.label,
        *_fit_cells(fits),
        *_drawn_cells([one.proposers for one in found if one.proposers is not None]),
        *_drawn_cells([one.voters for one in found if one.voters is not None]),
    ]


def _fit_cells(fits: Sequence[DissimilarityFit]) -> list[str]:
    if not fits:
        return [NONE] * 3
    g2, b2 = fmean(fit.g2 for fit in fits), fmean(fit.b2 for fit in fits)
    return [f"{g2:.3g}", f"{b2:.3g}", _share(fmean(fit.breakdown for fit in fits))]


def _drawn_cells(drawn: Sequence[LiarsDrawn]) -> list[str]:
    if not drawn:
        return [NONE] * 2
    mean, largest = fmean(one.mean for one in drawn), max(one.largest for one in drawn)
    return [
        f"{mean:.2f} (at most {largest})",
        f"{100 * fmean(one.majority for one in drawn):.1f} %",
    ]


def _attacked(found: Sequence[Heterogeneity]) -> dict[str, list[LiarsDrawn]]:
    """By who was drawn, what the curves with liars among them had."""
    drawn = {
        "proposers": [one.proposers for one in found],
        "voters": [one.voters for one in found],
    }
    held = {
        who: [one for one in all_drawn if one is not None and one.largest]
        for who, all_drawn in drawn.items()
    }
    return {who: all_drawn for who, all_drawn in held.items() if all_drawn}


def _share(value: float) -> str:
    return f"{100 * value:.0f} %"


def _percent(shares: Sequence[float]) -> str:
    return f"{_span([100 * share for share in shares])} %"


def _span(values: Sequence[float]) -> str:
    """Lowest to highest, if they look different.

    >>> _span([0.1234, 0.1234]), _span([0.1, 0.25])
    ('0.123', '0.1 to 0.25')
    """
    low, high = f"{min(values):.3g}", f"{max(values):.3g}"
    return low if low == high else f"{low} to {high}"
