"""The report of a run, from its folder alone: pictures for a paper, `report.html` to explore.

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
from typing import Any

import tomli_w

from holdout.errors import RunFolderError
from holdout.experiments.agreement_table import (
    agreement_table,
    is_agreement_or_null,
    is_whole,
    network_notes,
)
from holdout.experiments.charts import chart_html, hiding_style, legend_html
from holdout.experiments.curves import CurveResult, TableRow, final_table, group, has_success
from holdout.experiments.figures import looks, quantity_png
from holdout.experiments.headlines import cautions, headline, unfinished
from holdout.experiments.heterogeneity_report import heterogeneity_table, judges_html
from holdout.experiments.holders import holders_html
from holdout.experiments.report_charts import about_charts, chart_lines, charts_of, pictures_of
from holdout.experiments.run_notes import notes_on_curves
from holdout.experiments.vote_map import vote_table, votes
from holdout.heterogeneity import DISSIMILARITY, MEAN_NORM2
from holdout.metrics import INITIAL, MEASURED, Metric, metric_of
from holdout.results import ROUNDS, SUMMARY, jsonable, read_json, read_run, write_atomic, writing
from holdout.runs import Run

PAGE = "report.html"
ERROR = "custom_error.json"
"""What custom code raised first, with its traceback."""
Cells = Sequence[str]


def write_report(folder: Path) -> Path:
    """Write a picture of each quantity and `report.html` into a run folder; the page's path."""
    run = read_run(folder)
    _check(folder, run)
    curves = group(run.rows)
    with writing(folder):
        for name, quantity in pictures_of(curves).items():
            write_atomic(folder / f"{name}.png", quantity_png(curves, quantity))
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


def _is_whole_or_null(value: Any) -> bool:
    return value is None or is_whole(value)


def _is_measured_or_null(value: Any) -> bool:
    return value is None or (
        isinstance(value, dict) and all(map(_is_number_or_null, value.values()))
    )


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
    **dict.fromkeys(MEASURED, _is_number_or_null),
    INITIAL: _is_measured_or_null,
    "gamma": _is_number_or_null,
    **dict.fromkeys((DISSIMILARITY, MEAN_NORM2), _is_number_or_null),
    **dict.fromkeys(("byzantine_proposers", "byzantine_voters"), _is_whole_or_null),
    "byzantine_selected": _is_number_or_null,
    "quorum": _is_number_or_null,
    "proposers": _is_ids_or_null,
    "voters": _is_ids_or_null,
    "byzantine_workers": _is_ids_or_null,
    "selection": _is_ids_or_null,
    "ballots": _is_ballots_or_null,
    "rejected_proposals": _is_counts_or_null,
    "rejected_ballots": _is_counts_or_null,
    "custom_errors": _is_counts_or_null,
    "honest_missing": _is_number_or_null,
    "agreement": is_agreement_or_null,
}


def _page(folder: Path, run: Run, curves: Sequence[CurveResult]) -> str:
    rows = final_table(run.rows)
    missing = unfinished(curves, run.config)
    if missing and curves:
        missing.insert(0, "The run is incomplete. What follows is what there is.")
    notes = [*missing, *cautions(curves), *network_notes(run.config)]
    # Sentences, as on the rest of the page.
    doubts = [f"{note[0].upper()}{note[1:]}." for note in notes_in(folder, run, curves)]
    notes = list(dict.fromkeys([*notes, *doubts]))
    raised = read_error(folder)
    agreed, differing = agreement_table(curves), heterogeneity_table(run)
    shown, thinned = votes(curves)
    metric = metric_of(run.rows)
    drawn, shown_charts = looks(curves), charts_of(curves, metric)
    data = {"curves": chart_lines(curves, shown_charts), "votes": shown}
    last = max((line["round"] for curve in curves for line in curve.rounds), default=1)
    experiment = run.config.get("experiment")
    name = experiment.get("name") if isinstance(experiment, Mapping) else None
    parts = {
        "title": html.escape(str(name or folder.name)),
        "headline": html.escape(headline(rows, run.config, complete=not missing)),
        "facts": html.escape(" · ".join(_facts(run, curves))),
        "notes": "".join(f"<li>{html.escape(note)}</li>" for note in notes),
        "has_notes": "" if notes else "hidden",
        "final_table": _final_table_html(rows, metric),
        "metric": html.escape(metric.name),
        "has_agreement": "" if agreed else "hidden",
        "agreement_table": table_html(*agreed) if agreed else "",
        "heterogeneity_table": table_html(*differing) if differing else "",
        "judges": judges_html(run),
        "has_heterogeneity": "" if differing else "hidden",
        "holders": (held := holders_html(folder)),
        "has_holders": "" if held else "hidden",
        "outcome_table": _outcome_table_html(curves),
        "hiding_style": hiding_style(len(curves)),
        "legend": legend_html(curves, drawn),
        "about_charts": html.escape(about_charts(curves, metric)),
        "charts": "\n".join(
            f"<h3>{html.escape(chart.title)}</h3>\n{chart_html(chart, curves, drawn, last=last)}"
            for chart in shown_charts
        ),
        "vote_table": table_html(*voted) if (voted := vote_table(curves)) else "",
        "has_votes": "" if shown else "hidden",
        "has_no_votes": "hidden" if shown else "",
        "votes_thinned": html.escape(thinned),
        "config": html.escape(tomli_w.dumps(run.config)),
        "environment": _environment_html(folder),
        "has_error": "" if raised else "hidden",
        "error": html.escape(_error_page(raised)) if raised else "",
        "data": script_json(data),
    }
    template = files("holdout.experiments").joinpath("report_template.html").read_text("utf-8")
    # One pass, so that a part that looks like a placeholder stays as it is.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)


def script_json(value: Any) -> str:
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


def _final_table_html(rows: Sequence[TableRow], metric: Metric) -> str:
    errors = any(row.mae is not None for row in rows)
    head = [
        "rule",
        "without attack",
        "under attack",
        f"drop ({metric.points})" if metric.points else "drop",
        *(["mean absolute error"] if errors else []),
        "Byzantine updates accepted a round",
        "rounds without a step",
    ]
    success = has_success(rows)
    if success:
        head.append("attack success")
    body = []
    for row in rows:
        measured = "–"
        if row.measured is not None:
            measured = metric.text(row.measured, space="\N{NO-BREAK SPACE}")
        if row.spread is not None:
            measured += f" ± {metric.number(row.spread)}"
        calm = row.attack == "none"
        baseline = calm and row.rule == "mean"
        accepted = row.byzantine_accepted_per_round
        body.append(
            [
                row.label
                + (f" (diverged: {row.diverged} of {row.seeds})" if row.diverged else "")
                + row.missing_text(),
                measured if calm else "",
                "" if calm else measured,
                "–" if baseline or row.drop is None else f"{row.drop:.{metric.digits}f}",
                *(["–" if row.mae is None else f"{row.mae:.4g}"] if errors else []),
                "–" if accepted is None else f"{accepted:.2f}",
                f"{row.empty_rounds:.4g}",
                *([row.success_text()] if success else []),
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
            for what, number in (line.get("custom_errors") or {}).items():
                count[f"custom workers raised: {what}"] += number
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


def notes_in(folder: Path, run: Run, curves: Sequence[CurveResult]) -> list[str]:
    """Reasons for doubt: those in the summary, if there is one, and what the rounds tell."""
    kept = read_json(folder / SUMMARY).get("notes")
    notes = kept if isinstance(kept, list) else []
    told = [*notes, *notes_on_curves(curves, run.config)]
    return list(dict.fromkeys(note for note in told if isinstance(note, str) and note))


def read_error(folder: Path) -> Mapping[str, Any] | None:
    """What custom code raised first in the run of this folder; None: nothing."""
    found = read_json(folder / ERROR)
    return found if isinstance(found.get("error"), str) else None


def error_text(found: Mapping[str, Any]) -> str:
    """What custom code raised, and in which round, in one line."""
    if "round" not in found:
        return str(found["error"])
    curve = f"{found.get('rule')} ({found.get('attack')}, seed {found.get('seed')})"
    return f"{found['error']} in round {found['round']} of {curve}"


def _error_page(found: Mapping[str, Any]) -> str:
    return "\n".join(filter(None, [error_text(found), str(found.get("traceback") or "")]))


def _environment_html(folder: Path) -> str:
    environment = read_json(folder / SUMMARY).get("environment")
    if not isinstance(environment, dict) or not environment:
        return "<p>Not recorded: the run has no finished summary.</p>"
    pairs: list[Cells] = []
    for key, value in environment.items():
        inner = value.items() if isinstance(value, dict) else [("", value)]
        pairs.extend([f"{key} {name}".strip(), str(item)] for name, item in inner)
    return table_html(["what", "value"], pairs)
