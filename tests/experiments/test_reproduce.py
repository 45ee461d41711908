"""The paper's figures: the settings are the paper's, a cut-down run says so, and all resumes."""

from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from holdout.config import apply_settings, parse
from holdout.errors import DataError, RunFolderError
from holdout.experiments import figures
from holdout.experiments import reproduce as reproduction
from holdout.experiments.reproduce import CHANGES, FIGURES, QUICK, panel_values, reproduce

TINY = [
    "experiment.rounds=2",
    "experiment.seeds=[0]",
    "experiment.threads=1",
    "data.samples_per_worker=40",
    "training.batch_size=10",
    "vote.samples=20",
]
PANELS = [(figure, panel.name) for figure, panels in FIGURES.items() for panel in panels]


@pytest.mark.parametrize(("figure", "panel"), PANELS)
def test_every_panel_has_the_papers_numbers(figure, panel):
    config = parse(panel_values(panel)).checked()
    sizes = (
        config.experiment.rounds,
        config.training.batch_size,
        config.federation.proposers,
        config.federation.voters,
        config.data.samples_per_worker,
        config.vote.samples,
    )
    papers = {"mnist": (100, 83, 30, 30, 2000, 2000), "cifar10": (1000, 256, 12, 12, 1000, 1000)}
    assert sizes == papers[figure]
    assert config.experiment.name == panel
    assert config.data.name == figure
    assert config.model.name == {"mnist": "mlp", "cifar10": "lenet5"}[figure]
    assert (config.federation.workers, config.training.learning_rate) == (100, 0.1)
    assert config.training.momentum == 0
    lies = config.attack.name != "none"
    assert config.federation.byzantine_workers == (33 if lies else 0)
    # The authors' code rounds the number of liars that rules are told of up.
    told = Fraction(1, 3) if panel.endswith("-authors") else config.federation.byzantine
    assert config.federation.f == told
    assert len(config.experiment.seeds) >= (5 if figure == "mnist" else 3)


@pytest.mark.parametrize(("figure", "panel"), PANELS)
def test_quick_changes_nothing_that_a_title_does_not_name(figure, panel):
    whole = parse(panel_values(panel)).checked().as_dict()
    quick = parse(apply_settings(panel_values(panel), QUICK[figure])).checked().as_dict()
    changed = {
        (section, key)
        for section, values in whole.items()
        for key in values
        if values[key] != quick[section][key]
    }
    assert changed <= {
        *CHANGES,
        *(("experiment", k) for k in ("rounds", "seeds", "evaluate_every")),
    }
    assert ("experiment", "rounds") in changed


def test_long_titles_do_not_run_into_each_other(monkeypatch):
    drawn = []
    monkeypatch.setattr(figures, "_png", lambda figure: drawn.append(figure) or b"")
    less = "(16 of 1000 rounds, 1 of 3 seeds, B 128, learning rate 0.4, momentum 0.9, m_c 250)"
    figures.panels_png([(f"{panel.title}\n{less}", []) for panel in FIGURES["mnist"]])
    FigureCanvasAgg(drawn[0]).draw()
    boxes = [axes.title.get_window_extent() for axes in drawn[0].axes]
    for left, right in pairwise(boxes):
        assert left.x1 < right.x0


def test_curves_that_do_not_depend_on_a_reading_are_run_once():
    for panels in FIGURES.values():
        names = {panel.name: panel for panel in panels}
        for panel in panels:
            if panel.others_from is None:
                continue
            one, other = (
                parse(panel_values(p.name)).checked().as_dict()
                for p in (panel, names[panel.others_from])
            )
            # Who passes matters to a vote alone.
            assert one["experiment"].pop("rules") == ["holdout-paper", "holdout-1"]
            assert set(other["experiment"].pop("rules")) > {"holdout-paper", "holdout-1"}
            for config in (one, other):
                del config["experiment"]["name"], config["experiment"]["baseline"]
                del config["attack"]["passing"]
            assert one == other


def test_missing_data_are_named_before_anything_is_written(tmp_path):
    with pytest.raises(DataError, match="train-images"):
        reproduce("mnist", data=tmp_path / "nothing", out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_file_in_place_of_the_folder_is_named(tmp_path):
    (tmp_path / "out").touch()
    with pytest.raises(RunFolderError, match="is not a folder"):
        reproduce("mnist", data=tmp_path, out=tmp_path / "out")


def test_a_folder_named_like_a_number_is_a_folder(tmp_path, monkeypatch):
    planned = []

    def plan(values, _own):
        planned.append(values["data"]["path"])
        raise DataError("far enough")

    monkeypatch.setattr(reproduction, "load", lambda *_name, **_where: None)
    monkeypatch.setattr(reproduction, "make_plan", plan)
    with pytest.raises(DataError, match="far enough"):
        reproduce("mnist", data=Path("2024"), out=tmp_path / "out")
    assert planned == ["2024"]


@pytest.mark.slow
@pytest.mark.real_data
def test_an_interrupted_figure_goes_on_to_the_same_picture(real_data, tmp_path):
    data = real_data / "mnist"
    whole = reproduce("mnist", data=data, out=tmp_path / "whole", settings=TINY)
    assert [title for title, _ in whole.tables] == [
        f"{panel.title} (2 of 100 rounds, 1 of 5 seeds, B 10, m_c 20)" for panel in FIGURES["mnist"]
    ]
    assert [len(rows) for _, rows in whole.tables] == [6, 7, 7, 7]

    def stop_in_the_second(panel):
        def watch(_progress):
            if panel.name == "mnist-right":
                raise KeyboardInterrupt

        return watch

    out = tmp_path / "parts"
    with pytest.raises(KeyboardInterrupt):
        reproduce("mnist", data=data, out=out, settings=TINY, watch=stop_in_the_second)
    with pytest.raises(RunFolderError, match="not empty"):
        reproduce("mnist", data=data, out=out, settings=TINY)
    parts = reproduce("mnist", data=data, out=out, settings=TINY, resume=True)
    assert parts.tables == whole.tables
    assert parts.path.read_bytes() == whole.path.read_bytes()
    assert whole.path.read_bytes().startswith(b"\x89PNG")
