"""Sweeps as users run them: in processes of their own, stopped, resumed, failing in part."""

import json
import re
from dataclasses import replace

import pytest
from tests import tiny
from tests.sweeps import rig

import holdout
from holdout.commands import run_command
from holdout.errors import RunFolderError, UserError
from holdout.sweeps.conditions import conditions_at, conditions_of
from holdout.sweeps.runner import prepare

GRID = {"federation.byzantine": [0.2, 0.4], "attack.name": ["zero", "sign-flip"]}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tiny.write_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    """A sweep that nobody interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    return holdout.sweep(rig.values(data, grid=GRID), out=folder / "small", jobs=2)


def test_a_sweep_gives_what_single_runs_give(data, whole):
    # Two rules, two shares, two attacks, and one mean without attack for all of them.
    assert (whole.curves, list(whole.failed)) == (9, [])
    names = {path.name for path in whole.folder.iterdir()}
    assert names >= {"sweep.html", "heatmap.png", "heatmap.pdf", "table.csv", "table.tex"}
    values = tiny.values(
        data,
        experiment={"rules": ["mean", "trimmed-mean"], "seeds": [0], "rounds": 2},
        federation={"byzantine": 0.4, "assumed_byzantine": 0.4},
    )
    values["attack"] = {"name": "sign-flip"}
    result = holdout.run(values)
    for row in whole.rows:
        if (row["federation.byzantine"], row["attack.name"]) == ("0.4", "sign-flip"):
            assert row["final"] == result.accuracy(row["rule"])
            unattacked = result.accuracy("mean", "none")
            assert row["below_unattacked"] == unattacked - row["final"]


def test_each_cell_is_told_as_a_single_run_tells_it(data, whole):
    values = tiny.values(
        data,
        experiment={"rules": ["mean"], "seeds": [0], "rounds": 2},
        federation={"byzantine": 0.4, "assumed_byzantine": 0.4},
    )
    values["attack"] = {"name": "sign-flip"}
    run = holdout.read_run(holdout.run(values))
    calm, attacked = run.heterogeneity()
    shares = attacked.judges
    (row,) = [
        row
        for row in whole.rows
        if (row["rule"], row["federation.byzantine"], row["attack.name"])
        == ("mean", "0.4", "sign-flip")
    ]
    assert row["g2"] == pytest.approx(attacked.dissimilarity.g2)
    assert row["b2"] == pytest.approx(attacked.dissimilarity.b2)
    assert (row["judges_least"], row["judges_median"]) == (min(shares), sorted(shares)[1])
    assert row["judges_needed"] == 4 / 6
    assert row["liars_proposers"] == attacked.proposers.mean
    # What a cell is like is that of the mean without attack, for every rule and attack.
    at = conditions_at(whole.cells, (1,))
    assert at.g2 == pytest.approx(calm.dissimilarity.g2)
    assert at.judges == shares
    assert at.is_covered is (min(shares) > 4 / 6)
    assert at.proposers == attacked.proposers
    page = (whole.folder / "sweep.html").read_text()
    # Beside each of the four maps, a row for each of its two columns.
    maps = re.findall(r'</tbody></table><table class="like">(.*?)</table></div>', page)
    assert len(maps) == 4
    assert all(re.findall(r'<th scope="row">(.*?)</th>', one) == ["0.2", "0.4"] for one in maps)
    assert page.count("needs c &gt; 67 %") == 4
    assert page.count('aria-label="Share of voters that can judge each class') == 8
    assert "Under the worst attack: G" in page
    assert "## What the cells are like" in (whole.folder / "worst.md").read_text()


def test_curves_of_older_stores_are_told_without_what_they_lack(whole):
    curves = [c for a in _attacks(whole.cells) for c in a.curves.values()]
    bare = [replace(curve, about={}) for curve in curves]
    at = conditions_of(replace(_attacks(whole.cells)[0], curves=dict(enumerate(bare))))
    assert (at.judges, at.needed, at.is_covered, at.proposers) == ((), None, None, None)
    assert at.g2 is not None
    junk = {"config": {}, "judges": {"shares": {"0": "all"}}, "liars_drawn": {"voters": [1]}}
    broken = replace(bare[0], about=junk)
    assert conditions_of(replace(_attacks(whole.cells)[0], curves={0: broken})).judges == ()


def _attacks(cells):
    return [attacked for cell in cells.by_place.values() for attacked in cell.attacks]


def test_a_sweep_is_interrupted_and_goes_on_with_the_same_bytes(data, whole, tmp_path):
    seen = []

    def interrupt(progress):
        if progress.done:
            seen.append(progress.done)
            raise KeyboardInterrupt

    sweep = rig.values(data, grid=GRID)
    with pytest.raises(KeyboardInterrupt):
        holdout.sweep(sweep, out=tmp_path / "small", jobs=1, watch=interrupt)
    assert seen == [1]
    assert prepare(sweep, out=tmp_path / "small", resume=True).size().left < 9
    again = holdout.sweep(sweep, out=tmp_path / "small", jobs=1, resume=True)
    assert again.curves == 9
    for name in ("table.csv", "table.tex", "worst.md", "sweep.html", "heatmap.png"):
        assert (again.folder / name).read_bytes() == (whole.folder / name).read_bytes()


def test_curves_are_shared_with_another_sweep(data, whole):
    more = {**GRID, "federation.byzantine": [0.4, 0.3]}
    store = whole.folder.parent / "curves"
    size = prepare(rig.values(data, grid=more), out=whole.folder.parent / "x", store=store).size()
    assert (size.curves, size.stored, size.is_measured) == (9, 5, True)
    text = size.as_text()
    assert "9 curves, 5 of them in the store\n4 curves to run: about 1 min" in text
    assert not (whole.folder.parent / "x").exists()


def test_a_failed_curve_is_recorded_and_the_rest_goes_on(data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sweep_bad_rules.py").write_text(
        "import os\n"
        "def raising(updates, *, f, context):\n"
        "    if context.round_number > 1:\n"
        "        raise ValueError('on purpose')\n"
        "    return updates.mean(dim=0)\n"
        "def dying(updates, *, f, context):\n"
        "    if context.round_number > 1:\n"
        "        os._exit(3)\n"
        "    return updates.mean(dim=0)\n"
    )
    rules = ["sweep_bad_rules:raising", "sweep_bad_rules:dying", "mean"]
    grid, limit = {"attack.name": ["zero"]}, {"curves_max": 1}
    sweep = rig.values(data, grid=grid, rules=rules, sweep=limit)
    said = []
    result = holdout.sweep(sweep, out="out", store="kept", jobs=1, yes=True, say=said.append)
    assert len(list((tmp_path / "kept").glob("??/*.json"))) == 2
    messages = {curve.curve.partition(" ")[0]: curve.message for curve in result.failed}
    assert set(messages) == set(rules[:2])
    assert "on purpose" in messages[rules[0]]
    assert re.search(r"sweep_bad_rules\.py(:|, line )4", messages[rules[0]])
    assert "its process died (it ended with code 3)" in messages[rules[1]]
    assert len(said) == 2
    finals = {row["rule"]: row["final"] for row in result.rows}
    assert finals["mean"] is not None
    assert finals[rules[0]] is None
    stored = json.loads((tmp_path / "out" / "failed.json").read_text())
    assert [entry["key"] for entry in stored] == [curve.key for curve in result.failed]
    assert "missing" in (tmp_path / "out" / "worst.md").read_text()


def test_another_grid_is_refused_and_nothing_is_lost(data, whole):
    before = {path: path.read_bytes() for path in whole.folder.iterdir()}
    other = rig.values(data, grid={**GRID, "federation.byzantine": [0.1]})
    with pytest.raises(RunFolderError, match=r"holds another sweep: grid.federation.byzantine was"):
        holdout.sweep(other, out=whole.folder, resume=True)
    with pytest.raises(RunFolderError, match=r"holds another sweep: grid.federation.byzantine was"):
        prepare(other, out=whole.folder, resume=True)  # All that --dry-run does.
    many = rig.values(
        data, grid={"attack.name": ["zero"]}, changes={"training": {"weight_decay": 0.1}}
    )
    with pytest.raises(RunFolderError, match=r"training.weight_decay was not set, is 0.1"):
        holdout.sweep(many, out=whole.folder, resume=True)
    with pytest.raises(RunFolderError, match=r"experiment.rounds was 2, is 1"):
        holdout.sweep(rig.values(data, grid=GRID), out=whole.folder, resume=True, quick=True)
    with pytest.raises(RunFolderError, match="exists and is not empty"):
        holdout.sweep(rig.values(data, grid=GRID), out=whole.folder)
    with pytest.raises(RunFolderError, match="exists and is not empty"):
        prepare(rig.values(data, grid=GRID), out=whole.folder)
    with pytest.raises(RunFolderError, match=r"is not the folder of a sweep"):
        holdout.sweep(other, out=whole.folder.parent, resume=True)
    assert {path: path.read_bytes() for path in whole.folder.iterdir()} == before


def test_how_it_is_shown_may_change_when_it_goes_on(data, whole):
    settings = ["sweep.measure=best", "sweep.rows=federation.byzantine", "sweep.columns=rule"]
    values = rig.values(data, grid=GRID)
    again = holdout.sweep(values, out=whole.folder, resume=True, settings=settings)
    assert "at the best point" in (again.folder / "worst.md").read_text()
    holdout.sweep(values, out=whole.folder, resume=True)
    assert "at the end" in (again.folder / "worst.md").read_text()


def test_too_many_curves_ask_first(data, tmp_path):
    sweep = rig.values(data, grid=GRID, sweep={"curves_max": 8})
    with pytest.raises(UserError, match=r"9 curves to run .*only with --yes"):
        holdout.sweep(sweep, out=tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_value_that_is_wrong_in_one_place_stops_it_before_it_begins(data, tmp_path):
    sweep = rig.values(data, grid={"attack.name": ["zero", "zzero"]})
    with pytest.raises(holdout.ConfigError, match=r"attack.name = 'zzero': unknown"):
        holdout.sweep(sweep, out=tmp_path / "out")
    table = rig.values(data, grid={**GRID, "rules.krum.radius": [1.0]})
    with pytest.raises(holdout.ConfigError) as error:
        holdout.sweep(table, out=tmp_path / "out")
    # Once of the two rules together, and once of the mean without attack.
    assert len([p for p in error.value.problems if "not a rule" in p]) == 1
    krum = rig.values(data, grid={"federation.byzantine": [0.4, 0.45]}, rules=["krum"])
    with pytest.raises(
        holdout.ConfigError, match=r"1 mistake .*\n.*no combination can be run: .*krum needs"
    ):
        holdout.sweep(krum, out=tmp_path / "out")
    with pytest.raises(UserError, match="sweep takes the path"):
        holdout.sweep(3)
    with pytest.raises(UserError, match="jobs must be at least 1"):
        holdout.sweep(sweep, jobs=0)
    assert list(tmp_path.iterdir()) == []


def test_the_command_tells_what_it_would_do(data, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.toml").write_text(holdout_toml(rig.values(data, grid=GRID)))
    assert run_command(["sweep", "s.toml", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "9 curves, 0 of them in the store" in out
    assert "a rough guess until some have been run here" in out
    assert run_command(["sweep", "s.toml", "--dry-run", "--set", "grid.attack.name=[]"]) == 2
    assert "grid.attack.name = []: must not be empty" in capsys.readouterr().err
    assert run_command(["sweep"]) == 2
    assert "sweep needs SWEEP.toml" in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"s.toml"}


def holdout_toml(values):
    tomli_w = pytest.importorskip("tomli_w")
    return tomli_w.dumps(values)


@pytest.mark.parametrize("name", ["vote-family", "wrong-share"])
def test_what_is_shipped_can_be_planned(name, capsys):
    assert run_command(["sweep", name, "--quick", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert int(out.split()[0]) > 100
    # Double of 0.33 is said to be infeasible, and nothing else.
    assert ("got f = 0.66" in out) is (name == "wrong-share")
