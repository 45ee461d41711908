"""`holdout simulate`: what it prints, how it ends, how a finding is replayed."""

import json
import shlex
from contextlib import nullcontext
from fractions import Fraction

import pytest
from tests.simulator.mutants import mutated

from holdout.commands import run_command
from holdout.errors import UserError
from holdout.experiments.simulate import make_plan, simulate
from holdout.simulator.adversaries_agreement import BEHAVIOURS
from holdout.simulator.faults import FaultKind, RunType

FOUR = ["--workers", "4", "--byzantine", "1"]


def test_a_batch_tells_what_it_did_and_ends_well(capsys):
    assert run_command(["simulate", "--seeds", "0..6", *FOUR]) == 0
    out, err = capsys.readouterr()
    assert "6 runs of 4 workers, up to 1 of them Byzantine" in out
    assert "4 for safety, 2 for liveness" in out
    assert "violations           none" in out
    assert "100 %  6 of 6 runs, violations: 0" in err


def test_json_is_one_document_with_the_promised_keys(capsys):
    assert run_command(["simulate", "--seeds", "3..6", *FOUR, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert list(document) == ["runs", "rounds", "periods_per_round", "violations"]
    assert document["runs"] == 3
    assert document["violations"] == []
    assert document["periods_per_round"] >= 1


def test_a_violation_is_an_exit_code_and_a_command_that_replays_it(capsys):
    with mutated("mine not persisted"):
        arguments = ["simulate", "--seeds", "0..2", *FOUR, "--faults", "loss", "--json"]
        assert run_command(arguments) == 1
        found = json.loads(capsys.readouterr().out)["violations"]
        assert [(item["seed"], item["invariant"]) for item in found] == [(0, "I6"), (1, "I6")]
        assert all(set(item) == {"seed", "invariant", "replay"} for item in found)
        program, *replay = shlex.split(found[0]["replay"])
        assert program == "holdout"
        assert run_command(replay) == 1
        out = capsys.readouterr().out
        assert "COMMITS r1" in out
        assert "I6 at" in out
    assert run_command(replay) == 0


def test_many_processes_find_what_one_does(monkeypatch):
    plan = make_plan(seeds=range(20), workers=4, byzantine=Fraction(1, 4), faults="loss,Z4")
    reports = []
    for cores in (1, 2):
        monkeypatch.setattr("os.cpu_count", lambda cores=cores: cores)
        reports.append(simulate(plan))
    assert reports[0] == reports[1]


def test_behaviours_can_be_named():
    plan = make_plan(seeds=range(1), workers=4, byzantine=1, faults="Z4,Z13,crashes")
    assert plan.trial.behaviours == ("Z4", "Z13")
    assert set(plan.trial.faults) == {FaultKind.LIARS, FaultKind.CRASHES}
    assert "Z4,Z13,crashes" in plan.replay(0)
    assert make_plan(seeds=range(1), workers=4, byzantine=1).trial.behaviours == tuple(BEHAVIOURS)


def test_the_type_of_runs_can_be_chosen():
    for run_type in RunType:
        plan = make_plan(seeds=range(3), workers=4, byzantine=1, run_type=run_type)
        assert [plan.trial.type_of(seed) for seed in plan.seeds] == [run_type] * 3
        assert f"--type {run_type}" in plan.replay(0)


def test_sizes_below_the_tables_are_said_at_the_start(capsys):
    arguments = ["--workers", "30", "--byzantine", "0.2", "--voters", "8", "--faults", "none"]
    assert run_command(["simulate", "--seeds", "0..1", *arguments]) == 0
    err = capsys.readouterr().err
    assert "note: sizes below the tables: voters = 8 (the tables ask for" in err
    assert "note: not guaranteed:" in err


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        (["--seeds", "5..5", *FOUR], "needs A < B"),
        (["--seeds", "9..5", *FOUR], "needs A < B"),
        (["--seeds", "0..2", "--workers", "6", "--byzantine", "2"], "n >= 3B + 1"),
        (["--seeds", "0..2", "--workers", "4", "--byzantine", "0.5"], "n >= 3B + 1"),
        (["--seeds", "0..2", *FOUR, "--mode", "self"], "mode self needs at least 50 workers"),
        (["--seeds", "0..2", *FOUR, "--mode", "shuffle"], "needs at least 50 workers"),
        (["--seeds", "0..2", *FOUR, "--faults", "gremlins"], "there is no fault 'gremlins'"),
        (["--seeds", "0..2", *FOUR, "--voters", "5"], "voters must be 1 to 4"),
        (["--seeds", "0..2", *FOUR, "--trace"], "--trace shows one run"),
        (["--seeds", "0..2", "--workers", "1", "--byzantine", "0"], "at least 2 workers"),
        (["--seeds", f"0..{10**20}", *FOUR], "seeds lie between"),
        (
            ["--seeds", "0..2", "--workers", "4", "--byzantine", f"0.{'3' * 20}"],
            "at most 18 digits",
        ),
    ],
)
def test_what_cannot_work_is_refused_with_the_reason(arguments, rule, capsys):
    assert run_command(["simulate", *arguments]) == 2
    assert rule in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["--seeds", "five..9", *FOUR],
        ["--seeds", "7", *FOUR],
        ["--seeds", "-3..9", *FOUR],
        ["--seed", "-1", *FOUR],
        ["--seed", "1", "--seeds", "0..3", *FOUR],
        [*FOUR],
        ["--seed", "1", *FOUR, "--rounds", "0"],
        ["--seed", "1", *FOUR, "--mode", "some"],
    ],
)
def test_what_does_not_read_is_refused(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        run_command(["simulate", *arguments])
    assert stopped.value.code == 2
    assert "usage: holdout simulate" in capsys.readouterr().err


def test_huge_seeds_are_refused():
    with pytest.raises(UserError, match="seeds lie between"):
        make_plan(seeds=range(1 << 70, (1 << 70) + 1), workers=4, byzantine=1)


def test_an_interrupted_batch_reports_the_runs_that_are_done(capsys, monkeypatch):
    def until_the_fourth(done, _total, _broken):
        if done == 4:
            raise KeyboardInterrupt

    plan = make_plan(seeds=range(9), workers=4, byzantine=1)
    report = simulate(plan, watch=until_the_fourth)
    assert (report.runs, report.is_complete) == (4, False)
    monkeypatch.setattr("holdout.terminal.counting", lambda _: nullcontext(until_the_fourth))
    assert run_command(["simulate", "--seeds", "0..9", *FOUR]) == 130
    said = capsys.readouterr()
    assert said.out.startswith("4 runs of 4 workers")
    assert "stopped after 4 of 9 runs" in said.err
