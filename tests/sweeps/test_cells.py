"""What is made of curves: worst attacks, selections, tables, pictures and the page."""

import csv
import io
import re

import pytest
from matplotlib.figure import Figure
from tests import tiny
from tests.sweeps import rig

from holdout.metrics import ACCURACY
from holdout.sweeps.cells import Attacked, Cell, Cells, gather
from holdout.sweeps.choosing import choose, reported_points
from holdout.sweeps.curve_store import CurveStore, StoredCurve
from holdout.sweeps.heatmap import heatmaps
from holdout.sweeps.page import LEVELS, page_html
from holdout.sweeps.shades import contrast, ink_on, shade
from holdout.sweeps.sweep_file import read_sweep
from holdout.sweeps.tables import table_csv, table_rows, table_tex, worst_md
from holdout.sweeps.workforce import FailedCurve

GRID = {
    "federation.byzantine": [0.1, 0.4],
    "federation.assumed_byzantine": ["1x", "2x"],
    "attack": [{"name": "zero"}, {"name": "sign-flip"}],
}
STRENGTH = {"none": 0.9, "zero": 0.8, "sign-flip": 0.5}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tiny.write_data(tmp_path_factory.mktemp("data"))


def by_attack(label, values, seed):
    """A curve that rises, peaks and falls; the mean does worst under what is harmless."""
    name = "none" if label.endswith("no attack") else values["attack"]["name"]
    end = STRENGTH[name] + 0.02 * seed
    if label == "mean" and name == "zero":
        end = 0.3
    return [0.1, 0.2, end + 0.05, end - 0.05, end]


@pytest.fixture(scope="module")
def cells(data, tmp_path_factory):
    sweep = rig.values(
        data,
        grid=GRID,
        changes={"experiment": {"seeds": [0, 1]}},
        sweep={"columns": "federation.byzantine"},
    )
    store = CurveStore(tmp_path_factory.mktemp("store"))
    return gather(rig.filled(sweep, store, by_attack), store, {})


def test_the_worst_attack_is_the_one_with_the_lowest_mean_over_seeds(cells):
    mean, trimmed = cells.contenders
    cell = cells.cell(mean, (0, 0))
    assert cell.worst("final").label == "zero"
    assert cell.value("final").mean == pytest.approx(0.3)
    other = cells.cell(trimmed, (0, 0))
    assert other.worst("final").label == "sign-flip"
    assert other.value("final").mean == pytest.approx(0.51)
    assert (other.value("final").low, other.value("final").high) == (0.5, 0.52)
    assert other.value("lowest").mean == pytest.approx(0.46)
    assert other.value("best").mean == pytest.approx(0.56)
    assert other.below() == pytest.approx(0.4)
    assert cells.best((0, 0), "final") is other


def test_what_is_infeasible_is_said_at_its_cell_and_the_rest_is_there(cells):
    for contender in cells.contenders:
        infeasible = cells.cell(contender, (1, 1))
        assert "the assumed share f must be below 1/2; got f = 0.8" in infeasible.problem
        assert infeasible.value("final") is None
        assert cells.cell(contender, (1, 0)).problem is None
    assert "infeasible" in page_html(cells, [])
    assert "got f = 0.8" in worst_md(cells, [])


def test_a_curve_that_diverges_counts_as_nothing_and_keeps_its_best(data, tmp_path):
    sweep = rig.values(data, grid={"attack.name": ["zero"]}, rules=["mean"])
    store = CurveStore(tmp_path)
    plan = rig.filled(sweep, store, lambda *_: [0.2, 0.7, None])
    cell = gather(plan, store, {}).cell(plan.file.contenders[0], ())
    assert [cell.value(m).mean for m in ("final", "lowest", "best")] == [0.0, 0.0, 0.7]
    assert cell.attacks[0].diverged == 1


def test_missing_curves_are_counted_and_damaged_files_are_missing(data, tmp_path):
    sweep = rig.values(data, grid={"attack.name": ["zero", "sign-flip"]}, rules=["mean"])
    store = CurveStore(tmp_path)
    plan = rig.filled(sweep, store, lambda *_: [0.5])
    contender = plan.file.contenders[0]
    curve = plan.find(contender, (0,), 0)
    for content in (b"", b"[]", b'{"schema": 1}', b"\xff", b'{"schema":1,"key":"x","rows":[3]}'):
        store.file_of(curve.key).write_bytes(content)
        assert store.read(curve.key) is None
    cell = gather(plan, store, {}).cell(contender, ())
    assert cell.missing == 1
    assert cell.worst("final").label == "sign-flip"


def test_selection_takes_what_stands_best_under_its_worst_attack(data, tmp_path):
    # By the mean over attacks 0.1 would win, by the best attack too; seed 0 must have no say.
    table = {
        ("zero", 0.1): 0.9,
        ("sign-flip", 0.1): 0.4,
        ("zero", 0.2): 0.6,
        ("sign-flip", 0.2): 0.5,
    }

    def accuracy(label, values, seed):
        if label.endswith("no attack"):
            return [0.9]
        found = table[values["attack"]["name"], values["training"]["learning_rate"]]
        return [found if seed == 7 else 1 - found]

    sweep = rig.values(
        data,
        grid={"attack.name": ["zero", "sign-flip"], "training.learning_rate": [0.1, 0.2]},
        rules=["trimmed-mean"],
        sweep={
            "select": "max-min",
            "select_keys": ["training.learning_rate"],
            "select_seeds": [7],
        },
    )
    store = CurveStore(tmp_path)
    plan = rig.filled(sweep, store, accuracy)
    choices = choose(plan, store)
    assert choices["trimmed-mean", ()] == (1,)
    reported = {point for c, point in reported_points(plan, choices) if c.label == "trimmed-mean"}
    assert reported == {(0, 1), (1, 1)}
    cells = gather(plan, store, choices)
    cell = cells.cell(plan.file.contenders[0], ())
    assert cell.chosen == "0.2"
    assert cell.value("final").mean == pytest.approx(0.4)
    assert "Selected" not in page_html(cells, []).partition("<script")[0]
    assert "not shown" in page_html(cells, [])


def test_the_table_has_a_row_for_each_rule_cell_and_attack(cells):
    rows = list(csv.DictReader(io.StringIO(table_csv(cells))))
    assert len(rows) == 2 * 2 * 2 * 2 == len(table_rows(cells))
    worst = [row for row in rows if row["worst"] == "true"]
    assert len(worst) == 2 * 3
    first = rows[0]
    assert (first["rule"], first["federation.byzantine"], first["attack"]) == (
        "mean",
        "0.1",
        "zero",
    )
    assert (first["final"], first["seeds"], first["below_unattacked"]) == ("0.3", "2", "0.61")


def test_latex_has_every_row_and_marks_the_best(cells):
    text = table_tex(cells)
    assert "% Test accuracy at the end in percent, under the worst attack;" in text
    assert text.count("\\\\") == 2 + 2 * (1 + 2)
    assert text.count("\\textbf") == 3
    assert "trimmed mean & \\textbf{51.0}" in text
    assert text.count("--") == 2


def test_pictures_are_the_same_bytes_twice(cells):
    first, second = heatmaps(cells), heatmaps(cells)
    assert first == second
    assert first["png"].startswith(b"\x89PNG")
    assert first["pdf"].startswith(b"%PDF")


@pytest.mark.parametrize("columns", ["federation.byzantine", "training.learning_rate"])
def test_the_title_of_a_picture_is_not_cut_off(data, tmp_path, monkeypatch, columns):
    grid = {**GRID, "training.learning_rate": [0.1]}
    store = CurveStore(tmp_path)
    sweep = rig.values(data, grid=grid, sweep={"columns": columns})
    narrow = gather(rig.filled(sweep, store, by_attack), store, {})
    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: drawn.append(figure))
    heatmaps(narrow)
    (title,) = drawn[0].texts
    assert "worst of 2 attacks; one seed." in worst_md(narrow, [])
    assert " ".join(title.get_text().split()).endswith("under the worst of 2 attacks; one seed")
    box, width = title.get_window_extent(), drawn[0].bbox
    panels = [axes.get_tightbbox() for axes in drawn[0].axes]
    assert 0 <= box.x0 < box.x1 <= width.x1
    assert max(panel.y1 for panel in panels) < box.y0 < box.y1 <= width.y1


def test_the_page_is_one_offline_file_with_a_button_a_cell(cells):
    failed = [FailedCurve("ab", "krum (zero, seed 1)", "rule 'x' <b> raised")]
    page = page_html(cells, failed)
    assert page == page_html(cells, failed)
    assert not re.search(r"(src|href)=|https?://(?!www\.w3\.org/2000/svg)", page)
    assert "default-src 'none'" in page
    # Three measures and the distance, two rules, three cells that can be run.
    assert page.count("<button") == 4 * 2 * 3
    assert "rule &#x27;x&#x27; &lt;b&gt; raised" in page
    assert "{{" not in page


def test_words_can_be_read_on_every_shade():
    for level in range(LEVELS + 1):
        colour = shade(level / LEVELS)
        assert contrast(ink_on(colour), colour) >= 4.5


def test_a_page_of_many_cells_stays_small():
    grid = {
        "federation.byzantine": [0.1, 0.2, 0.3],
        "data.alpha": [0.1 * i for i in range(1, 7)],
        "attack": [{"name": "alie", "gamma": 1.0 + i} for i in range(20)],
    }
    variants = {f"rule {i}": {"rule": "mean", "vote.memory": i / 100} for i in range(8)}
    experiment = {"rules": ["mean", "median"]}
    file = read_sweep({"experiment": experiment, "grid": grid, "variants": variants})
    rows = [{"round": i, "accuracy": 0.123 + i / 1000, "outcome": "step"} for i in range(1, 101)]
    curve = StoredCurve("ab", rows, 100, 0, 1.0)
    by_place = {
        (contender.label, place): Cell(
            contender,
            place,
            tuple(
                Attacked(file.label(file.worst, lie), (0, 0, 0), {0: curve}, None, {0: curve})
                for lie in file.over(file.worst)
            ),
            "",
            1,
        )
        for contender in file.contenders
        for place in file.over(file.cell_axes)
    }
    page = page_html(Cells(file, by_place, ACCURACY), [])
    assert len(by_place) == 180
    assert len(page.encode()) < 1_500_000
