"""Measured results: the queue that makes them, the files that hold them, the pages they fill."""

import doctest
import fcntl
import json
import math
import re
import shlex
from dataclasses import replace
from pathlib import Path

import flower_attacks
import flower_clients
import paper_cells as cells
import paper_claims as claims
import paper_experiments as experiments
import paper_figures as figures
import paper_queue as work_queue
import paper_results as results
import paper_tables as tables
import pytest
import sweep_pages
from flwr.app import Array, ArrayRecord, ConfigRecord
from flwr.supercore.task_identity import TaskIdentity
from pydantic import ValidationError
from tests import tiny

from holdout.attacks import ATTACKS, BALLOT_ATTACKS
from holdout.config import apply_settings, parse, read_file
from holdout.results import LOCK
from holdout.voting import tolerated_count

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "results"
FILES = sorted(RESULTS.glob("*.json"))
PAGES = sorted(path.name for path in tables.TEXTS.glob("*.md"))
FINDINGS = ("paper.md", "robustness.md")
LINKED = re.compile(r"\]\(results/([\w-]+\.md)")
DECIMAL = re.compile(r"(?<![\w.])\d+\.\d+(?![\w.]*\d)")


@pytest.mark.parametrize("page", PAGES)
def test_a_page_holds_exactly_what_the_results_give(page):
    text = (RESULTS / page).read_text("utf-8")
    assert tables.page(page, tables.read_all()) == text


def test_every_page_of_results_is_generated():
    made_elsewhere = {flower_attacks.PAGE.name, *(f"{name}.md" for name in sweep_pages.TEXTS)}
    found = {path.name for path in RESULTS.rglob("*.md")}
    assert sorted(found - made_elsewhere) == PAGES


def test_the_page_on_flower_holds_exactly_what_its_lines_give():
    lines = flower_attacks.read(flower_attacks.LINES)
    assert flower_attacks.page(lines) == flower_attacks.PAGE.read_text("utf-8")


@pytest.mark.parametrize("setting", flower_attacks.SETTINGS)
@pytest.mark.parametrize("rule", flower_attacks.OF_PROPOSERS)
def test_rules_on_flower_that_get_the_proposers_alone_get_the_same_ones(monkeypatch, setting, rule):
    """And they are told as many liars as they can be told among so few."""
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    vote, other = (flower_clients.make_strategy(name, setting, 3) for name in ("holdout", rule))
    grid = flower_clients.Clients(setting, "equal", "none", 3, voters=list)
    start = ArrayRecord({"all": Array(flower_clients.first_weights(3).numpy())})
    for number in (1, 2):
        voters = setting.clients - setting.proposers
        asked = [
            len(list(strategy.configure_train(number, start, ConfigRecord(), grid)))
            for strategy in (vote, other)
        ]
        assert asked == [setting.clients, setting.proposers]
        assert len(vote._open.voters) == voters
        assert other._open.proposers == vote._open.proposers
    told = flower_clients.most_told(other.rule, setting.proposers, setting.liars)
    assert told in {setting.liars, 5, 4}
    assert tolerated_count(setting.proposers, other._exact_fraction()) == told


@pytest.mark.parametrize("name", sweep_pages.TEXTS)
def test_the_page_of_a_sweep_holds_exactly_what_its_table_gives(name):
    assert sweep_pages.page(name) == (RESULTS / f"{name}.md").read_text("utf-8")


def test_a_sweep_that_was_changed_or_has_failed_curves_is_not_published(tmp_path):
    kept = (sweep_pages.KEPT / "vote-family.toml").read_text("utf-8")
    for text in (kept.replace("rounds = 30", "rounds = 3"), kept):
        (tmp_path / "sweep.toml").write_text(text, "utf-8")
        (tmp_path / "failed.json").write_text("[]", "utf-8")
        with pytest.raises(SystemExit, match="another sweep" if text != kept else "are missing"):
            sweep_pages.keep(tmp_path)


@pytest.mark.parametrize("page", FINDINGS)
def test_numbers_of_the_findings_stand_in_the_tables_that_they_link_to(page):
    checked = 0
    for statement in statements((ROOT / "docs" / page).read_text("utf-8")):
        links = LINKED.findall(statement)
        if not links:
            continue
        cells = " ".join(
            line
            for name in links
            for line in (RESULTS / name).read_text("utf-8").splitlines()
            if line.startswith(("|", "#"))
        )
        known = set(DECIMAL.findall(cells))
        # Settings, not measurements: in code, or after the symbol that they are values of.
        prose = re.sub(r"`[^`]*`|[\wγ]+ = [\d.]+|\([^)]*#[^)]*\)", "", statement)
        numbers = DECIMAL.findall(prose)
        assert set(numbers) <= known, statement
        checked += len(numbers)
    assert checked > 20


@pytest.mark.parametrize("page", FINDINGS)
def test_a_measured_share_is_linked_to_its_table(page):
    for statement in statements((ROOT / "docs" / page).read_text("utf-8")):
        if re.search(r"\d\.\d+ %", statement):
            assert LINKED.search(statement), statement


def statements(text):
    """The paragraphs and list items of a page, its tables left out."""
    prose = re.sub(r"^\|.*\n", "", text, flags=re.MULTILINE)
    return re.split(r"\n\n|\n(?=- |\d+\. )", prose)


@pytest.mark.parametrize(
    "module", [experiments, work_queue, results, cells], ids=lambda m: m.__name__
)
def test_the_tools_examples_hold(module):
    assert doctest.testmod(module).failed == 0


def test_every_table_stands_on_one_page():
    texts = [(tables.TEXTS / page).read_text("utf-8") for page in PAGES]
    found = [match[1] for text in texts for match in tables.PLACE.finditer(text)]
    assert sorted(found) == sorted(tables.TABLES)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_a_results_file_is_what_the_tool_writes(path):
    found = results.read(path.stem)
    assert results.to_text(found.values()) == path.read_text("utf-8")


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_a_results_file_holds_experiments_of_the_table(path):
    for name, measured in results.read(path.stem).items():
        experiment = experiments.EXPERIMENTS[name]
        assert experiment.file == path.stem
        assert measured.command == experiment.command
        assert measured.rounds == experiment.rounds
        assert measured.environments
        keys = [(strand.rule, strand.seed) for strand in measured.strands]
        assert len(set(keys)) == len(keys)
        assert {rule for rule, _ in keys} <= set(experiment.rules)
        for strand in measured.strands:
            assert strand.rounds <= measured.rounds
            assert (strand.outcome == "completed") <= (strand.rounds == measured.rounds)
            assert strand.curve[-1][1] == strand.final_accuracy


def test_every_results_file_belongs_to_the_table():
    known = {experiment.file for experiment in experiments.EXPERIMENTS.values()}
    assert {path.stem for path in FILES} <= known


@pytest.mark.parametrize("experiment", experiments.EXPERIMENTS.values(), ids=lambda e: e.name)
def test_every_experiment_is_a_config(experiment, tmp_path):
    for rule in experiment.rules:
        config = parse(experiment.values(rule=rule, seed=3, data=tmp_path)).checked()
        assert list(config.experiment.rules) == [rule]
        assert list(config.experiment.seeds) == [3]
        assert config.experiment.rounds == experiment.rounds


def test_the_robustness_tables_cover_every_attack_and_ballot_of_the_library():
    assert sorted((*experiments.ATTACKS, *experiments.LATER_ATTACKS)) == sorted(ATTACKS)
    assert sorted(("coalition", *experiments.BALLOTS)) == sorted(BALLOT_ATTACKS)


def test_the_queue_brings_every_experiment_to_its_end():
    ends = {(step.experiment.name, step.rule) for step in experiments.queue() if not step.until}
    assert ends == {(e.name, rule) for e in experiments.EXPERIMENTS.values() for rule in e.rules}


TINY = (
    *("experiment.rounds=6", "experiment.evaluate_every=2", "data.name=npz"),
    *("data.samples_per_worker=30", "training.batch_size=8", "vote.samples=10"),
    *("federation.workers=10", "federation.proposers=4", "federation.voters=4"),
)


@pytest.fixture
def data(tmp_path):
    """A folder in which a tiny data set stands under its name, as `mnist` does among real ones."""
    tiny.write_data(tmp_path).rename(tmp_path / "npz")
    return tmp_path


@pytest.fixture
def experiment():
    return experiments.Experiment("tiny", "tiny", "mnist-any", TINY, ("mean", "holdout"))


def lines(folder):
    return [
        {key: value for key, value in json.loads(line).items() if key != "seconds"}
        for line in work_queue.read_lines(folder)
    ]


def test_a_curve_stopped_on_the_way_goes_on_to_the_same_rounds(experiment, data, tmp_path, capsys):
    whole = experiments.Step(experiment, "holdout", 0)
    half = experiments.Step(experiment, "holdout", 0, until=4)
    assert work_queue.work([whole], data=data, runs=tmp_path / "a") == []
    assert work_queue.work([half], data=data, runs=tmp_path / "b") == []
    assert len(lines(half.folder(tmp_path / "b"))) == 4
    assert work_queue.work([half, whole], data=data, runs=tmp_path / "b") == []
    assert lines(whole.folder(tmp_path / "b")) == lines(whole.folder(tmp_path / "a"))
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_a_curve_that_is_done_is_not_run_again(experiment, data, tmp_path, capsys):
    step = experiments.Step(experiment, "mean", 0)
    work_queue.work([step, step], data=data, runs=tmp_path / "a")
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_a_curve_that_another_process_runs_is_left_to_it(experiment, data, tmp_path, capsys):
    half = experiments.Step(experiment, "mean", 0, until=2)
    work_queue.work([half], data=data, runs=tmp_path / "a")
    with (half.folder(tmp_path / "a") / LOCK).open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        whole = experiments.Step(experiment, "mean", 0)
        assert work_queue.work([whole], data=data, runs=tmp_path / "a") == []
    assert len(lines(half.folder(tmp_path / "a"))) == 2
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_a_damaged_run_folder_is_told_and_the_others_go_on(experiment, data, tmp_path, capsys):
    broken = experiments.Step(experiment, "mean", 0)
    folder = broken.folder(tmp_path / "a")
    folder.mkdir(parents=True)
    (folder / "notes.txt").write_text("mine")
    other = experiments.Step(experiment, "mean", 1)
    (failure,) = work_queue.work([broken, other], data=data, runs=tmp_path / "a")
    assert "not empty" in failure
    assert len(lines(other.folder(tmp_path / "a"))) == 6
    assert failure in capsys.readouterr().out


def test_what_is_collected_is_what_the_rounds_say(experiment, data, tmp_path):
    steps = [experiments.Step(experiment, rule, 0) for rule in experiment.rules]
    work_queue.work(steps, data=data, runs=tmp_path / "a")
    measured = results.collect(experiment, tmp_path / "a")
    assert [(s.rule, s.seed, s.rounds, s.outcome) for s in measured.strands] == [
        ("mean", 0, 6, "completed"),
        ("holdout", 0, 6, "completed"),
    ]
    rounds = lines(steps[1].folder(tmp_path / "a"))
    strand = measured.strands[1]
    assert strand.final_accuracy == round(rounds[-1]["accuracy"], 4)
    assert strand.byzantine_accepted_per_round == round(
        sum(line["byzantine_selected"] for line in rounds) / 6, 4
    )
    # Four proposers and f = 0.33: a full ballot names three.
    assert strand.overflow_rounds == sum(line["byzantine_proposers"] > 1 for line in rounds)
    assert [number for number, _ in strand.curve] == [2, 4, 6]
    assert measured.environments[0]["threads"] == 1


def test_what_is_published_stays_unless_it_was_run_as_far_again(experiment):
    def measured(*strands, torch="1"):
        found = {"name": "tiny", "command": experiment.command, "rounds": 100}
        return results.Measured(**found, environments=[{"torch": torch}], strands=list(strands))

    def strand(rule, seed, rounds, accuracy):
        return strand_of(a_round(rounds, accuracy, rule=rule, seed=seed))

    old = measured(strand("holdout", 0, 100, 0.1), strand("holdout", 1, 50, 0.2))
    new = measured(
        strand("mean", 0, 100, 0.3),
        strand("holdout", 0, 50, 0.4),
        strand("holdout", 1, 100, 0.5),
        torch="2",
    )
    found = results.merged(experiment, old, new)
    assert [(s.rule, s.seed, s.final_accuracy) for s in found.strands] == [
        ("mean", 0, 0.3),
        ("holdout", 0, 0.1),
        ("holdout", 1, 0.5),
    ]
    assert found.environments == [{"torch": "1"}, {"torch": "2"}]
    assert results.merged(experiment, old, None) is old
    assert results.merged(experiment, None, new) is new


def test_results_of_other_settings_are_not_mixed(experiment):
    old = results.Measured(name="x", command="y", rounds=100, environments=[], strands=[])
    with pytest.raises(SystemExit, match="other settings"):
        results.merged(experiment, old, old)


def test_an_experiment_without_rounds_gives_nothing(experiment, tmp_path):
    assert results.collect(experiment, tmp_path) is None


def a_round(number, accuracy, **changes):
    return {
        "rule": "holdout",
        "attack": "alie",
        "seed": 0,
        "round": number,
        "accuracy": accuracy,
        "worst_class_recall": accuracy,
        "gamma": 1.0,
        "byzantine_selected": 1,
        "byzantine_proposers": 9,
        "outcome": "step",
        **changes,
    }


def test_the_lowest_accuracy_leaves_the_first_twenty_rounds_out():
    config = parse({"experiment": {"rounds": 40}}).checked()
    accuracies = {10: 0.1, 20: 0.2, 30: 0.8, 40: 0.7}
    found = results.summarise([a_round(*item) for item in accuracies.items()], config)
    assert found.lowest_after_20 == 0.7
    assert found.outcome == "completed"


def test_rounds_without_a_step_are_empty_and_diverging_ends_a_strand():
    config = parse({"experiment": {"rounds": 40}}).checked()
    rounds = [
        a_round(1, None, outcome="empty-selection", byzantine_proposers=10),
        a_round(2, 0.5),
        a_round(3, None, outcome="diverged", gamma=None),
    ]
    found = results.summarise(rounds, config)
    assert (found.empty_rounds, found.outcome, found.rounds) == (1, "diverged", 3)
    assert (found.overflow_rounds, found.lowest_after_20, found.final_accuracy) == (1, None, 0.5)


def test_a_strand_that_was_never_evaluated_is_none():
    config = parse({}).checked()
    assert results.summarise([a_round(1, None)], config) is None


@pytest.mark.parametrize(
    "change",
    [{"more": 1}, {"final_accuracy": 1.5}, {"seed": "0"}, {"outcome": "fine"}],
    ids=["unknown key", "no share", "text for a number", "unknown word"],
)
def test_a_results_file_is_read_strictly(change, tmp_path):
    config = parse({}).checked()
    strand = results.summarise([a_round(100, 0.5)], config)
    head = {"name": "x", "command": "y", "rounds": 100, "environments": []}
    content = {"schema": 1, "experiments": [{**head, "strands": [strand.model_dump()]}]}
    path = tmp_path / "x.json"
    path.write_text(json.dumps(content))
    assert results.read("x", tmp_path)["x"].strands == [strand]
    content["experiments"][0]["strands"][0] |= change
    path.write_text(json.dumps(content))
    with pytest.raises(ValidationError):
        results.read("x", tmp_path)


def test_a_drop_is_taken_from_the_same_seed_without_attack():
    config = parse({}).checked()

    def strand(seed, accuracy):
        return results.summarise([a_round(100, accuracy, seed=seed)], config)

    calm = [strand(0, 0.9), strand(1, 0.8)]
    assert cells.drops([strand(1, 0.7), strand(2, 0.1)], calm) == pytest.approx([10.0])


def test_unfinished_strands_stay_out_of_the_tables():
    config = parse({}).checked()
    strands = [
        results.summarise([a_round(number, 0.5, seed=number)], config) for number in (95, 100)
    ]
    measured = results.Measured(name="x", command="y", rounds=100, environments=[], strands=strands)
    assert [s.seed for s in cells.strands({"x": measured}, "x", "holdout")] == [100]


def strand_of(*rounds, planned=100):
    return results.summarise(list(rounds), parse({"experiment": {"rounds": planned}}).checked())


def measured_of(*strands):
    return results.Measured(
        name="x", command="y", rounds=100, environments=[], strands=list(strands)
    )


def test_a_seed_that_diverged_early_counts_as_the_lowest_and_is_marked():
    stood = strand_of(a_round(10, 0.2), a_round(50, 0.6), a_round(100, 0.9))
    fell = strand_of(a_round(5, 0.1, seed=1), a_round(6, None, seed=1, outcome="diverged"))
    assert cells.lowest([stood]) == "60.0"
    assert cells.lowest([stood, fell]) == "10.0 †"
    assert cells.lowest([]) == "–"


def test_only_rounds_after_a_divergence_are_marked():
    stood = strand_of(a_round(80, 0.5), a_round(100, 0.6))
    fell = strand_of(a_round(80, 0.3, seed=1), a_round(81, None, seed=1, outcome="diverged"))
    row = claims.cifar10_row([stood, fell], [80, 100])
    assert row[:4] == ["2", "81–100", "40.0 ± 14.1", "45.0 ± 21.2 †"]


def test_a_loss_is_a_share_of_what_the_same_setting_gives_without_liars():
    """At the end, and in brackets over the last five points."""
    calm = strand_of(*(a_round(n, 0.8, rule="mean", attack="none") for n in range(10, 101, 10)))
    lied = strand_of(
        *(a_round(n, 0.4 if n < 100 else 0.6, rule="holdout-1") for n in range(10, 101, 10))
    )
    other = strand_of(a_round(100, 0.1, rule="mean", attack="none"))
    text = claims.cifar10_claims(
        {
            "cifar10-none": measured_of(calm),
            "cifar10-all": measured_of(lied),
            "mnist-left": measured_of(other),
        }
    )
    assert "HoldOut (first vote) 25.0 (45.0)" in text


def test_the_odds_beside_the_draws_are_those_of_counting_one_by_one():
    draws = math.comb(100, 12)
    chances = [
        sum(math.comb(33, x) * math.comb(67, 12 - x) for x in range(least, 13)) / draws
        for least in (9, 7)
    ]
    last = claims.overflow({}).splitlines()[-1]
    assert last.endswith(f"| {100 * chances[0]:.2f} % | {100 * chances[1]:.2f} % |")


def test_rules_that_end_above_holdout_1_are_named_with_their_lead():
    strands = [
        strand_of(a_round(100, accuracy, rule=rule))
        for rule, accuracy in (("mean", 0.502), ("krum", 0.6), ("median", 0.4), ("holdout-1", 0.5))
    ]
    rows = tables._above({"robustness-ipm": measured_of(*strands)}).splitlines()
    assert "| `ipm` | Krum +10.0 | – | – |" in rows


def test_a_figure_shows_unfinished_seeds_only_where_no_other_is():
    whole = strand_of(a_round(50, 0.5), a_round(100, 0.6))
    half = strand_of(a_round(50, 0.1, seed=1))
    parts = {"x": ["holdout"]}
    (curve,) = figures.curves({"x": measured_of(whole, half)}, parts)
    assert list(curve.seeds) == [0]
    (curve,) = figures.curves({"x": measured_of(half)}, parts)
    assert list(curve.seeds) == [1]


def test_a_seed_that_diverged_stays_part_of_the_mean_that_is_drawn():
    stood = strand_of(a_round(5, 0.2), a_round(50, 0.6), a_round(100, 0.9))
    fell = strand_of(a_round(5, 0.1, seed=1), a_round(6, None, seed=1, outcome="diverged"))
    (curve,) = figures.curves({"x": measured_of(stood, fell)}, {"x": ["holdout"]})
    line = curve.line("accuracy", scale=1.0)
    assert line.rounds == (5, 50, 100)
    assert line.mean == pytest.approx((0.15, 0.35, 0.5))


def test_run_folders_from_before_there_was_a_setting_are_published(experiment, data, tmp_path):
    work_queue.work([experiments.Step(experiment, "mean", 0)], data=data, runs=tmp_path)
    whole = results.collect(experiment, tmp_path)
    path = experiments.Step(experiment, "mean", 0).folder(tmp_path) / "config.toml"
    path.write_text(path.read_text("utf-8").replace("save_every = 0\n", ""), "utf-8")
    assert "save_every" not in path.read_text("utf-8")
    assert results.collect(experiment, tmp_path) == whole
    # What is measured before round 1 is no part of what is published.
    assert all(number > 0 for strand in whole.strands for number, _ in strand.curve)


def test_run_folders_of_other_settings_are_not_published(experiment, data, tmp_path):
    work_queue.work([experiments.Step(experiment, "mean", 0)], data=data, runs=tmp_path / "a")
    assert results.collect(experiment, tmp_path / "a")
    changed = replace(experiment, settings=(*TINY, "vote.samples=11"))
    with pytest.raises(SystemExit, match="other settings"):
        results.collect(changed, tmp_path / "a")


@pytest.mark.parametrize("experiment", experiments.EXPERIMENTS.values(), ids=lambda e: e.name)
def test_the_command_of_an_experiment_runs_its_rules(experiment):
    holdout, run, panel, *sets = shlex.split(experiment.command)
    assert (holdout, run, set(sets[::2])) == ("holdout", "run", {"--set"})
    values = apply_settings(read_file(ROOT / panel), sets[1::2])
    assert tuple(values["experiment"]["rules"]) == experiment.rules
    assert values["experiment"]["rounds"] == experiment.rounds


def test_options_that_the_whole_queue_would_ignore_are_refused(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["q", "--data", "d", "--runs", "r", "--seeds", "1"])
    with pytest.raises(SystemExit):
        work_queue.main()
    assert "need names" in capsys.readouterr().err
