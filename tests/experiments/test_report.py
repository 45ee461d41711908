import csv
import itertools
import json
import math
import re
import struct
from html.parser import HTMLParser
from pathlib import Path

import pytest
import tomli_w

from holdout.errors import RunFolderError
from holdout.experiments import charts, figures, report, report_charts, vote_map
from holdout.experiments.curves import final_table, group, name_of
from holdout.experiments.figures import (
    BASELINE,
    DPI,
    PROMINENT,
    SIZE_INCHES,
    looks,
    looks_of_rules,
    panels_png,
    quantity_png,
)
from holdout.experiments.headlines import headline, unfinished
from holdout.experiments.report import write_report
from holdout.experiments.results_csv import write_csv
from holdout.metrics import ACCURACY, LOSS
from holdout.results import read_run
from holdout.rules import PRE_AGGREGATIONS, RULES
from holdout.voting import VOTES

NASTY = "</script><script>alert(1)</script>&\"'<b>$x_{$ \u4e2d\ud800"
CONFIG = {
    "experiment": {
        "name": "small",
        "rules": ["krum", "holdout"],
        "rounds": 2,
        "seeds": [0, 1],
        "baseline": True,
    },
    "federation": {"workers": 6, "byzantine": 0.34},
    "attack": {"name": "alie"},
}


@pytest.fixture(autouse=True)
def _small_page(monkeypatch):
    """The picture's every dot tells most tests nothing."""
    monkeypatch.setattr(figures, "DPI", 30)


def line(rule="holdout", attack="alie", seed=0, number=1, accuracy=None, **others):
    votes = rule.startswith("holdout")
    return {
        "rule": rule,
        "attack": attack,
        "seed": seed,
        "round": number,
        "accuracy": accuracy,
        "loss": accuracy,
        "worst_class_recall": None,
        "gamma": None if attack == "none" else 1.5,
        "proposers": [4, 7, 1],
        "voters": [2, 5] if votes else [],
        "byzantine_workers": [5, 7],
        "byzantine_proposers": 1,
        "byzantine_voters": 1,
        "byzantine_selected": 1,
        "ballots": [[0, 2], None] if votes else None,
        "selection": [0, 2],
        "approve_count": 2,
        "quorum": 2 if votes else None,
        "radius": None,
        "outcome": "step",
        "rejected_proposals": {},
        "rejected_ballots": {},
        "seconds": 0.1,
    } | others


def whole_run():
    ends = {("mean", "none"): 0.9, ("krum", "alie"): 0.4, ("holdout", "alie"): 0.88}
    return [
        line(rule, attack, seed, number, accuracy + seed / 100 if number == 2 else None)
        for (rule, attack), accuracy in ends.items()
        for seed in (0, 1)
        for number in (1, 2)
    ]


def write_run(folder: Path, rounds, config=CONFIG) -> Path:
    folder.mkdir(exist_ok=True, parents=True)
    (folder / "config.toml").write_text(tomli_w.dumps(config), "utf-8")
    (folder / "results.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rounds), "utf-8")
    return folder


class Page(HTMLParser):
    """The texts, tags and attributes of a page; a tag that is never closed is a mistake."""

    VOID = frozenset({"meta", "input", "br"})

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.open, self.tags, self.attributes, self.texts = [], [], [], {}
        self.source = path.read_text("utf-8")
        self.feed(self.source)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in self.VOID:
            self.open.append((tag, dict(attrs).get("id")))

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_data(self, data):
        for key in self.open[-1:]:
            self.texts[key] = self.texts.get(key, "") + data

    @property
    def data(self):
        return json.loads(self.texts["script", "data"])

    @property
    def words(self):
        return " ".join(t for (tag, _), t in self.texts.items() if tag not in {"script", "style"})


def test_the_table_holds_mean_spread_and_drop_over_the_seeds():
    baseline, krum, holdout = final_table(whole_run())
    assert (baseline.label, krum.label, holdout.label) == ("mean, no attack", "Krum", "HoldOut")
    assert (holdout.rule, holdout.attack, holdout.seeds) == ("holdout", "alie", 2)
    assert holdout.accuracy == pytest.approx(0.885)
    assert holdout.spread == pytest.approx(0.01 / 2**0.5)
    assert holdout.drop == pytest.approx(2.0)
    assert krum.drop == pytest.approx(50.0)
    assert baseline.drop == pytest.approx(0.0)


def test_the_table_counts_accepted_updates_a_round_and_empty_rounds_a_seed():
    rounds = [
        line(number=1, byzantine_selected=3),
        line(number=2, byzantine_selected=0, outcome="empty-selection"),
        line(number=3, byzantine_selected=None, outcome="infeasible"),
        line(seed=1, number=1, byzantine_selected=0, outcome="no-proposals"),
        line(seed=1, number=2, byzantine_selected=1, outcome="diverged"),
    ]
    (row,) = final_table(rounds)
    assert row.byzantine_accepted_per_round == 1.0
    assert row.empty_rounds == 1.5
    assert row.diverged == 1


def test_what_was_not_measured_is_none_in_the_table():
    (row,) = final_table([line(byzantine_selected=None)])
    assert row.accuracy is None
    assert row.spread is None
    assert row.drop is None
    assert row.byzantine_accepted_per_round is None
    (row,) = final_table([line(accuracy=0.5)])
    assert (row.accuracy, row.spread, row.drop) == (0.5, None, None)
    assert final_table([]) == []


def test_the_last_accuracy_measured_counts_and_not_the_best():
    rounds = [line(number=n, accuracy=a) for n, a in [(1, 0.2), (2, 0.9), (3, 0.6), (4, None)]]
    (row,) = final_table(rounds)
    assert row.accuracy == 0.6


def test_the_unattacked_mean_comes_first_and_several_attacks_are_named():
    rounds = [line("krum", "alie"), line("krum", "sign-flip"), line("mean", "none")]
    assert [row.label for row in final_table(rounds)] == [
        "mean, no attack",
        "Krum, alie",
        "Krum, sign-flip",
    ]


def test_the_headline_states_the_result_in_plain_words():
    said = headline(final_table(whole_run()), CONFIG, complete=True).replace("\xa0", " ")
    assert said == (
        "Under alie with 2 of 6 workers Byzantine, HoldOut ends at 88.5 %, 2.0 points below the "
        "mean without attack; Krum at 40.5 %."
    )
    rows = final_table([line("mean", "none", accuracy=0.8)])
    said = headline(rows, {}, complete=False).replace("\xa0", " ")
    assert said == "Without attack, the mean stands so far at 80.0 %."


def test_a_line_is_the_mean_and_the_range_of_the_seeds_that_reached_the_round():
    rounds = [
        line(number=5, accuracy=0.2),
        line(number=10, accuracy=0.4),
        line(number=11),
        line(seed=1, number=5, accuracy=0.4),
    ]
    (curve,) = group(rounds)
    found = curve.line("accuracy", scale=100.0)
    assert found.rounds == (5, 10)
    assert found.mean == pytest.approx((30.0, 40.0))
    assert found.low == pytest.approx((20.0, 40.0))
    assert found.high == pytest.approx((40.0, 40.0))


def test_no_two_of_thirty_curves_look_the_same():
    names = ["holdout", "holdout-paper", *(f"own-{i}" for i in range(28))]
    curves = group([line("mean", "none"), *(line(name) for name in names)])
    assert len({(look.colour, look.dash, look.marker) for look in looks(curves)}) == 31


def test_every_rule_of_the_package_can_be_told_from_every_other():
    composed = [f"{pre}+{rule}" for pre in PRE_AGGREGATIONS for rule in ("krum", "mean", "median")]
    names = [*RULES, *VOTES, *composed]
    found = dict(zip(names, looks(group([line(name) for name in names])), strict=True))
    assert len(names) > 18
    assert found["krum"].colour != found["krum-unsquared"].colour
    for one, other in itertools.combinations(found.values(), 2):
        # Whoever cannot see the colour sees dash and marker.
        assert one.colour != other.colour or (one.dash != other.dash and one.marker != other.marker)
        assert one.dark != other.dark or one.colour == other.colour
    assert all(look.marker in charts._MARKERS for look in found.values())
    assert len({name_of(name) for name in names}) == len(names)


def luminance(colour):
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one, other):
    """As WCAG 2 defines it, from 1 to 21."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def themes(source):
    """The named colours of the page: on a light ground, and on a dark one."""
    style = source[source.index("<style>") : source.index("</style>")]
    light, dark = re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    colours = [dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})\b", part)) for part in (light, dark)]
    assert colours[0].keys() == colours[1].keys()
    return colours


def test_contrast_is_that_of_wcag_aa_light_and_dark(tmp_path):
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    page = Page(write_report(write_run(tmp_path, whole_run())))
    for theme in themes(page.source):
        for text in ("ink", "soft", "liar"):
            for ground in ("page", "ground") if text != "liar" else ("page",):
                assert contrast(theme[text], theme[ground]) >= 4.5, (text, ground)
        assert contrast(theme["ink"], theme["notes"]) >= 4.5
        # What is no text: the edges of controls, focus, cells beside each other, curves.
        for part in ("edge", "honest", "liar", "notes-edge"):
            assert contrast(theme[part], theme["page"]) >= 3, part
        for approved in ("honest", "liar", "ink"):
            assert contrast(theme[approved], theme["cell"]) >= 3, approved
    light, dark = themes(page.source)
    for look in [*looks(group([line(f"own-{i}") for i in range(40)])), *PROMINENT, BASELINE]:
        assert contrast(look.colour, light["page"]) >= 3, look
        assert contrast(look.dark, dark["page"]) >= 3, look
    # Nothing is painted in a colour that was not looked at here, nor made faint.
    rest = re.sub(r":root \{.*?\}|--on-(light|dark):#\w+", "", page.source, flags=re.DOTALL)
    rest = re.sub(r"body:has\(#show-\d+[^}]*\}|[\"#']#?show-\d+", "", rest)
    assert not re.findall(r"#[0-9a-fA-F]{3,8}\b(?=[;\"' ])", rest)
    assert re.findall(r"opacity: ?[.\d]+", rest) == ["opacity: .16"]  # Bands.


def many_rules(rounds=100):
    rules = [*list(RULES)[:9], "nnm+krum", "nnm+median", "holdout-paper", "holdout-1", "holdout"]
    drawn = list(range(30))
    votes = {
        "proposers": drawn,
        "voters": [w + 30 for w in drawn],
        "byzantine_workers": drawn[::3],
        "ballots": [[(w * 7 + j) % 30 for j in range(20)] for w in drawn],
        "selection": drawn[:20],
        "quorum": 16,
    }
    return [
        line(
            rule,
            attack,
            seed,
            number,
            None if number % 5 else (place + 10 * math.sin(number)) / 40 + 0.25,
            gamma=None if attack == "none" else 15 + 14.9 * math.sin(number * place),
            **(votes if rule.startswith("holdout") else {"proposers": drawn, "selection": [3]}),
        )
        for place, (rule, attack) in enumerate([("mean", "none"), *((r, "alie") for r in rules)])
        for seed in (0, 1, 2)
        for number in range(1, rounds + 1)
    ]


def test_a_page_of_fourteen_rules_is_small_and_shows_each_by_itself(tmp_path):
    path = write_report(write_run(tmp_path, many_rules()))
    assert path.stat().st_size <= 1_500_000
    page = Page(path)
    assert page.open == []
    assert len(page.data["votes"]) == 9
    captions = re.findall(r"<figcaption>([^<]+) <span>", page.source)
    assert captions.count("Krum") == captions.count("Krum (unsquared)") == 4
    # In every small chart of a quantity, and in the large one, a height means the same.
    shown = page.source[page.source.index("<h3>Test accuracy") :]
    shown = shown[: shown.index("<h3>Test loss")]
    scales = set()
    for chart in shown.split('<div class="plot"')[1:]:
        ticks = re.findall(r'<text class="y" x="-8" y="([\d.]+)%" dy="[.\w]+">(\d+)<', chart)
        (first, low), *_, (last, high) = [(float(y), int(value)) for y, value in ticks]
        scales.add(round((first - last) / (high - low), 3))
    assert len(scales) == 1
    assert shown.count('<div class="plot"') == 15


def test_a_long_run_of_many_rules_is_small_too(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "quantity_png", lambda *_: b"")
    path = write_report(write_run(tmp_path, many_rules(rounds=400)))
    assert path.stat().st_size <= 1_500_000


def test_what_is_seen_is_also_said_in_words(tmp_path):
    page = Page(write_report(write_run(tmp_path, whole_run())))
    said = page.texts["desc", "accuracy-said"]
    assert said == "Over 2 rounds. At the end: mean, no attack 90.5 %; HoldOut 88.5 %; Krum 40.5 %"
    charts_seen = re.findall(r'<svg role="img"([^>]*)>', page.source)
    assert len(charts_seen) == 4
    assert all("aria-label" in attributes for attributes in charts_seen)
    assert "Test accuracy in numbers" in page.words
    # The votes, without the script that draws them.
    table = page.source[page.source.index("Votes in numbers") :]
    first = re.search(r"<tbody>(.*?)</tr>", table, re.DOTALL)[1]
    assert re.findall(r"<t[hd][^>]*>([^<]*)<", first) == ["HoldOut", "0", "2", "2.0", "1.0", "2"]


def test_everything_can_be_reached_and_moved_with_the_keyboard(tmp_path):
    page = Page(write_report(write_run(tmp_path, whole_run())))
    assert re.search(
        r'id="map" tabindex="0" role="application" aria-label="[^"]*Arrow keys', page.source
    )
    for key in ("ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End"):
        assert key in page.source
    assert 'at("map").addEventListener("keydown", move)' in page.source
    assert page.source.count('<input type="checkbox" id="show-') == 3
    assert 'id="cell" aria-live="polite"' in page.source
    # What may be wider than a phone can be scrolled without a mouse.
    assert all("tabindex" in box for box in re.findall(r'<div class="scroll"[^>]*>', page.source))
    assert "outline: none" not in page.source


def test_panels_side_by_side_have_one_scale(monkeypatch):
    seen = []
    monkeypatch.setattr(figures, "_png", lambda figure: seen.extend(figure.axes) or b"")
    low = group([line("krum", accuracy=0.1), line("krum", number=2, accuracy=0.2)])
    high = group([line("krum", accuracy=0.8), line("krum", number=2, accuracy=0.9)])
    panels_png([("low", low), ("high", high)])
    assert len(seen) == 2
    assert len({axes.get_ylim() for axes in seen}) == 1


def test_two_rules_look_different_though_they_are_in_two_panels():
    one = group([line("mean", "none"), line("trimmed-mean"), line("krum"), line()])
    other = group([line("mean", "none"), line("trimmed-mean"), line("krum-unsquared"), line()])
    found = looks_of_rules([one, other])
    assert list(found) == ["trimmed-mean", "krum", "holdout", "krum-unsquared"]
    assert len(set(found.values())) == len(found)


def test_the_same_results_give_the_same_bytes(tmp_path):
    written = [write_report(write_run(tmp_path / name, whole_run())) for name in ("a", "b")]
    written.append(write_report(tmp_path / "a"))
    assert len({page.read_bytes() for page in written}) == 1
    assert len({page.with_name("accuracy.png").read_bytes() for page in written}) == 1
    assert {path.name for path in (tmp_path / "a").iterdir()} == {
        "config.toml",
        "results.jsonl",
        "accuracy.png",
        "loss.png",
        "worst_class_recall.png",
        "report.html",
    }


def test_the_figure_is_a_png_of_the_stated_size(tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "DPI", DPI)
    page = write_report(write_run(tmp_path, whole_run()))
    png = page.with_name("accuracy.png").read_bytes()
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    size = struct.unpack(">II", png[16:24])
    assert size == tuple(round(inches * DPI) for inches in SIZE_INCHES)
    assert not re.search(rb"tEXt|iTXt|tIME", png)


def test_the_page_parses_and_loads_nothing_from_outside(tmp_path):
    page = Page(write_report(write_run(tmp_path, whole_run())))
    assert page.open == []
    assert not {"src", "href", "srcset", "action"}.intersection(key for key, _ in page.attributes)
    assert not {"link", "iframe", "img", "base", "form"}.intersection(page.tags)
    assert any(key == "content" and "default-src 'none'" in v for key, v in page.attributes)
    assert "http" not in page.source.replace('"http://www.w3.org/2000/svg"', "").replace(
        "http-equiv", ""
    )
    assert not re.search(r"\{\{\w+\}\}", page.words)


def test_the_page_carries_ballots_that_read_back(tmp_path):
    page = Page(write_report(write_run(tmp_path, whole_run())))
    assert [(v["curve"], v["seed"], len(v["rounds"])) for v in page.data["votes"]] == [
        (2, 0, 2),
        (2, 1, 2),
    ]
    vote = page.data["votes"][0]["rounds"][0]
    # Proposals 0 and 2 of three are the bits 1010; the second voter's ballot is void.
    assert vote["ballots"] == ["a", None]
    assert (vote["selection"], vote["byzantine"], vote["quorum"]) == ([0, 2], [5, 7], 2)


def test_names_are_shown_and_never_run(tmp_path):
    reasons = {NASTY: 1}
    rounds = [
        line(NASTY, NASTY, accuracy=0.5, rejected_proposals=reasons, outcome=NASTY),
        line("_hidden", NASTY, accuracy=0.5),
        line("{{data}}", NASTY),
    ]
    config = {"experiment": {"name": NASTY[:-1], "rules": [NASTY[:-1]], "seeds": [0], "rounds": 9}}
    folder = write_run(tmp_path, rounds, config)
    (folder / "summary.json").write_text(json.dumps({"environment": {NASTY: {NASTY: NASTY}}}))
    page = Page(write_report(folder))
    assert page.open == []
    assert page.tags.count("script") == 2
    assert "b" not in page.tags
    assert page.data["curves"][0]["label"] == NASTY
    assert "<" not in page.texts["script", "data"]
    assert "<script>alert(1)</script>" in page.words
    assert "{{data}}" in page.words


def test_huge_results_are_thinned_evenly_and_the_page_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(vote_map, "VOTE_CHARACTERS_MAX", 1700)
    monkeypatch.setattr(charts, "POINTS_MAX", 5)
    rounds = [line(number=n, accuracy=0.5) for n in range(1, 102)]
    page = Page(write_report(write_run(tmp_path, rounds)))
    shown = [vote["round"] for vote in page.data["votes"][0]["rounds"]]
    assert len(shown) == 10
    assert (shown[0], shown[-1]) == (1, 101)
    assert page.data["curves"][0]["accuracy"]["rounds"] == [1, 26, 51, 76, 101]
    assert "10 evenly spaced rounds" in page.words
    assert "at most 5 evenly spaced points of up to 101 rounds" in page.words


INCOMPLETE = {
    "no rounds": ([], "The run holds no rounds yet."),
    "one round, nothing evaluated": ([line()], "No round was evaluated yet"),
    "one round": ([line(accuracy=0.3)], "HoldOut: seed 0 has 1 of 2 rounds, seed 1 has not begun."),
    "a curve missing": (whole_run()[:8], "HoldOut: has not begun."),
    "no baseline": (whole_run()[4:], "no drop can be stated"),
    "cut in the middle of a seed": (whole_run()[:-1], "HoldOut: seed 1 has 1 of 2 rounds."),
    "diverged": (
        [line(accuracy=0.3), line(number=2, outcome="diverged", gamma=None, selection=None)],
        "HoldOut, seed 0: diverged in round 2",
    ),
    "no vote at all": ([line("mean", "none", number=2, accuracy=0.3)], "Krum: has not begun."),
    "more ballots than voters": ([line(ballots=[[0], [99], [1]])], "No round was evaluated"),
    "nobody drawn": (
        [line(proposers=[], voters=[], ballots=[], selection=[], outcome="no-proposals")],
        "outcome: no-proposals",
    ),
    "not finite": ([line(accuracy=float("nan"), gamma=float("inf"))], "No round was evaluated"),
}


@pytest.mark.parametrize(("rounds", "said"), INCOMPLETE.values(), ids=INCOMPLETE.keys())
def test_an_incomplete_run_gives_a_report_that_says_so(tmp_path, rounds, said):
    page = Page(write_report(write_run(tmp_path, rounds)))
    assert page.open == []
    assert said in page.words
    assert page.data["curves"] is not None
    assert (tmp_path / "accuracy.png").read_bytes().startswith(b"\x89PNG")


def test_a_whole_run_has_nothing_to_complain_of():
    assert unfinished(group(whole_run()), CONFIG) == []


def test_a_diverged_curve_is_not_waited_for():
    rounds = [*whole_run()[:-2], line(seed=1, outcome="diverged")]
    assert unfinished(group(rounds), CONFIG) == []


@pytest.mark.parametrize(
    "config", [{}, {"experiment": 3}, {"experiment": {"seeds": 1, "rules": "krum"}}, {"attack": 1}]
)
def test_a_config_of_another_shape_does_not_stop_the_report(tmp_path, config):
    page = Page(write_report(write_run(tmp_path, whole_run(), config)))
    assert "HoldOut ends at" in page.words


@pytest.mark.parametrize("summary", ["", "[]", "{}", '{"environment": 3}', '{"environment": {}}'])
def test_a_summary_without_environment_does_not_stop_the_report(tmp_path, summary):
    folder = write_run(tmp_path, whole_run())
    (folder / "summary.json").write_text(summary)
    assert "Not recorded" in Page(write_report(folder)).words


def test_the_environment_is_told(tmp_path):
    folder = write_run(tmp_path, whole_run())
    environment = {"threads": 1, "versions": {"torch": "2.6.0"}}
    (folder / "summary.json").write_text(json.dumps({"environment": environment}))
    page = Page(write_report(folder))
    assert "versions torch" in page.source
    assert "2.6.0" in page.words


@pytest.mark.parametrize(
    ("key", "value"),
    [("rule", None), ("seed", "0"), ("accuracy", "high"), ("ballots", [["0"]]), ("round", True)],
)
def test_a_line_of_the_wrong_kind_is_named(tmp_path, key, value):
    folder = write_run(tmp_path, [line(), line(**{key: value})] if key != "rule" else [{}])
    with pytest.raises(RunFolderError, match=rf"line \d: {key} has the wrong kind of value"):
        write_report(folder)


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(RunFolderError, match="not a run folder"):
        write_report(tmp_path)


def test_the_figure_shows_names_that_matplotlib_would_read_as_something_else():
    assert quantity_png(group([line("_x $\\frac$ \u4e2d" + "y" * 99, accuracy=0.5)]), ACCURACY)


def started(accuracy, loss, **others):
    """A first round, with what was measured before it."""
    initial = {"accuracy": accuracy, "loss": loss, "worst_class_recall": 0.0}
    return line(number=1, initial=initial, **others)


def test_round_zero_is_drawn_and_counts_for_nothing_else(tmp_path):
    rounds = [
        started(0.1, 2.3),
        line(number=2, accuracy=0.6, loss=1.1, worst_class_recall=0.3),
        started(0.3, 2.5, seed=1),
        line(number=2, seed=1, accuracy=0.8, loss=1.3, worst_class_recall=0.5),
    ]
    (curve,) = group(rounds)
    accuracy = curve.line("accuracy")
    assert (accuracy.rounds, accuracy.mean) == ((0, 2), pytest.approx((0.2, 0.7)))
    assert (accuracy.low, accuracy.high) == ((0.1, 0.6), (0.3, 0.8))
    assert curve.line("gamma").rounds == (1, 2)
    assert curve.line("worst_class_recall").mean == pytest.approx((0.0, 0.4))
    before = [{k: v for k, v in record.items() if k != "initial"} for record in rounds]
    assert final_table(rounds) == final_table(before)
    config = {**CONFIG, "experiment": {**CONFIG["experiment"], "rules": ["holdout"]}}
    page = Page(write_report(write_run(tmp_path / "run", rounds, config)))
    (chart,) = page.data["curves"]
    assert chart["accuracy"]["rounds"] == [0, 2]
    assert chart["loss"]["mean"] == ["2.400", "1.200"]
    assert chart["worst-class-recall"]["mean"] == ["0.0 %", "40.0 %"]
    assert "Round 0 is the model before the first step." in page.words


def test_a_run_whose_first_model_is_all_that_was_measured_has_no_result_yet(tmp_path):
    folder = write_run(tmp_path / "run", [started(0.1, 2.3)])
    assert final_table([started(0.1, 2.3)])[0].accuracy is None
    assert "No round was evaluated yet" in write_report(folder).read_text("utf-8")


@pytest.mark.parametrize("wrong", [3, "x", [0.1], {"accuracy": "high"}, {"loss": [1]}])
def test_a_first_measurement_of_the_wrong_kind_is_refused(tmp_path, wrong):
    folder = write_run(tmp_path / "run", [line(initial=wrong)])
    with pytest.raises(RunFolderError, match="line 1: initial has the wrong kind of value"):
        write_report(folder)


def test_there_is_a_picture_of_each_quantity_and_they_differ(tmp_path):
    folder = write_run(tmp_path / "run", whole_run())
    write_report(folder)
    names = ("accuracy", "loss", "worst_class_recall")
    pictures = [(folder / f"{name}.png").read_bytes() for name in names]
    assert len(set(pictures)) == 3
    assert all(picture.startswith(b"\x89PNG") for picture in pictures)
    write_report(folder)
    assert [(folder / f"{name}.png").read_bytes() for name in names] == pictures


@pytest.mark.parametrize("losses", [(2.3, 0.1), (2.3, 1e30), (1e-9, 1e-9), (0.0, 0.0), (0.0, 1e9)])
def test_any_losses_can_be_drawn(losses):
    rounds = [line(number=n, accuracy=0.5, loss=loss) for n, loss in enumerate(losses, 1)]
    assert quantity_png(group(rounds), LOSS).startswith(b"\x89PNG")


def test_lines_in_the_order_of_an_extension_give_the_same_report(tmp_path):
    rounds = whole_run()
    asked_at_once = write_run(tmp_path / "one" / "run", rounds)
    # One seed of two rules for one round; then the second round, Krum, and the other seed.
    later = [r for r in rounds if r["rule"] == "krum" or r["seed"] == 1 or r["round"] == 2]
    first = [r for r in rounds if r not in later]
    extended = write_run(tmp_path / "other" / "run", first + later)
    assert [r["rule"] for r in first] == ["mean", "holdout"]
    for folder in (asked_at_once, extended):
        write_report(folder)
    for name in ("report.html", "accuracy.png", "loss.png"):
        assert (asked_at_once / name).read_bytes() == (extended / name).read_bytes()


# --- The table ---


def test_the_table_has_a_row_a_round_and_curve_and_round_zero_before(tmp_path):
    rounds = [
        started(0.1, 2.3, rejected_proposals={"missing": 2, "not-finite": 1}),
        line(number=2, accuracy=0.6, selection=None, byzantine_selected=None),
        line("mean", "none", 0, 1, 0.7),
    ]
    path = write_csv(write_run(tmp_path / "run", rounds))
    with path.open(encoding="utf-8", newline="") as file:
        found = list(csv.DictReader(file))
    assert [(r["rule"], r["round"], r["outcome"], r["accuracy"]) for r in found] == [
        ("mean", "1", "step", "0.7"),
        ("holdout", "0", "initial", "0.1"),
        ("holdout", "1", "step", ""),
        ("holdout", "2", "step", "0.6"),
    ]
    assert (found[2]["rejected_proposals"], found[2]["proposers"]) == ("3", "3")
    assert (found[2]["selected"], found[3]["selected"]) == ("2", "")
    assert (found[1]["proposers"], found[1]["seconds"], found[1]["gamma"]) == ("0", "", "")
    documented = (Path(__file__).parents[2] / "docs" / "results-format.md").read_text("utf-8")
    assert all(f"`{column}`" in documented for column in found[0])


def test_the_data_frame_has_the_rows_of_the_table(tmp_path):
    pandas = pytest.importorskip("pandas")
    folder = write_run(tmp_path / "run", [started(0.1, 2.3), line(number=2, accuracy=0.6)])
    frame = read_run(folder).to_pandas()
    table = pandas.read_csv(write_csv(folder))
    for column in ("rule", "round", "accuracy", "loss", "worst_class_recall", "outcome"):
        pandas.testing.assert_series_equal(frame[column], table[column], check_dtype=False)
    assert frame["round"].dtype.kind == "i"
    assert frame["byzantine_proposers"].dtype.kind == "i"
    assert "initial" not in frame.columns


def test_a_line_that_no_table_can_hold_is_the_users_to_put_right(tmp_path):
    folder = write_run(tmp_path / "run", [line(rejected_proposals={"missing": "two"})])
    with pytest.raises(RunFolderError, match="no table can hold"):
        write_csv(folder)


def test_a_name_in_the_table_is_quoted_where_it_must_be(tmp_path):
    folder = write_run(tmp_path / "run", [line(NASTY + ',"\n')])
    with write_csv(folder).open(encoding="utf-8", newline="") as file:
        (row,) = csv.DictReader(file)
    assert row["rule"] == NASTY.replace("\ud800", "?") + ',"\n'


def titles(page):
    return re.findall(r"<h3>([^<]*)</h3>", page.source)[: len(report_charts.CHARTS)]


def test_a_regression_has_its_own_chart_words_and_least_height(tmp_path):
    rounds = [
        line("mean", "none", number=n, r2=r2, mae=1.0)
        for n, r2 in [(1, -7.0), (2, -0.5), (3, 0.75)]
    ]
    page = Page(write_report(write_run(tmp_path, rounds)))
    assert titles(page)[0] == "Test R²"
    assert "Test accuracy" not in page.source
    assert page.texts["desc", "r2-said"].endswith("mean, no attack 0.750")
    assert page.data["curves"][0]["r2"]["mean"] == ["-7.000", "-0.500", "0.750"]
    assert " R² below -1 is drawn at the foot of the chart." in page.words
    chart = page.source[page.source.index('id="r2"') :]
    heights = re.search(r'class="curve c0"[^>]* d="M([^"]*)"', chart)[1].split("L")
    assert float(heights[0].split()[1]) == charts.SIDE
    assert all(0 <= float(point.split()[1]) <= charts.SIDE for point in heights)


def test_the_success_of_an_attack_is_drawn_where_it_was_measured(tmp_path):
    plain = Page(write_report(write_run(tmp_path / "plain", whole_run())))
    assert titles(plain)[:2] == ["Test accuracy", "Test loss"]
    rounds = [{**r, "attack_success": 0.25} if r["accuracy"] else r for r in whole_run()]
    page = Page(write_report(write_run(tmp_path / "triggered", rounds)))
    assert titles(page)[:2] == ["Test accuracy", "Success of the attack on triggered rows"]
    assert "HoldOut 25.0 %" in page.texts["desc", "attack-success-said"]
    assert "attack success (%)" in page.words


def test_who_holds_what_is_said_in_numbers_and_stays_small(tmp_path):
    folder = write_run(tmp_path, whole_run())
    counts = [[place % 7 + 1] * 100 for place in range(400)]
    (folder / "shards.json").write_text(json.dumps({"seed": 0, "kind": "labels", "counts": counts}))
    page = Page(write_report(folder))
    assert page.open == []
    held = page.source[page.source.index("Who holds which rows") :]
    held = held[: held.index("</section>")]
    assert "25 evenly spaced ones are shown." in held
    assert held.count('<th scope="row">worker ') == held.count("<g>") == 25
    assert held.count("var(--edge)") == 25
    assert len(held) < 400_000
    assert all("tabindex" in box for box in re.findall(r'<div class="scroll"[^>]*>', held))


def test_what_custom_code_raised_can_be_scrolled_with_the_keyboard(tmp_path):
    folder = write_run(tmp_path, whole_run())
    (folder / report.ERROR).write_text(json.dumps({"error": "<b>", "traceback": "line 1"}))
    page = Page(write_report(folder))
    assert re.search(
        r'<details open ><summary>[^<]*</summary><pre tabindex="0"[^>]*>&lt;b', page.source
    )
