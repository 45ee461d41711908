"""Sweep files: what is understood, and one clear message for everything that is not."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdout.config import parse
from holdout.errors import ConfigError
from holdout.shares import read_share
from holdout.sweeps.grid import merged
from holdout.sweeps.sweep_file import apply_sweep_settings, read_sweep

GRID = {"federation.byzantine": [0.1, 0.2], "attack": [{"name": "alie"}, {"name": "zero"}]}
BASE = {"experiment": {"rules": ["mean", "krum"], "seeds": [0, 1]}, "grid": GRID}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"grid": {"federation.byzantin": [0.1]}}, "did you mean 'byzantine'"),
        ({"grid": {"fedration.byzantine": [0.1]}}, "did you mean 'federation'"),
        ({"grid": {"federation.byzantine": []}}, "grid.federation.byzantine = []: must not be emp"),
        ({"grid": {"federation.byzantine": 0.1}}, "must be a list of values"),
        ({"grid": {"federation.byzantine": [0.1, 0.1]}}, "0.1 is there twice"),
        ({"grid": {"federation.byzantine": [0.1, "1/10"]}}, "1/10 means the same as 0.1"),
        ({"grid": {"federation.byzantine": [0.1, "many"]}}, "federation.byzantine = 'many': must"),
        ({"grid": {"experiment.seeds": [[0], [1]]}}, "experiment.seeds lists the seeds"),
        ({"grid": {"experiment.rules": [["mean"]]}}, "experiment.rules lists what is compared"),
        ({"grid": {"attack": ["alie"]}}, "must list tables"),
        ({"grid": {"a.b.c": [1]}}, "no key of the config has that many parts"),
        ({"grid": {"attack.name": ["alie"]}}, "sets attack.name, as does grid.attack"),
        ({"federation": {"byzantine": 0.1}}, "is an axis of [grid], too"),
        ({"experiment": {"rules": ["krum"] * 2}}, "['krum', 'krum']: must name each rule once"),
        ({"experiment": {"seeds": [4, 4]}}, "experiment.seeds = [4, 4]: must name each seed once"),
        ({"grid": 3}, "grid = 3: must be a section"),
        ({"sweep": {"worst": ["attack"]}}, "sweep.worst = ['attack']: unknown key; the keys are"),
        ({"sweep": {"worst_over": ["data"]}}, "'data' is no axis; the axes are federation.byz"),
        ({"sweep": {"columns": "data.alpha"}}, "sweep.columns: 'data.alpha' is no axis"),
        ({"sweep": {"columns": "attack"}}, "'attack' is not shown"),
        ({"sweep": {"columns": "rule"}}, "sweep.columns: must differ from sweep.rows"),
        ({"sweep": {"measure": "mean"}}, "sweep.measure = 'mean': must be 'final'"),
        ({"sweep": {"select_seeds": [7]}}, "need sweep.select = 'max-min'"),
        ({"sweep": {"select": "max-min"}}, "select_keys must name an axis"),
        (
            {
                "grid": {"training.learning_rate": [0.1, 0.2]},
                "sweep": {
                    "select": "max-min",
                    "select_keys": ["training.learning_rate"],
                    "select_seeds": [1, 5],
                },
            },
            "sweep.select_seeds: 1 would be reported, too",
        ),
        ({"variants": {"mine": {}}}, 'variants."mine": must be a table that names its rule'),
        ({"variants": {"krum": {"rule": "mean"}}}, "lists a rule of that name"),
        (
            {"variants": {"mine": {"rule": "mean", "federation.byzantine": 0.3}}},
            'variants."mine": federation.byzantine is an axis',
        ),
    ],
)
def test_a_mistake_is_told_by_name(changes, message):
    with pytest.raises(ConfigError) as error:
        read_sweep(merged(BASE, changes))
    assert message in str(error.value)
    assert "in the sweep:" in str(error.value)


def test_all_mistakes_are_told_at_once():
    changes = {"grid": {"data.alpha": [], "data.gama": [1]}, "sweep": {"rows": "x"}}
    with pytest.raises(ConfigError) as error:
        read_sweep(merged(BASE, changes))
    assert len(error.value.problems) == 2
    with pytest.raises(ConfigError, match="did you mean 'gamma'"):
        read_sweep(merged(BASE, {"grid": {"data.gama": [1]}}))


def test_a_key_that_is_none_is_all_that_is_told_of_its_axis():
    with pytest.raises(ConfigError) as error:
        read_sweep(merged(BASE, {"grid": {"training.nonsense": [1, 2]}}))
    assert all("unknown key" in problem for problem in error.value.problems)


def test_values_of_other_axes_differ_where_the_first_share_cannot_be_assumed():
    grid = {
        "federation.byzantine": [0.6, 0.2],
        "data.alpha": [1.0, 0.1],
        "attack": [{"name": "zero"}, {"name": "bomb"}],
    }
    assert len(list(read_sweep({**BASE, "grid": grid}).points())) == 8


def test_axes_may_be_dotted_or_nested_and_rules_have_parameters():
    nested = {"federation": {"byzantine": [0.1, 0.2]}, "rules": {"nnm+krum": {"m": [1, 2]}}}
    file = read_sweep({"experiment": {"rules": ["nnm+krum"]}, "grid": nested})
    assert [axis.key for axis in file.axes] == ["federation.byzantine", "rules.nnm+krum.m"]
    assert file.values_at((1, 1))["rules"] == {"nnm+krum": {"m": 2}}


def test_tables_are_laid_over_their_section_and_labels_are_for_people():
    grid = {"data": [{"label": "equal", "partition": "iid"}, {"partition": "extreme"}]}
    file = read_sweep({"data": {"name": "mnist-5k"}, "grid": grid})
    assert file.axes[0].labels == ("equal", "extreme")
    assert file.values_at((0,))["data"] == {"name": "mnist-5k", "partition": "iid"}


def test_the_adversary_chooses_from_attacks_and_the_rest_makes_cells():
    file = read_sweep(merged(BASE, {"grid": {"attack.voters": ["honest", "blank"]}}))
    assert [file.axes[i].key for i in file.worst] == ["attack", "attack.voters"]
    assert [file.axes[i].key for i in file.cell_axes] == ["federation.byzantine"]


def test_quick_is_laid_over_the_file_and_without_it_is_a_tenth_of_one_seed():
    quick = {"experiment": {"rounds": 3}, "grid": {"federation": {"byzantine": [0.3]}}}
    file = read_sweep({**BASE, "quick": quick}, quick=True)
    assert (file.base["experiment"]["rounds"], file.axes[0].values) == (3, (0.3,))
    assert read_sweep({**BASE, "quick": quick}).axes[0].values == (0.1, 0.2)
    plain = read_sweep(BASE, quick=True)
    assert (plain.base["experiment"]["rounds"], plain.seeds) == (10, [0])


def test_settings_reach_every_part_of_a_file():
    settings = ["experiment.rounds=7", "grid.federation.byzantine=[0.3]", "sweep.measure=best"]
    file = read_sweep(apply_sweep_settings(BASE, settings))
    assert file.base["experiment"]["rounds"] == 7
    assert file.axes[0].values == (0.3,)
    assert file.settings.measure == "best"


def test_settings_are_put_over_what_is_quick_too():
    quick = {"experiment": {"rounds": 3}, "grid": {"federation.byzantine": [0.3]}}
    settings = ["experiment.rounds=7", "grid.federation.byzantine=[0.4]"]
    file = read_sweep({**BASE, "quick": quick}, quick=True, settings=settings)
    assert (file.base["experiment"]["rounds"], file.axes[0].values) == (7, (0.4,))


@pytest.mark.parametrize("part", ["quick", "variants"])
def test_a_setting_that_would_not_be_heeded_is_refused(part):
    with pytest.raises(ConfigError, match=rf"\[{part}\] is changed in the file alone"):
        read_sweep({**BASE, part: {}}, settings=[f"{part}.experiment.rounds=3"])


def test_what_a_folder_keeps_reads_back_as_the_same_sweep():
    variants = {"mine": {"rule": "holdout", "vote.screen": False}}
    file = read_sweep({**BASE, "variants": variants, "sweep": {"measure": "best"}})
    again = read_sweep(file.as_dict())
    assert again == file
    assert again.contenders[-1].settings == {"vote": {"screen": False}}


@given(
    share=st.fractions(0, Fraction(49, 100), max_denominator=200),
    times=st.sampled_from(["0.5x", "1x", "2x", "1/3x"]),
)
def test_what_rules_assume_is_a_multiple_of_the_truth(share, times):
    grid = {"federation.byzantine": [str(share)], "federation.assumed_byzantine": [times]}
    file = read_sweep({"grid": grid})
    expected = share * Fraction(times.removesuffix("x"))
    if expected >= Fraction(1, 2):
        with pytest.raises(ConfigError) as error:
            file.values_at((0, 0))
        assert error.value.misfits == error.value.problems
    else:
        assumed = file.values_at((0, 0))["federation"]["assumed_byzantine"]
        assert read_share(assumed) == expected


@pytest.mark.parametrize(("given_", "told"), [({}, 0.2), ({"assumed_byzantine": 0.4}, 0.4)])
def test_rules_are_told_the_truth_unless_the_file_says_more(given_, told):
    file = read_sweep({"federation": given_, "grid": {"federation.byzantine": [0.2]}})
    assert parse(file.values_at((0,))).config.federation.f == Fraction(str(told))


def test_numbers_of_liars_are_multiplied_too():
    grid = {"federation": [{"workers": 20, "byzantine": 3, "assumed_byzantine": "0.5x"}]}
    assert read_sweep({"grid": grid}).values_at((0,))["federation"]["assumed_byzantine"] == 0.075
    grid = {"federation": [{"workers": 20, "byzantine": 3, "assumed_byzantine": "2x"}]}
    assert read_sweep({"grid": grid}).values_at((0,))["federation"]["assumed_byzantine"] == 6
