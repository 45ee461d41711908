"""The report of a run, from its folder alone: `accuracy.png` for a paper, `report.html` to explore.

The page is one file that works offline. Tables, words and charts (`experiments.charts`) are made
here and read without a script. The map of the votes is drawn in the reader's browser, by the script
in `report_template.html`, from the data beside it in the page. The same results give the same
bytes.
"""

import html
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from statistics import fmean
from typing import Any

import tomli_w

from holdout.errors import RunFolderError
from holdout.experiments import charts
from holdout.experiments.agreement_table import (
    agreement_table,
    is_agreement_or_null,
    is_whole,
    network_notes,
)
from holdout.experiments.charts import (
    Quantity,
    chart_html,
    hiding_style,
    legend_html,
    line_of,
    spaced,
)
from holdout.experiments.curves import CurveResult, Round, TableRow, final_table, group
from holdout.experiments.figures import accuracy_png, has_many, looks
from holdout.experiments.headlines import cautions, headline, percent, unfinished
from holdout.results import ROUNDS, SUMMARY, Run, jsonable, read_run, write_atomic, writing

FIGURE, PAGE = "accuracy.png", "report.html"
Cells = Sequence[str]

VOTE_CHARACTERS_MAX = 500_000
"""A bound on the votes in the page; more are thinned evenly, and the page says so."""

CHARTS = (
    Quantity("accuracy", "Test accuracy", "test accuracy (%)", scale=100.0, unit=" %"),
    Quantity(
        "byzantine_selected",
        "Byzantine updates accepted into the step",
        "accepted a round",
        decimals=2,
        is_level=False,
    ),
    Quantity("gamma", "Strength of the attack (gamma)", "gamma", decimals=2, is_level=False),
)
"""What is drawn over the rounds, from top to bottom."""


def write_report(folder: Path) -> Path:
    """Write `accuracy.png` and `report.html` into a run folder; the path of the page."""
    run = read_run(folder)
    _check(folder, run)
    curves = group(run.rows)
    with writing(folder):
        write_atomic(folder / FIGURE, accuracy_png(curves))
        # A lone surrogate, which JSON can hold in a name, has no bytes of its own.
        write_atomic(folder / PAGE, _page(folder, run, curves).encode("utf-8", "replace"))
    return folder / PAGE


def _check(folder: Path, run: Run) -> None:
    """Every line must hold what the report reads, of the right kind."""
    for number, record in enumerate(run.rows, start=1):
        for key, kind in _KINDS.items():
            if not kind(record.get(key)):
                raise RunFolderError(
                    f"{folder / ROUNDS}, line {number}: {key} has the wrong kind of value: "
                    f"{record.get(key)!r}"
                )


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_number_or_null(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _is_ids_or_null(value: Any) -> bool:
    return value is None or (isinstance(value, list) and all(map(is_whole, value)))


def _is_ballots_or_null(value: Any) -> bool:
    return value is None or (isinstance(value, list) and all(map(_is_ids_or_null, value)))


def _is_counts_or_null(value: Any) -> bool:
    return value is None or (isinstance(value, dict) and all(map(is_whole, value.values())))


_KINDS: Mapping[str, Callable[[Any], bool]] = {
    "rule": _is_text,
    "attack": _is_text,
    "seed": is_whole,
    "round": is_whole,
    "outcome": _is_text,
    "accuracy": _is_number_or_null,
    "gamma": _is_number_or_null,
    "byzantine_selected": _is_number_or_null,
    "quorum": _is_number_or_null,
    "proposers": _is_ids_or_null,
    "voters": _is_ids_or_null,
    "byzantine_workers": _is_ids_or_null,
    "selection": _is_ids_or_null,
    "ballots": _is_ballots_or_null,
    "rejected_proposals": _is_counts_or_null,
    "rejected_ballots": _is_counts_or_null,
    "agreement": is_agreement_or_null,
}


def _page(folder: Path, run: Run, curves: Sequence[CurveResult]) -> str:
    rows = final_table(run.rows)
    missing = unfinished(curves, run.config)
    if missing and curves:
        missing.insert(0, "The run is incomplete. What follows is what there is.")
    notes = [*missing, *cautions(curves), *network_notes(run.config)]
    agreed = agreement_table(curves)
    shown, thinned = _votes(curves)
    data = {"curves": _chart_lines(curves), "votes": shown}
    drawn = looks(curves)
    last = max((line["round"] for curve in curves for line in curve.rounds), default=1)
    experiment = run.config.get("experiment")
    name = experiment.get("name") if isinstance(experiment, Mapping) else None
    parts = {
        "title": html.escape(str(name or folder.name)),
        "headline": html.escape(headline(rows, run.config, complete=not missing)),
        "facts": html.escape(" · ".join(_facts(run, curves))),
        "notes": "".join(f"<li>{html.escape(note)}</li>" for note in notes),
        "has_notes": "" if notes else "hidden",
        "final_table": _final_table_html(rows),
        "has_agreement": "" if agreed else "hidden",
        "agreement_table": table_html(*agreed) if agreed else "",
        "outcome_table": _outcome_table_html(curves),
        "hiding_style": hiding_style(len(curves)),
        "legend": legend_html(curves, drawn),
        "about_charts": html.escape(_about_charts(curves)),
        "charts": "\n".join(
            f"<h3>{html.escape(chart.title)}</h3>\n{chart_html(chart, curves, drawn, last=last)}"
            for chart in CHARTS
        ),
        "vote_table": _vote_table_html(curves),
        "has_votes": "" if shown else "hidden",
        "has_no_votes": "hidden" if shown else "",
        "votes_thinned": html.escape(thinned),
        "config": html.escape(tomli_w.dumps(run.config)),
        "environment": _environment_html(folder),
        "data": _script_json(data),
    }
    template = files("holdout.experiments").joinpath("report_template.html").read_text("utf-8")
    # One pass, so that a part that looks like a placeholder stays as it is.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)


def _script_json(value: Any) -> str:
    """JSON in pure ASCII that cannot end the script element it is in."""
    text = json.dumps(jsonable(value), allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _facts(run: Run, curves: Sequence[CurveResult]) -> list[str]:
    def known(section: str, key: str, words: str) -> list[str]:
        values = run.config.get(section)
        value = values.get(key) if isinstance(values, Mapping) else None
        return [] if value is None else [words.format(value)]

    seeds = len({seed for curve in curves for seed in curve.seeds})
    return [
        *known("data", "name", "{}"),
        *known("model", "name", "{}"),
        *known("federation", "workers", "{} workers"),
        *known("federation", "proposers", "{} proposers"),
        *known("federation", "voters", "{} voters a round"),
        *(["no server"] if any(line.get("agreement") for c in curves for line in c.rounds) else []),
        *known("experiment", "rounds", "{} rounds"),
        *([f"{seeds} seed{'s' if seeds > 1 else ''}"] if seeds else []),
    ]


def _final_table_html(rows: Sequence[TableRow]) -> str:
    head = [
        "rule",
        "without attack",
        "under attack",
        "drop (points)",
        "Byzantine updates accepted a round",
        "rounds without a step",
    ]
    body = []
    for row in rows:
        accuracy = "–" if row.accuracy is None else percent(row.accuracy)
        if row.spread is not None:
            accuracy += f" ± {100 * row.spread:.1f}"
        calm = row.attack == "none"
        baseline = calm and row.rule == "mean"
        accepted = row.byzantine_accepted_per_round
        body.append(
            [
                row.label + (f" (diverged: {row.diverged} of {row.seeds})" if row.diverged else ""),
                accuracy if calm else "",
                "" if calm else accuracy,
                "–" if baseline or row.drop is None else f"{row.drop:.1f}",
                "–" if accepted is None else f"{accepted:.2f}",
                f"{row.empty_rounds:.4g}",
            ]
        )
    return table_html(head, body)


def _outcome_table_html(curves: Sequence[CurveResult]) -> str:
    """Outcomes and rejections, counted; only those that happened have a column."""
    counts = []
    for curve in curves:
        count = Counter({"rounds": len(curve.rounds)})
        for line in curve.rounds:
            if line["outcome"] != "step":
                count[f"outcome: {line['outcome']}"] += 1
            for what in ("proposals", "ballots"):
                for reason, number in (line.get(f"rejected_{what}") or {}).items():
                    count[f"{what} rejected: {reason}"] += number
        counts.append(count)
    columns = list(dict.fromkeys(["rounds", *sorted({key for c in counts for key in c})]))
    return table_html(
        ["rule", *columns],
        [
            [curve.label, *(str(count[column]) for column in columns)]
            for curve, count in zip(curves, counts, strict=True)
        ],
    )


_ROW = ' scope="row"'


def table_html(head: Cells, body: Sequence[Cells]) -> str:
    """A table whose first column heads the rows; every cell is escaped."""

    def row(cells: Cells, tag: str) -> str:
        first, *rest = (html.escape(cell) for cell in cells)
        heads = tag == "th"
        scope = ' scope="col"' if heads else ""
        others = "".join(f"<{tag}{scope}>{cell}</{tag}>" for cell in rest)
        return f"<tr><th{scope or _ROW}>{first}</th>{others}</tr>"

    lines = "\n".join(row(cells, "td") for cells in body)
    return f"<table><thead>{row(head, 'th')}</thead>\n<tbody>{lines}</tbody></table>"


def _environment_html(folder: Path) -> str:
    try:
        summary = json.loads((folder / SUMMARY).read_text("utf-8"))
        environment = summary["environment"]
    except (OSError, ValueError, KeyError, TypeError):
        environment = None
    if not isinstance(environment, dict) or not environment:
        return "<p>Not recorded: the run has no finished summary.</p>"
    pairs: list[Cells] = []
    for key, value in environment.items():
        inner = value.items() if isinstance(value, dict) else [("", value)]
        pairs.extend([f"{key} {name}".strip(), str(item)] for name, item in inner)
    return table_html(["what", "value"], pairs)


# -- what the script of the page draws from: curves and votes, compact and bounded -----------------


def _chart_lines(curves: Sequence[CurveResult]) -> list[dict[str, Any]]:
    """What the script reads out at a round: each curve's quantities."""
    return [
        {"label": curve.label, **{chart.name: _points(chart, curve) for chart in CHARTS}}
        for curve in curves
    ]


def _points(chart: Quantity, curve: CurveResult) -> dict[str, Any]:
    line = line_of(chart, curve)
    return {"rounds": line.rounds, "mean": [chart.text(value) for value in line.mean]}


def _about_charts(curves: Sequence[CurveResult]) -> str:
    """What lines and bands are, and what was left out."""
    seeds = max((len(curve.seeds) for curve in curves), default=0)
    if not seeds:
        return ""
    said = "One seed."
    if seeds > 1:
        said = "Lines: mean over the seeds that reached the round; bands: lowest to highest."
    if has_many(curves):
        said += " Below each chart, every rule by itself, beside the mean without attack."
    said += " Untick a name to hide its curve."
    longest = max(len(lines) for curve in curves for lines in curve.seeds.values())
    if longest > charts.POINTS_MAX:
        said += (
            f" The charts show at most {charts.POINTS_MAX} evenly spaced points of up to {longest} "
            "rounds."
        )
    return said


def _vote_table_html(curves: Sequence[CurveResult]) -> str:
    """What came of the votes over all rounds of each seed, read without a script."""
    body = []
    for curve in curves:
        for seed, lines in curve.seeds.items():
            voted = [line for line in lines if line.get("ballots") is not None]
            if not voted:
                continue
            selected = [len(line.get("selection") or []) for line in voted]
            lies = [line.get("byzantine_selected") or 0 for line in voted]
            void = sum(ballot is None for line in voted for ballot in line["ballots"])
            body.append(
                [
                    curve.label,
                    str(seed),
                    str(len(voted)),
                    f"{fmean(selected):.1f}",
                    f"{fmean(lies):.1f}",
                    str(void),
                ]
            )
    head = ["rule", "seed", "votes", "selected a round", "of them Byzantine", "void ballots"]
    return table_html(head, body) if body else ""


def _votes(curves: Sequence[CurveResult]) -> tuple[list[dict[str, Any]], str]:
    """The ballots of every strand that has some, and what to say if rounds had to be left out."""
    strands = [
        (place, seed, voted)
        for place, curve in enumerate(curves)
        for seed, lines in curve.seeds.items()
        if (voted := [line for line in lines if line.get("ballots") is not None])
    ]
    size = max((_vote_size(line) for _, _, lines in strands for line in lines), default=1)
    rounds_max = max(1, VOTE_CHARACTERS_MAX // (size * max(1, len(strands))))
    longest = max((len(lines) for _, _, lines in strands), default=0)
    shown = [
        {
            "curve": place,
            "seed": seed,
            "rounds": [_vote(lines[i]) for i in spaced(len(lines), rounds_max)],
        }
        for place, seed, lines in strands
    ]
    if longest <= rounds_max:
        return shown, ""
    return shown, (
        f"To keep this page small, {rounds_max} evenly spaced rounds of each curve can be chosen "
        f"here, of up to {longest}; {ROUNDS} holds them all."
    )


def _vote(record: Round) -> dict[str, Any]:
    proposers, voters = record.get("proposers") or [], record.get("voters") or []
    ballots = list(record["ballots"])[: len(voters)]
    ballots += [None] * (len(voters) - len(ballots))
    return {
        "round": record["round"],
        "proposers": proposers,
        "voters": voters,
        "byzantine": record.get("byzantine_workers") or [],
        "ballots": [None if b is None else _bits(b, len(proposers)) for b in ballots],
        "selection": record.get("selection") or [],
        "quorum": record.get("quorum"),
        "outcome": record["outcome"],
    }


def _vote_size(record: Round) -> int:
    """About how many characters a round's votes take on the page."""
    proposers, voters = len(record.get("proposers") or []), len(record.get("voters") or [])
    return 120 + voters * (proposers // 4 + 4) + 6 * (proposers + voters)


def _bits(approved: Sequence[int], proposals: int) -> str:
    """A ballot as hexadecimal digits, four proposals each, the first in the highest bit.

    >>> _bits([0, 5], 6)
    '84'
    """
    digits = [0] * -(-proposals // 4)
    for proposal in approved:
        if 0 <= proposal < proposals:
            digits[proposal // 4] |= 8 >> proposal % 4
    return "".join(f"{digit:x}" for digit in digits)
