"""The strategies as a user of `FedAvg` meets them: arguments, evaluation, draws, records."""

import inspect
import json
import math
import re

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp.strategy import FedAvg
from tests.flower.flower_grid import FakeGrid, SilentError, arrays, as_node, client_app, weights

from holdout.errors import ConfigError, InfeasibleError, MisuseError, RunFolderError
from holdout.experiments.curves import final_table
from holdout.experiments.report import write_report
from holdout.flower import HoldOut, Robust, vote_mod
from holdout.results import read_run
from holdout.rules import PRE_AGGREGATIONS, RULES
from holdout.rules.rule import custom_rule

ALONE = [name for name, rule in RULES.items() if rule.needs_updates_alone]


def honest():
    return as_node(client_app(1.0, mods=[vote_mod]))


def federation(count: int = 10) -> FakeGrid:
    return FakeGrid({100 + node: honest() for node in range(count)})


def silent(_message):
    raise SilentError


def holdout(**changes) -> HoldOut:
    settings = {"num_proposers": 5, "num_voters": 5, "seed": 1, "vote_timeout": 0.3}
    return HoldOut(**{**settings, "propose_timeout": 0.3, **changes})


def sent(grid: FakeGrid, kind: str) -> list[int]:
    return [m.metadata.dst_node_id for m in grid.sent if m.metadata.message_type == kind]


def test_every_argument_of_fedavg_is_taken_in_its_place():
    wanted = list(inspect.signature(FedAvg).parameters)
    for strategy in (HoldOut, Robust):
        assert list(inspect.signature(strategy).parameters)[: len(wanted)] == wanted


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_proposers": 5, "fraction_train": 0.5}, "must not be given"),
        ({"num_proposers": 5, "min_train_nodes": 3}, "must not be given"),
        ({"num_proposers": 0}, "num_proposers = 0: must be a whole number, 1 or more"),
        ({"num_voters": 2.5}, "num_voters = 2.5"),
        ({"holdout_samples": 0}, "holdout_samples = 0"),
        ({"min_ballots": 0}, "min_ballots = 0"),
        ({"num_voters": 3, "min_ballots": 4}, "at most num_voters = 3"),
        ({"byzantine_fraction": 0.5}, "below 1/2"),
        ({"byzantine_fraction": 3}, "below 1/2"),
        ({"byzantine_fraction": "a third"}, "byzantine_fraction = 'a third'"),
        ({"propose_timeout": 0}, "propose_timeout = 0"),
        ({"vote_timeout": math.inf}, "vote_timeout = inf"),
        ({"connect_timeout": math.nan}, "connect_timeout = nan"),
        ({"seed": -1}, "seed = -1"),
        ({"rule": "krum"}, 'rule = \'krum\': with ballots = "joint" must be "holdout"$'),
        ({"rule": ["holdout-1"]}, r"rule = \['holdout-1'\]: with ballots"),
        ({"rule": "holdout-central"}, 'must be "holdout"$'),
        ({"rule": "holdout-1", "ballots": "joint"}, 'must be "holdout"$'),
        (
            {"rule": "holdout", "ballots": "approvals"},
            'with ballots = "approvals" must be "holdout-1" or "holdout-paper"$',
        ),
        ({"ballots": "secret"}, 'ballots = \'secret\': must be "joint" or "approvals"'),
        ({"ballots": ["joint"]}, r"ballots = \['joint'\]: must be"),
        ({"vote_step": 0.1}, 'vote_step has no effect on joint ballots; give ballots="approvals"'),
        ({"holdout_samples": 9}, "holdout_samples has no effect on joint ballots"),
        ({"ballots": "approvals", "vote_step": 0}, "vote_step = 0: must be a number above 0"),
        ({"ballots": "approvals", "vote_step": 1.5}, "at most 1"),
        ({"ballots": "approvals", "vote_step": "short"}, "vote_step = 'short'"),
        ({"trained": "*lora*"}, r"trained = '\*lora\*': must be a list of names"),
        ({"buffers": [3]}, r"buffers = \[3\]: must be a list of names"),
        ({"fraction_train": 1.0}, "nobody would be left to vote"),
        ({"fraction_train": "half"}, "fraction_train = 'half': must be a number from 0 to 1"),
        ({"fraction_train": math.nan}, "fraction_train = nan: must be a number from 0 to 1"),
        ({"fraction_train": -0.5}, "fraction_train = -0.5"),
        ({"fraction_evaluate": 2}, "fraction_evaluate = 2: must be a number from 0 to 1"),
        ({"fraction_evaluate": None}, "fraction_evaluate = None"),
        ({"fraction_evaluate": True}, "fraction_evaluate = True"),
        ({"min_train_nodes": 0}, "min_train_nodes = 0: must be a whole number, 1 or more"),
        ({"min_evaluate_nodes": -1}, "min_evaluate_nodes = -1: must be a whole number, 0 or more"),
        ({"min_available_nodes": "all"}, "min_available_nodes = 'all'"),
        ({"min_available_nodes": None}, "min_available_nodes = None"),
        ({"weighted_by_key": 3}, "weighted_by_key = 3: must be a text"),
        ({"arrayrecord_key": ""}, "arrayrecord_key = '': must be a text that is not empty"),
        ({"arrayrecord_key": "config"}, "must differ"),
        ({"train_metrics_aggr_fn": 3}, "train_metrics_aggr_fn = 3: must be a function"),
        ({"propose_timeout": "long"}, "propose_timeout = 'long': must be a positive number"),
        ({"vote_timeout": None}, "vote_timeout = None: must be a positive number"),
        ({"grace_time": "short"}, "grace_time = 'short'"),
        ({"ballots": "approvals", "vote_step": True}, "vote_step = True"),
        ({"run_folder": 3}, "run_folder = 3: must be a text"),
        ({"run_folder": ""}, "run_folder = ''"),
        ({"name": None}, "name = None: must be a text"),
        ({"attack": 3}, "attack = 3: must be a text"),
    ],
)
def test_a_mistake_in_the_arguments_is_a_clear_error(settings, message):
    with pytest.raises(ConfigError, match=message):
        HoldOut(**settings)


def test_who_trains_nobody_may_say_so_as_with_fedavg():
    strategy = HoldOut(fraction_train=0.0, min_train_nodes=0)
    assert strategy.start(federation(), arrays(0.0), num_rounds=1).rounds == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"grid": None}, "grid = None: must be the Grid"),
        ({"grid": arrays(0.0), "initial_arrays": federation()}, "grid = <ArrayRecord>"),
        ({"initial_arrays": {"w": torch.zeros(3)}}, "initial_arrays = <dict>: must be an Array"),
        ({"initial_arrays": [np.zeros(3)]}, "initial_arrays = <list>"),
        ({"initial_arrays": None}, "initial_arrays: needed"),
        ({"num_rounds": -1}, "num_rounds = -1: must be a whole number, 0 or more"),
        ({"num_rounds": 2.5}, "num_rounds = 2.5"),
        ({"num_rounds": "3"}, "num_rounds = '3'"),
        ({"timeout": None}, "timeout = None: must be a positive number of seconds"),
        ({"timeout": 0}, "timeout = 0"),
        ({"train_config": {"lr": 0.1}}, "train_config = <dict>: must be a ConfigRecord"),
        ({"evaluate_config": {"lr": 0.1}}, "evaluate_config = <dict>"),
        ({"evaluate_fn": 3}, "evaluate_fn = 3: must be a function"),
    ],
)
def test_a_mistake_in_what_start_is_given_is_a_clear_error(given, message):
    usual = {"grid": federation(), "initial_arrays": arrays(0.0), "num_rounds": 1}
    with pytest.raises(ConfigError, match=re.escape(message)):
        holdout().start(**{**usual, **given})


@pytest.mark.parametrize("returned", [0.5, (0.5, {"accuracy": 0.9})])
def test_an_evaluation_that_returns_no_metrics_is_named(returned):
    with pytest.raises(MisuseError, match=r"evaluate_fn .* must return a MetricRecord or None"):
        holdout().start(federation(), arrays(0.0), num_rounds=1, evaluate_fn=lambda *_: returned)


@pytest.mark.parametrize("strategy", [HoldOut, Robust])
def test_an_unknown_argument_is_named(strategy):
    with pytest.raises(TypeError, match="unexpected keyword argument 'num_voterss'"):
        strategy(num_voterss=3)


def test_all_mistakes_are_told_at_once():
    with pytest.raises(ConfigError) as caught:
        HoldOut(num_proposers=0, num_voters=0, byzantine_fraction=0.7)
    assert len(caught.value.problems) == 3
    assert str(caught.value).startswith("3 mistakes in the strategy's arguments:")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rule": "kruhm"}, "must be one of mean, median"),
        ({"rule": None}, "rule = None: must be one of mean, median"),
        ({"rule": ["krum"]}, r"rule = \['krum'\]: must be one of mean, median"),
        ({"rule": "krum", "num_proposers": 4}, "krum needs n > 2f"),
        ({"rule": "bulyan", "num_proposers": 10}, "bulyan needs"),
        (
            {"rule": "nmn+krum"},
            'must be one of .*, with "nnm\\+" or "clipping\\+" or "bucketing\\+" or "arc\\+" in ',
        ),
        ({"rule": "nnm+krum", "num_proposers": 4}, "krum needs n > 2f"),
        ({"rule": "fltrust"}, "rule = 'fltrust': asks the server's own rows or voters, which"),
        ({"rule": "nnm+flshield"}, "asks the server's own rows or voters, which"),
    ],
)
def test_a_rule_that_cannot_work_is_refused_before_the_first_round(settings, message):
    with pytest.raises(ConfigError, match=message):
        Robust(**settings)


@pytest.mark.parametrize("rule", [*ALONE, *(f"{pre}+krum" for pre in PRE_AGGREGATIONS)])
def test_every_rule_runs_a_federation(rule):
    strategy = Robust(rule=rule, byzantine_fraction=0.2, seed=0, fraction_evaluate=0.0)
    # Of 14 updates 7 buckets are left, as many as Krum needs with two liars.
    members = 14 if rule == "bucketing+krum" else 12
    grid = federation(members)
    result = strategy.start(grid, arrays(0.0), num_rounds=2)
    assert np.allclose(weights(result.arrays), 0.75, atol=1e-4)
    assert len(sent(grid, "train")) == 2 * members


def test_a_rule_on_flower_keeps_its_state_from_round_to_round(monkeypatch):
    seen = []

    def counting(updates, *, f, context):
        del f
        seen.append((context.round_number, {k: v.tolist() for k, v in context.state.items()}))
        context.state["count"] = context.state.get("count", torch.zeros(1)) + 1
        return updates.mean(dim=0)

    table = {**RULES, "counting": custom_rule(counting, "counting")}
    monkeypatch.setattr("holdout.flower.robust.find_rule", table.get)
    strategy = Robust(rule="counting", byzantine_fraction=0.2, seed=0, fraction_evaluate=0.0)
    for _ in range(2):
        seen.clear()
        strategy.start(federation(12), arrays(0.0), num_rounds=3)
        assert seen == [(1, {}), (2, {"count": [1.0]}), (3, {"count": [2.0]})]


def test_a_rule_that_is_infeasible_with_who_answered_keeps_the_model():
    grid = federation(7)
    strategy = Robust(
        rule="krum", seed=0, byzantine_fraction=0.3, propose_timeout=0.2, fraction_evaluate=0.0
    )
    for node in (100, 101, 102):
        grid.nodes[node] = silent
    result = strategy.start(grid, arrays(0.0), num_rounds=1)
    assert result.train_metrics_clientapp[1]["holdout-step"] == 0
    assert np.allclose(weights(result.arrays), 0.0)


def test_proposers_and_voters_are_disjoint_and_drawn_anew_each_round():
    grid = federation(12)
    strategy = holdout(fraction_evaluate=0.0)
    strategy.start(grid, arrays(0.0), num_rounds=4)
    lines = strategy._recorder.lines
    for line in lines:
        assert len(line["proposers"]) == len(line["voters"]) == 5
        assert not set(line["proposers"]) & set(line["voters"])
    assert len({tuple(line["proposers"]) for line in lines}) == 4


def test_the_same_seed_draws_the_same_and_no_seed_draws_another_time_another():
    def draws(**changes):
        strategy = holdout(fraction_evaluate=0.0, **changes)
        strategy.start(federation(12), arrays(0.0), num_rounds=3)
        return [(line["proposers"], line["voters"]) for line in strategy._recorder.lines]

    assert draws() == draws()
    assert draws(seed=None) != draws(seed=None)


def test_without_numbers_half_of_the_nodes_propose_and_half_vote():
    grid = federation(9)
    strategy = HoldOut(seed=1, fraction_evaluate=0.0)
    strategy.start(grid, arrays(0.0), num_rounds=1)
    (line,) = strategy._recorder.lines
    assert (len(line["proposers"]), len(line["voters"])) == (4, 4)


def test_fedavg_s_own_words_say_how_many_propose():
    strategy = HoldOut(fraction_train=0.3, min_train_nodes=2, num_voters=4, seed=1)
    strategy.start(federation(10), arrays(0.0), num_rounds=1)
    (line,) = strategy._recorder.lines
    assert (len(line["proposers"]), len(line["voters"])) == (3, 4)


def test_a_fraction_of_zero_trains_nobody_as_in_fedavg():
    grid = federation(6)
    result = HoldOut(fraction_train=0.0, seed=1).start(grid, arrays(0.5), num_rounds=1)
    assert sent(grid, "train") == []
    assert result.evaluate_metrics_clientapp[1]["eval_acc"] == 0.5


def test_the_train_message_is_the_plain_one():
    grid = federation(10)
    config = ConfigRecord({"lr": 0.1})
    holdout().start(grid, arrays(0.0), num_rounds=1, train_config=config)
    first = next(m for m in grid.sent if m.metadata.message_type == "train")
    assert list(first.content) == ["arrays", "config"]
    assert dict(first.content["config"]) == {"lr": 0.1, "server-round": 1}


def test_what_fedavg_users_rely_on_stays():
    """Given start, federated and central evaluation, custom metric functions."""
    grid = federation(10)
    seen = []

    def evaluate_fn(server_round, record):
        seen.append((server_round, float(weights(record)[0])))
        return MetricRecord({"accuracy": 0.1 * server_round})

    strategy = holdout(
        train_metrics_aggr_fn=lambda contents, key: MetricRecord(
            {"examples": sum(c["metrics"][key] for c in contents)}
        ),
        evaluate_metrics_aggr_fn=lambda contents, _key: MetricRecord({"answers": len(contents)}),
    )
    result = strategy.start(grid, arrays(0.2), num_rounds=2, evaluate_fn=evaluate_fn)
    assert seen == [(0, pytest.approx(0.2)), (1, pytest.approx(0.6)), (2, pytest.approx(0.8))]
    assert result.train_metrics_clientapp[1]["examples"] == 100  # Voters train too.
    assert result.evaluate_metrics_clientapp[2]["answers"] == 10
    assert result.evaluate_metrics_serverapp[2]["accuracy"] == 0.2


def test_the_keys_of_records_can_be_chosen():
    def node(message):
        # The same client, behind a translation of names.
        ours = client_app(1.0, mods=[vote_mod])
        if "vote" in message.content:
            return as_node(ours)(message)
        message.content["arrays"] = message.content["model"]
        reply = as_node(ours)(message)
        if "arrays" in reply.content:
            reply.content["model"] = reply.content["arrays"]
            del reply.content["arrays"]
        return reply

    strategy = holdout(arrayrecord_key="model", configrecord_key="settings", fraction_evaluate=0.0)
    grid = FakeGrid(dict.fromkeys(range(1, 11), node))
    result = strategy.start(grid, arrays(0.0), num_rounds=1)
    metrics = result.train_metrics_clientapp[1]
    assert metrics["holdout-proposals-accepted"] == 5
    assert all("settings" in m.content for m in grid.sent)


def test_federated_evaluation_asks_the_share_that_was_given():
    grid = federation(10)
    holdout(fraction_evaluate=0.4).start(grid, arrays(0.0), num_rounds=1)
    plain = [m for m in grid.sent if m.metadata.message_type == "evaluate"]
    assert len([m for m in plain if "vote" not in m.content]) == 4


def test_a_liar_in_federated_evaluation_is_left_out():
    grid = federation(10)

    def lie(message):
        if message.metadata.message_type == "evaluate" and "vote" not in message.content:
            raise ValueError("I do not evaluate")
        return honest()(message)

    grid.nodes[103] = lie
    result = holdout().start(grid, arrays(0.0), num_rounds=1)
    assert result.evaluate_metrics_clientapp[1]["eval_acc"] == 0.5


def test_the_result_holds_the_start_if_no_round_made_a_step():
    grid = FakeGrid(dict.fromkeys(range(10), silent))
    strategy = holdout(propose_timeout=0.05, fraction_evaluate=0.0)
    result = strategy.start(grid, arrays(0.3), num_rounds=1)
    assert np.allclose(weights(result.arrays), 0.3)
    assert result.train_metrics_clientapp[1]["holdout-proposals-rejected-missing"] == 5


def test_too_few_nodes_are_waited_for_and_then_a_clear_error():
    strategy = holdout(connect_timeout=0.1)
    with pytest.raises(InfeasibleError, match="round 1: 5 nodes are needed; 4 were connected"):
        strategy.start(federation(4), arrays(0.0), num_rounds=1)


def test_a_node_that_was_silent_twice_is_left_out_of_the_next_rounds():
    grid = federation(12)
    grid.nodes[104] = silent
    strategy = holdout(
        num_proposers=6, num_voters=5, propose_timeout=0.1, vote_timeout=0.1, fraction_evaluate=0.0
    )
    result = strategy.start(grid, arrays(0.0), num_rounds=8)
    lines = strategy._recorder.lines
    drawn = [line["round"] for line in lines if 4 in [*line["proposers"], *line["voters"]]]
    assert len(drawn) <= 3
    left_out = [line["left_out"] for line in lines]
    assert max(left_out) == 1
    assert all(m["holdout-step"] == 1 for m in result.train_metrics_clientapp.values())


def test_a_strategy_can_be_started_again_from_the_beginning():
    strategy = holdout(fraction_evaluate=0.0)
    runs = [strategy.start(federation(10), arrays(0.0), num_rounds=2) for _ in range(2)]
    assert np.array_equal(weights(runs[0].arrays), weights(runs[1].arrays))


def test_the_paper_s_rule_takes_updates_as_they_are_and_the_first_vote_bounds_them():
    radii = {}
    for rule in ("holdout-1", "holdout-paper"):
        strategy = holdout(rule=rule, fraction_evaluate=0.0)
        strategy.start(federation(10), arrays(0.0), num_rounds=2)
        radii[rule] = [line["radius"] for line in strategy._recorder.lines]
    # Half of the way to 1 in 15 dimensions; the next half may only shrink by a third.
    first = 0.5 * math.sqrt(15)
    assert radii["holdout-1"] == [pytest.approx(first), pytest.approx(first / 1.5)]
    assert radii["holdout-paper"] == [None, None]


def test_a_bounded_liar_of_perfect_direction_moves_the_model_no_further_than_others():
    """Its length is cut before anybody scores it, so its candidate is as good as the others'."""
    grid = federation(10)
    strategy = holdout(fraction_evaluate=0.0)
    asked = strategy.configure_train(1, arrays(0.0), ConfigRecord(), grid)
    grid.nodes[asked[0].metadata.dst_node_id] = as_node(client_app(1e6))
    replies = grid.send_and_receive(asked)
    current, _ = strategy.aggregate_train(1, replies)
    assert np.allclose(weights(current), 0.5, atol=1e-3)


def test_a_run_folder_is_written_that_holdout_report_draws(tmp_path):
    folder = tmp_path / "run"
    strategy = holdout(
        run_folder=folder,
        name="our-federation",
        attack="crashes",
        ballots="approvals",
        holdout_samples=7,
    )
    grid = federation(10)
    grid.nodes[103] = lambda _: 1 / 0
    strategy.start(
        grid, arrays(0.0), num_rounds=3, evaluate_fn=lambda n, _: MetricRecord({"accuracy": n / 10})
    )
    run = read_run(folder)
    assert [line["accuracy"] for line in run.rows] == [0.1, 0.2, 0.3]
    assert run.config["federation"] == {
        "mode": "flower",
        "assumed_byzantine": 0.33,
        "proposers": 5,
        "voters": 5,
    }
    assert run.config["vote"]["samples"] == 7
    for line in run.rows:
        phases = line["phase_seconds"]
        assert set(phases) == {"wait", "propose", "vote", "decide"}
        assert line["seconds"] == pytest.approx(sum(phases.values()), abs=1e-4)
        assert line["byzantine_selected"] is None
    summary = json.loads((folder / "summary.json").read_text("utf-8"))
    assert summary["curves"][0]["final_accuracy"] == 0.3
    assert summary["environment"]["flwr"]
    assert json.loads((folder / "nodes.json").read_text("utf-8"))["3"] == "103"
    page = write_report(folder).read_text("utf-8")
    assert "our-federation" in page
    assert "Under crashes, HoldOut (first vote) ends at 30.0" in page
    assert "rejected: error" in page
    (row,) = final_table(run.rows)
    assert (row.label, row.accuracy) == ("HoldOut (first vote)", 0.3)


def test_a_run_that_stops_keeps_what_was_done(tmp_path):
    strategy = holdout(run_folder=tmp_path / "run")

    def evaluate_fn(server_round, _record):
        if server_round == 2:
            raise KeyboardInterrupt
        return MetricRecord({"accuracy": 0.5})

    with pytest.raises(KeyboardInterrupt):
        strategy.start(federation(10), arrays(0.0), num_rounds=3, evaluate_fn=evaluate_fn)
    assert [line["round"] for line in read_run(tmp_path / "run").rows] == [1, 2]
    write_report(tmp_path / "run")


def test_a_taken_run_folder_is_refused_before_any_work(tmp_path):
    (tmp_path / "mine.txt").write_text("keep", "utf-8")
    grid = federation(10)
    with pytest.raises(
        RunFolderError, match=r"not empty; choose another run_folder, or go on .*res"
    ):
        holdout(run_folder=tmp_path).start(grid, arrays(0.0), num_rounds=1)
    assert grid.sent == []


def test_without_a_central_evaluation_the_federated_one_is_recorded():
    strategy = holdout()
    strategy.start(federation(10), arrays(0.0), num_rounds=1)
    (line,) = strategy._recorder.lines
    assert (line["accuracy"], line["loss"]) == (0.5, 0.25)


def test_the_summary_names_the_rule_and_the_committee(caplog):
    with caplog.at_level("INFO", logger="flwr"):
        holdout().start(federation(10), arrays(0.0), num_rounds=1)
    assert "Rule: holdout" in caplog.text
    assert "Proposers: 5; voters: 5" in caplog.text
    assert "5 of 5 ballots valid" in caplog.text


def test_models_of_other_widths_are_trained_too():
    half = ArrayRecord([np.zeros((3, 2), np.float16), np.zeros(3, np.float64)])
    result = holdout(fraction_evaluate=0.0).start(federation(10), half, num_rounds=1)
    assert [array.dtype for array in result.arrays.values()] == ["float16", "float64"]
    assert np.allclose(weights(result.arrays), 0.5)
