"""A run that stops goes on from its folder, to the byte as if it had never stopped."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from flwr.app import MetricRecord
from tests.flower.flower_grid import (
    FakeGrid,
    SilentError,
    arrays,
    as_node,
    client_app,
    weights,
)

from holdout.errors import ConfigError, RunFolderError
from holdout.experiments.report import write_report
from holdout.flower import HoldOut, Robust, vote_mod
from holdout.flower.run_result import HISTORIES
from holdout.results import CHECKPOINT, ROUNDS, read_run
from holdout.rules import RULES
from holdout.rules.rule import custom_rule

TIMES = ("seconds", "phase_seconds")


def federation() -> FakeGrid:
    """Twelve nodes that pull into different directions; one never trains."""
    nodes = {2**63 + 7 * n: as_node(client_app(1 + n / 50, mods=[vote_mod])) for n in range(12)}

    def votes_only(message):
        if message.metadata.message_type == "train":
            raise SilentError
        return as_node(client_app(1.0, mods=[vote_mod]))(message)

    nodes[2**63 + 7 * 3] = votes_only
    return FakeGrid(nodes)


def holdout(folder, **changes) -> HoldOut:
    settings = {"num_proposers": 6, "num_voters": 5, "byzantine_fraction": "1/3"}
    return HoldOut(**settings, seed=5, run_folder=folder, grace_time=0.05, **changes)


def evaluate_fn(number, record):
    return MetricRecord({"accuracy": float(weights(record)[0]) / (1 + number)})


def lines(folder):
    rows = [json.loads(line) for line in (folder / ROUNDS).read_text("utf-8").splitlines()]
    return [{key: value for key, value in row.items() if key not in TIMES} for row in rows]


def histories(result):
    def timeless(record):
        return {k: v for k, v in record.items() if not k.startswith("holdout-seconds")}

    return {
        name: {number: timeless(record) for number, record in getattr(result, name).items()}
        for name in HISTORIES
    }


def stopping(last):
    """A central evaluation during which the server is interrupted."""

    def evaluate(number, record):
        if number == last:
            raise KeyboardInterrupt
        return evaluate_fn(number, record)

    return evaluate


def test_a_run_that_was_stopped_equals_one_that_never_was_to_the_byte(tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    expected = holdout(whole).start(
        federation(), arrays(0.0), num_rounds=9, evaluate_fn=evaluate_fn
    )
    with pytest.raises(KeyboardInterrupt):
        holdout(parts).start(federation(), arrays(0.0), num_rounds=9, evaluate_fn=stopping(4))
    with pytest.raises(KeyboardInterrupt):
        HoldOut.resume(parts).start(federation(), evaluate_fn=stopping(7))
    strategy = HoldOut.resume(parts)
    assert strategy.byzantine_fraction == holdout(None).byzantine_fraction
    result = strategy.start(federation(), evaluate_fn=evaluate_fn)
    assert result.rounds == 9
    assert max(line["left_out"] for line in lines(whole)) == 1
    assert lines(parts) == lines(whole)
    assert {k: v.data for k, v in result.arrays.items()} == {
        k: v.data for k, v in expected.arrays.items()
    }
    assert histories(result) == histories(expected)
    for name in ("config.toml", "nodes.json"):
        assert (parts / name).read_bytes() == (whole / name).read_bytes()
    assert [row["round"] for row in read_run(parts).rows] == list(range(1, 10))
    write_report(parts)


def test_fewer_rounds_than_were_planned_do_not_change_the_plan(tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    holdout(whole).start(federation(), arrays(0.0), num_rounds=5)
    with pytest.raises(KeyboardInterrupt):
        holdout(parts).start(federation(), arrays(0.0), num_rounds=5, evaluate_fn=stopping(2))
    assert HoldOut.resume(parts).start(federation(), num_rounds=3).rounds == 3
    assert HoldOut.resume(parts).start(federation(), num_rounds=2).rounds == 3
    assert HoldOut.resume(parts).start(federation()).rounds == 5
    assert (parts / "config.toml").read_bytes() == (whole / "config.toml").read_bytes()


def test_arrays_that_a_resumed_run_does_not_use_are_named(tmp_path, caplog):
    holdout(tmp_path).start(federation(), arrays(0.0), num_rounds=2)
    with caplog.at_level("WARNING", logger="flwr"):
        result = HoldOut.resume(tmp_path).start(federation(), arrays(9.0))
    assert "initial_arrays are not used" in caplog.text
    assert weights(result.arrays).max() < 2


def test_more_rounds_than_were_planned_can_follow(tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    holdout(whole).start(federation(), arrays(0.0), num_rounds=5)
    holdout(parts).start(federation(), arrays(0.0), num_rounds=3)
    assert HoldOut.resume(parts).start(federation()).rounds == 3
    result = HoldOut.resume(parts).start(federation(), num_rounds=5)
    assert result.rounds == 5
    assert lines(parts) == lines(whole)
    assert (parts / "config.toml").read_bytes() == (whole / "config.toml").read_bytes()


def test_a_run_that_ended_for_want_of_nodes_goes_on_when_they_are_back(tmp_path):
    grid = federation()
    everybody = dict(grid.nodes)

    def leave(number, _record):
        if number == 2:
            grid.nodes = dict(list(everybody.items())[:2])

    ended = holdout(tmp_path / "run", connect_timeout=0.05).start(
        grid, arrays(0.0), num_rounds=4, evaluate_fn=leave
    )
    assert ended.rounds == 2
    assert "nodes are needed" in ended.reason
    result = HoldOut.resume(tmp_path / "run").start(federation())
    assert (result.rounds, result.reason) == (4, "")


def test_what_a_rule_keeps_is_kept(tmp_path, monkeypatch):
    seen = []

    def counting(updates, *, f, context):
        del f
        count = context.state.get("a count/of rounds", torch.zeros(2, dtype=torch.float64))
        seen.append((int(context.round_number), count.tolist()))
        context.state["a count/of rounds"] = count + 1 / 3
        return updates.mean(dim=0)

    table = {**RULES, "counting": custom_rule(counting, "counting")}
    monkeypatch.setattr("holdout.flower.robust.find_rule", table.get)
    strategy = Robust(rule="counting", seed=0, run_folder=tmp_path / "run", grace_time=0.05)
    grid = FakeGrid(dict.fromkeys(range(1, 7), as_node(client_app(1.0, mods=[vote_mod]))))
    strategy.start(grid, arrays(0.0), num_rounds=2)
    Robust.resume(tmp_path / "run").start(grid, num_rounds=3)
    third = 1 / 3
    assert seen == [(1, [0, 0]), (2, [third] * 2), (3, [third + third] * 2)]


def test_arguments_that_cannot_be_written_down_must_be_given_again(tmp_path):
    def first(contents, _key):
        return MetricRecord({"answers": len(contents)})

    holdout(tmp_path / "run", train_metrics_aggr_fn=first).start(
        federation(), arrays(0.0), num_rounds=1
    )
    with pytest.raises(ConfigError, match="train_metrics_aggr_fn: was given to the run"):
        HoldOut.resume(tmp_path / "run")
    with pytest.raises(ConfigError, match="the run is one of HoldOut, not of Robust"):
        Robust.resume(tmp_path / "run", train_metrics_aggr_fn=first)
    strategy = HoldOut.resume(tmp_path / "run", train_metrics_aggr_fn=first, vote_timeout=7.0)
    assert strategy.vote_timeout == 7.0
    result = strategy.start(federation(), num_rounds=2)
    assert result.train_metrics_clientapp[2]["answers"] >= 5


def test_a_folder_that_holds_no_such_run_is_refused(tmp_path):
    with pytest.raises(RunFolderError, match="no checkpoint"):
        HoldOut.resume(tmp_path)
    holdout(tmp_path / "run").start(federation(), arrays(0.0), num_rounds=1)
    file = tmp_path / "run" / CHECKPOINT
    good = file.read_bytes()
    for bad in (good[:-1], b"", good.replace(b"round", b"r0und")):
        file.write_bytes(bad)
        with pytest.raises(RunFolderError, match="damaged"):
            HoldOut.resume(tmp_path / "run")
    file.write_bytes(good)
    (tmp_path / "run" / ROUNDS).write_text("{}\n", "utf-8")
    with pytest.raises(RunFolderError, match="does not match"):
        HoldOut.resume(tmp_path / "run").start(federation(), num_rounds=2)


def test_another_process_can_read_the_checkpoint_without_unpickling(tmp_path):
    holdout(tmp_path / "run").start(federation(), arrays(0.0), num_rounds=1)
    code = (
        "import sys, pickle; pickle.Unpickler = pickle.loads = pickle.load = None\n"
        "from holdout.flower import HoldOut\n"
        f"strategy = HoldOut.resume({str(tmp_path / 'run')!r})\n"
        "print(strategy.seed, strategy._saved.round, sorted(strategy._saved.arrays))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.split("\n")[0] == "5 1 ['bias', 'weight']"


def test_the_model_of_each_round_is_there_if_the_server_dies_at_once(tmp_path):
    """Whatever ends the process: after each round the folder holds what was reached."""
    rounds = []

    def look(number, record):
        rounds.append(number)
        if number >= 2:
            saved = HoldOut.resume(tmp_path / "run")._saved
            assert saved.round == number - 1
            assert not np.array_equal(weights(saved.arrays), weights(record))

    holdout(tmp_path / "run").start(federation(), arrays(0.0), num_rounds=3, evaluate_fn=look)
    assert rounds == [0, 1, 2, 3]
