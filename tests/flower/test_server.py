"""A server that nothing takes down: members leave, stall, forge, or answer nothing usable."""

import logging
from fractions import Fraction

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from hypothesis import given
from hypothesis import strategies as st
from tests.flower.flower_grid import (
    FakeGrid,
    SilentError,
    WatchedGrid,
    arrays,
    as_node,
    client_app,
    context,
    train_reply,
    weights,
)

from holdout.errors import ConfigError, InfeasibleError
from holdout.flower import HoldOut, Robust, vote_mod
from holdout.flower.base import CLOCK_ERROR_MAX
from holdout.flower.committee_sizes import RISK_MAX, risk, shrink
from holdout.flower.exchange import GRACE_LEAST, Patience, exchange, late_members
from holdout.flower.open_round import DrawSizes

HOUR = 3600.0


def honest():
    return as_node(client_app(1.0, mods=[vote_mod]))


def federation(count: int = 10) -> FakeGrid:
    return FakeGrid({100 + node: honest() for node in range(count)})


def silent(_message):
    raise SilentError


def holdout(**changes) -> HoldOut:
    settings = {"num_proposers": 5, "num_voters": 5, "seed": 1, "fraction_evaluate": 0.0}
    settings["ballots"] = "approvals"
    return HoldOut(**{**settings, "connect_timeout": 0.05, **changes})


# Members leave.


class Leaving(FakeGrid):
    """Some nodes are gone once the model has been trained in so many rounds."""

    def __init__(self, nodes, gone: dict[int, list[int]]):
        super().__init__(nodes)
        self.gone = gone

    def get_node_ids(self):
        rounds = {m.metadata.group_id for m in self.sent if m.metadata.message_type == "train"}
        return [n for n in self.nodes if n not in self.gone.get(len(rounds), [])]


@pytest.mark.parametrize("connected", [0, 1, 2])
def test_who_has_too_few_nodes_is_told_how_many_are_enough(connected):
    strategy = HoldOut(connect_timeout=0.0001, seed=1, fraction_evaluate=0.0)
    with pytest.raises(InfeasibleError, match=f"3 nodes are needed; {connected} were connected"):
        strategy.start(federation(connected), arrays(0.0), num_rounds=1)
    result = strategy.start(federation(3), arrays(0.0), num_rounds=1)
    assert result.train_metrics_clientapp[1]["holdout-step"] == 1


def test_with_fewer_nodes_the_committee_shrinks_and_the_run_goes_on(caplog):
    grid = Leaving(federation(10).nodes, {1: [100, 101], 2: [100, 101, 102, 103]})
    with caplog.at_level("WARNING", logger="flwr"):
        result = holdout().start(grid, arrays(0.0), num_rounds=4)
    assert (result.rounds, result.reason) == (4, "")
    sizes = [
        (m["holdout-committee"], m["holdout-committee-asked-for"])
        for m in result.train_metrics_clientapp.values()
    ]
    assert sizes == [(10, 10), (8, 10), (6, 10), (10, 10)]
    assert (
        "round 2: 3 proposers and 5 voters in place of 5 and 5, since only 8 nodes can be drawn"
        in (caplog.text)
    )


@pytest.mark.parametrize("left", [3, 4])
def test_below_the_minimum_the_round_waits_and_the_run_ends_with_its_model(caplog, left):
    """Where one of four may lie, no committee keeps the risk of a majority of liars low enough."""
    grid = Leaving(federation(10).nodes, {2: list(range(100, 110 - left))})
    strategy = holdout()
    with caplog.at_level("ERROR", logger="flwr"):
        result = strategy.start(grid, arrays(0.0), num_rounds=9)
    assert result.rounds == 2
    assert np.allclose(weights(result.arrays), 0.75)
    expected = f"round 3: 5 nodes are needed; {left} were connected after waiting 0.05 s"
    assert expected in result.reason
    assert result.reason in caplog.text
    assert "Ended after round 2" in repr(result)
    assert sorted(result.train_metrics_clientapp) == [1, 2]


def test_nodes_that_come_back_in_time_are_waited_for():
    calls = iter(range(10**9))
    grid = federation(10)
    everybody = list(grid.nodes)
    grid.get_node_ids = lambda: everybody if next(calls) > 5 else everybody[:3]
    result = holdout(connect_timeout=60).start(grid, arrays(0.0), num_rounds=2)
    assert (result.rounds, result.reason) == (2, "")
    assert result.train_metrics_clientapp[1]["holdout-committee"] == 10


def test_a_node_that_is_connected_but_silent_is_no_reason_to_wait():
    """Six nodes, all of them drawn: who rests is left out, and the committee shrinks."""
    grid = federation(6)
    grid.nodes[103] = silent
    strategy = HoldOut(
        seed=1, propose_timeout=0.05, vote_timeout=0.05, fraction_evaluate=0.0, min_ballots=2
    )
    result = strategy.start(grid, arrays(0.0), num_rounds=5)
    drawn = [m["holdout-committee"] for m in result.train_metrics_clientapp.values()]
    assert drawn[0] == 6
    assert 5 in drawn
    assert result.rounds == 5


def test_a_rule_shrinks_as_long_as_it_can_work():
    nodes = federation(9).nodes
    strategy = Robust(
        rule="krum",
        num_proposers=9,
        byzantine_fraction=0.2,
        seed=1,
        fraction_evaluate=0.0,
        connect_timeout=0.05,
    )
    grid = Leaving(nodes, {1: list(range(100, 104)), 2: list(range(100, 107))})
    result = strategy.start(grid, arrays(0.0), num_rounds=5)
    assert result.rounds == 2
    assert result.train_metrics_clientapp[2]["holdout-committee"] == 5
    assert "round 3: 3 nodes are needed; 2 were connected" in result.reason


@given(
    st.integers(1, 40),
    st.integers(1, 40),
    st.integers(2, 100),
    st.fractions("0", "0.49"),
    st.integers(0, 30),
)
def test_a_shrunk_committee_is_one_that_the_plan_allows(proposers, voters, nodes, f, more):
    asked, least = DrawSizes(proposers, voters), DrawSizes(min(2, proposers), 1)
    most = nodes + more
    found = shrink(asked, nodes=nodes, most=most, f=f, least=least)
    if sum(asked) <= nodes:
        assert found == asked
        return
    whole = max(most, sum(asked))
    accepted = max(RISK_MAX, risk(voters, nodes=whole, most=whole, f=f))
    allowed = [
        v
        for v in range(1, voters + 1)
        if least.proposers <= nodes - v <= proposers
        and risk(v, nodes=nodes, most=whole, f=f) <= accepted
    ]
    assert (found is None) == (not allowed)
    if found is not None:
        assert found.voters in allowed
        assert sum(found) == nodes


# A trained model is never raised away.


def test_an_evaluation_that_fails_later_ends_the_run_with_the_model():
    def evaluate_fn(number, _arrays):
        if number == 2:
            raise ZeroDivisionError("no test data")
        return MetricRecord({"accuracy": 0.5})

    result = holdout().start(federation(), arrays(0.0), num_rounds=5, evaluate_fn=evaluate_fn)
    assert (result.rounds, result.reason) == (2, "ZeroDivisionError: no test data")
    assert np.allclose(weights(result.arrays), 0.75)


def test_before_the_first_round_a_mistake_is_raised():
    def evaluate_fn(_number, _arrays):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        holdout().start(federation(), arrays(0.0), evaluate_fn=evaluate_fn)
    with pytest.raises(InfeasibleError):
        holdout().start(federation(2), arrays(0.0))
    with pytest.raises(ConfigError, match="initial_arrays: needed"):
        holdout().start(federation())
    with pytest.raises(ConfigError, match="timeout = 0"):
        holdout().start(federation(), arrays(0.0), timeout=0)


# Replies are bound to the question and the node that they were pulled for.


def test_a_forged_reply_that_names_an_honest_node_is_counted_against_nobody_honest(caplog):
    """A liar answers its own question, but signs as its neighbour, who was asked another."""
    grid = federation(10)
    forger = 104

    def forge(message):
        reply = train_reply(message, arrays(9.0))
        others = [m for m in grid.sent if m.metadata.dst_node_id != forger]
        if others:
            reply.metadata.__dict__["_src_node_id"] = others[-1].metadata.dst_node_id
            reply.metadata.__dict__["_reply_to_message_id"] = others[-1].metadata.message_id
        else:
            reply.metadata.__dict__["_src_node_id"] = 105
        return reply

    grid.nodes[forger] = forge
    with caplog.at_level("WARNING", logger="flwr"):
        result = holdout(min_ballots=1).start(grid, arrays(0.0), num_rounds=6)
    refused = [r.getMessage() for r in caplog.records if "rejected" in r.msg]
    assert refused
    assert all(f"of node {forger} rejected: forged" in line for line in refused)
    assert all(m["holdout-step"] == 1 for m in result.train_metrics_clientapp.values())


def test_nobody_can_name_a_question_that_another_node_was_asked():
    """Equal in all that others know, two questions still have different ids."""
    strategy = holdout()
    made = [strategy._ask(RecordDict(), 7, "train", 1) for _ in range(3)]
    for message in made:
        message.metadata.created_at = 1e9
    assert len({message.object_id for message in made}) == 3


def test_messages_that_the_user_rebuilds_are_matched():
    class Mine(HoldOut):
        def configure_train(self, server_round, arrays, config, grid):
            for message in super().configure_train(server_round, arrays, config, grid):
                content = RecordDict({"arrays": arrays, "config": ConfigRecord({"mine": 1})})
                yield Message(
                    content, dst_node_id=message.metadata.dst_node_id, message_type="train"
                )

    strategy = Mine(num_proposers=5, num_voters=5, seed=1, fraction_evaluate=0.0)
    result = strategy.start(federation(), arrays(0.0), num_rounds=1)
    assert result.train_metrics_clientapp[1]["holdout-proposals-accepted"] == 5
    assert result.train_metrics_clientapp[1]["holdout-step"] == 1


# Stalling.


@given(st.integers(1, 60), st.fractions("0", "0.49"))
def test_those_who_are_on_time_always_have_an_honest_majority(asked, f):
    """Even if everybody who is late is honest; and no more are late than may lie."""
    late, liars = late_members(asked, f), int(f * asked)
    assert 0 <= late <= liars
    assert late == 0 or 2 * liars < asked - late


@given(
    st.lists(st.tuples(st.integers(0, 9), st.floats(0, 100)), min_size=1, max_size=20),
    st.integers(0, 9),
    st.one_of(st.none(), st.floats(0.1, 50)),
)
def test_a_phase_never_ends_earlier_than_a_grace_time_after_enough_have_answered(
    steps, late, grace
):
    patience = Patience(began=0.0, last=1000.0, late=late, grace=grace)
    now, enough = 0.0, None
    for pending, passed in steps:
        now += passed
        if pending <= late and enough is None:
            enough = now
        end = patience.deadline(pending, now)
        if enough is None:
            assert end == 1000.0
        else:
            waits = max(GRACE_LEAST, enough) if grace is None else grace
            assert end == min(1000.0, enough + waits)


def test_one_silent_node_of_nine_costs_a_grace_time_and_not_the_whole_phase():
    """The time limits are an hour: only the grace time can end the phases of this test."""
    grid = federation(18)
    strategy = HoldOut(
        num_proposers=9,
        num_voters=9,
        seed=1,
        byzantine_fraction="1/3",
        propose_timeout=HOUR,
        vote_timeout=HOUR,
        grace_time=0.05,
    )
    grid.nodes[104] = silent
    result = strategy.start(grid, arrays(0.0), num_rounds=2)
    assert result.rounds == 2
    assert all(m["holdout-step"] == 1 for m in result.train_metrics_clientapp.values())


def test_fast_liars_do_not_crowd_out_a_slow_honest_node():
    """Everybody else has answered long ago; the slow one is still waited for."""
    grid = FakeGrid(dict.fromkeys(range(1, 10), lambda m: train_reply(m, arrays(0.0))))
    pull, seen = grid.pull_messages, set()

    def slowly(identifiers):
        seen.update(identifiers)
        if identifiers == ["message-9"] and len(seen) < 9:
            return []
        return pull(identifiers)

    grid.pull_messages = slowly
    messages = [
        Message(RecordDict({"arrays": arrays()}), dst_node_id=node, message_type="train")
        for node in grid.nodes
    ]
    replies = exchange(grid, messages, timeout=HOUR, late=late_members(9, Fraction(1, 3)))
    assert len(replies) == 9


@pytest.mark.parametrize("ballots", ["joint", "approvals"])
def test_every_phase_asks_so_many_nodes_at_once(ballots):
    grid = WatchedGrid(federation(10).nodes, wanted=3)
    strategy = holdout(ballots=ballots, nodes_at_once=3, fraction_evaluate=1.0)
    (metrics,) = strategy.start(grid, arrays(0.0), num_rounds=1).train_metrics_clientapp.values()
    asked = [message.metadata.message_type for message in grid.sent]
    assert (metrics["holdout-step"], metrics["holdout-ballots-accepted"]) == (1, 5)
    assert asked.count("train") == (10 if ballots == "joint" else 5)
    assert grid.most == 3


def test_the_timeout_of_start_bounds_every_phase():
    """Silent voters, and time limits of an hour: only the timeout of `start` can end this test."""
    grid = federation(10)

    def trains_only(message):
        return honest()(message) if message.metadata.message_type == "train" else silent(message)

    grid.nodes = dict.fromkeys(grid.nodes, trains_only)
    strategy = HoldOut(
        ballots="approvals",
        num_proposers=5,
        num_voters=5,
        seed=1,
        vote_timeout=HOUR,
        propose_timeout=HOUR,
    )
    result = strategy.start(grid, arrays(0.0), num_rounds=1, timeout=0.2)
    assert result.train_metrics_clientapp[1]["holdout-ballots-rejected-missing"] == 5


def test_nodes_that_vote_but_never_train_are_left_out():
    grid = federation(12)

    def votes_only(message):
        return silent(message) if message.metadata.message_type == "train" else honest()(message)

    grid.nodes[104] = votes_only
    strategy = HoldOut(
        ballots="approvals",
        num_proposers=6,
        num_voters=5,
        seed=6,
        grace_time=0.05,
        fraction_evaluate=0.0,
    )
    strategy.start(grid, arrays(0.0), num_rounds=10)
    lines = strategy._recorder.lines
    trained = [line["round"] for line in lines if 4 in line["proposers"]]
    # It voted in between, and that did not help it.
    between = lines[trained[0] : trained[1] - 1]
    assert any(4 in line["voters"] for line in between)
    assert [line["left_out"] for line in between] == [0] * len(between)
    assert lines[trained[1] - 1]["left_out"] == 1


def test_a_message_outlives_every_clock_that_is_wrong_by_a_day():
    grid = federation()
    holdout(propose_timeout=5).start(grid, arrays(0.0), num_rounds=1)
    assert {m.metadata.message_type for m in grid.sent} >= {"train", "evaluate"}
    for message in grid.sent:
        assert message.metadata.ttl >= CLOCK_ERROR_MAX + 5


def test_a_client_whose_clock_is_hours_ahead_can_answer(monkeypatch):
    """The lifetime of a reply is what is left of its question's, by the client's clock."""
    grid = federation()
    (asked, *_) = holdout(propose_timeout=5).configure_train(1, arrays(0.0), ConfigRecord(), grid)
    asked.metadata.created_at -= 14 * HOUR
    assert Message(RecordDict(), reply_to=asked).metadata.ttl > 0


# Loud where nothing works.


def broken_client(**functions) -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message, _context):
        return functions["train"](message)

    if "vote" in functions:

        @app.evaluate("vote")
        def vote(message, _context):
            return functions["vote"](message)

    @app.evaluate()
    def evaluate(message, _context):
        return Message(
            RecordDict({"m": MetricRecord({"loss": float(weights(message.content["arrays"])[0])})}),
            reply_to=message,
        )

    return app


def run_with(app, caplog, **changes):
    grid = FakeGrid(dict.fromkeys(range(1, 11), lambda m: app(m, context())))
    with caplog.at_level(logging.ERROR, logger="flwr"):
        result = holdout(**changes).start(grid, arrays(0.0), num_rounds=20)
    return result, [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]


def test_after_two_rounds_the_log_says_what_the_first_client_said_and_what_was_expected(caplog):
    def train(_message):
        raise FileNotFoundError("data/part-3.csv")

    result, errors = run_with(broken_client(train=train), caplog)
    assert "no proposal could be used in the last 2 rounds" in errors[0]
    assert "data/part-3.csv" in errors[0]
    assert "weight float32 (3, 4), bias float32 (3,)" in errors[0]
    assert result.rounds == 5
    assert "data/part-3.csv" in result.reason
    assert len(errors) == 5


def test_what_came_is_told_where_the_client_said_nothing(caplog):
    def train(message):
        return train_reply(message, ArrayRecord({"w": Array(np.zeros(3, np.float32))}))

    result, errors = run_with(broken_client(train=train), caplog, max_failed_rounds=1)
    assert "malformed: it holds 'arrays' (w float32 (3,))" in errors[0]
    assert result.rounds == 1


def test_a_client_s_own_message_is_not_hidden_by_a_second_question(caplog):
    def train(message):
        return train_reply(message, arrays(0.5))

    def vote(_message):
        raise RuntimeError("CUDA out of memory")

    result, errors = run_with(broken_client(train=train, vote=vote), caplog)
    assert "no ballot could be used" in errors[0]
    assert "CUDA out of memory" in errors[0]
    assert "KeyError" not in errors[0]
    assert "CUDA out of memory" in result.reason


def test_a_client_that_does_not_vote_is_told_how_to(caplog):
    def train(message):
        return train_reply(message, arrays(0.5))

    _, errors = run_with(broken_client(train=train), caplog)
    assert "ClientApp(mods=[vote_mod])" in errors[0]


def test_one_usable_reply_is_enough_to_go_on(caplog):
    grid = FakeGrid(dict.fromkeys(range(1, 11), lambda _: 1 / 0))
    grid.nodes[4] = honest()
    strategy = Robust(rule="mean", seed=1, fraction_evaluate=0.0)
    with caplog.at_level(logging.ERROR, logger="flwr"):
        result = strategy.start(grid, arrays(0.0), num_rounds=8)
    assert (result.rounds, result.reason) == (8, "")
    assert not [record for record in caplog.records if record.levelno == logging.ERROR]


def test_the_only_record_of_arrays_may_have_any_name():
    def node(message):
        if message.metadata.message_type == "train":
            return Message(RecordDict({"my_weights": arrays(0.5)}), reply_to=message)
        return honest()(message)

    grid = FakeGrid(dict.fromkeys(range(1, 11), node))
    result = holdout().start(grid, arrays(0.0), num_rounds=1)
    assert np.allclose(weights(result.arrays), 0.5)


def test_a_seed_that_was_given_is_said_to_repeat_the_committees(caplog):
    with caplog.at_level("INFO", logger="flwr"):
        strategy = holdout(seed=None)
        strategy.start(federation(), arrays(0.0), num_rounds=1)
        assert "draws the same committees" not in caplog.text
        strategy.start(federation(), arrays(0.0), num_rounds=1)
        assert "draws the same committees" in caplog.text
        caplog.clear()
        holdout(seed=4).start(federation(), arrays(0.0), num_rounds=1)
    assert "Seed: 4, given: each run with it draws the same committees" in caplog.text
