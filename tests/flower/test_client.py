"""The voter's side: an ordinary evaluation that votes, and the batched fast path."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from tests.flower.flower_grid import FakeGrid, arrays, as_node, client_app, context, weights
from torch import nn
from torch.nn.functional import cross_entropy

from holdout.errors import ModelError, UserError
from holdout.flower import HoldOut, VoteMod, vote, vote_mod
from holdout.flower.arrays import Layout
from holdout.flower.vote_messages import VoteCall
from holdout.voting import Terms


def model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))


def samples(count: int = 40) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(count, 4, generator=generator)
    return x, torch.randint(0, 3, (count,), generator=generator)


def vote_message(record: ArrayRecord, candidates: int = 6, **changes) -> Message:
    """A vote on models around this one, each with different noise."""
    layout = Layout.of(record)
    current = layout.flatten(record)
    generator = torch.Generator().manual_seed(7)
    noise = torch.randn(candidates, len(current), generator=generator)
    call = VoteCall(
        **{
            "layout": layout,
            "stacked": torch.cat([current[None], current + 0.5 * noise]).numpy(),
            "terms": Terms(Fraction(1, 3)),
            "round": 2,
            "holdout_samples": None,
            "others": layout.others(record),
            "config": ConfigRecord({"mine": 5}),
            "array_key": "arrays",
            "config_key": "config",
            **changes,
        }
    )
    return Message(call.content(), dst_node_id=77, message_type="evaluate.vote")


def evaluating_app(net: nn.Module, x, y, *, seen=None, mods=(vote_mod,), **names) -> ClientApp:
    app = ClientApp(mods=list(mods))
    loss_name = names.get("loss", "eval_loss")

    @app.evaluate("vote")
    @app.evaluate()
    def evaluate(message, _context):
        if seen is not None:
            seen.append(message)
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())
        with torch.no_grad():
            loss = cross_entropy(net(x), y).item()
        metrics = MetricRecord({loss_name: loss, "num-examples": len(x)})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def approved(reply: Message) -> list[int]:
    return reply.content["ballot"]["approved"]


def test_the_mod_and_the_fast_path_cast_the_same_ballot():
    net, (x, y) = model(), samples()
    message = vote_message(ArrayRecord(net.state_dict()))
    slow = evaluating_app(model(), x, y)(message, context())
    assert approved(vote(message, model=net, x=x, y=y)) == approved(slow)
    assert 0 < len(approved(slow)) <= 4


def test_the_fast_path_judges_by_the_loss_that_is_named():
    net, (x, _) = model(), samples()
    outputs = net(x).shape[1]
    y = torch.randn(len(x), outputs, generator=torch.Generator().manual_seed(3))
    app = ClientApp(mods=[vote_mod])
    judged = model()

    @app.evaluate("vote")
    def evaluate(message, _context):
        judged.load_state_dict(message.content["arrays"].to_torch_state_dict())
        with torch.no_grad():
            loss = torch.nn.functional.mse_loss(judged(x), y).item()
        metrics = MetricRecord({"loss": loss, "num-examples": len(x)})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    message = vote_message(ArrayRecord(net.state_dict()))
    fast = approved(vote(message, model=net, x=x, y=y, loss="mse"))
    assert fast == approved(app(message, context()))


def test_the_mod_asks_once_for_the_current_model_and_once_for_each_candidate():
    net, (x, y) = model(), samples()
    seen: list[Message] = []
    message = vote_message(ArrayRecord(net.state_dict()), holdout_samples=9)
    evaluating_app(model(), x, y, seen=seen)(message, context())
    assert len(seen) == 7
    stacked = message.content["candidates"]["stacked"].numpy()
    for asked, row in zip(seen, stacked, strict=True):
        assert np.array_equal(weights(asked.content["arrays"]), row)
        assert list(asked.content["arrays"]) == list(net.state_dict())
        config = asked.content["config"]
        assert (config["mine"], config["server-round"], config["holdout-samples"]) == (5, 2, 9)


def test_the_mod_leaves_other_messages_alone():
    app = client_app(1.0, mods=[vote_mod])
    content = RecordDict({"arrays": arrays(), "config": ConfigRecord()})
    reply = app(Message(content, dst_node_id=1, message_type="evaluate"), context())
    assert reply.content["metrics"]["eval_loss"] == 1.0
    reply = app(Message(content, dst_node_id=1, message_type="train"), context())
    assert np.allclose(weights(reply.content["arrays"]), 0.5)


def test_the_mod_can_be_told_which_metric_is_the_loss():
    net, (x, y) = model(), samples()
    message = vote_message(ArrayRecord(net.state_dict()))
    app = evaluating_app(model(), x, y, loss="nll", mods=[VoteMod(loss_key="nll")])
    assert approved(app(message, context())) == approved(vote(message, model=net, x=x, y=y))
    with pytest.raises(UserError, match='one whose name ends with "loss"'):
        evaluating_app(model(), x, y, loss="nll")(message, context())


def test_counters_beside_the_weights_reach_the_evaluation():
    record = arrays(1.0, steps=Array(np.array(7)))
    seen = []
    app = ClientApp(mods=[vote_mod])

    @app.evaluate("vote")
    def evaluate(message, _context):
        seen.append(int(message.content["arrays"]["steps"].numpy()))
        return Message(RecordDict({"m": MetricRecord({"loss": 1.0})}), reply_to=message)

    app(vote_message(record), context())
    assert seen == [7] * 7


def test_an_ordinary_client_with_the_mod_alone_takes_part():
    """`@app.evaluate("vote")` is not registered: the server asks again in the plain way, once."""
    grid = FakeGrid({n: as_node(client_app(1.0, mods=[vote_mod])) for n in range(1, 9)})
    strategy = HoldOut(
        ballots="approvals", num_proposers=3, num_voters=5, seed=0, fraction_evaluate=0.0
    )
    strategy.start(grid, arrays(), num_rounds=6)
    kinds = {
        n: [m.metadata.message_type for m in grid.sent if is_vote_to(m, n)] for n in grid.nodes
    }
    for asked in kinds.values():
        assert asked[:2] == ["evaluate.vote", "evaluate"]
        assert set(asked[2:]) <= {"evaluate"}


def is_vote_to(message: Message, node: int) -> bool:
    return message.metadata.dst_node_id == node and "vote" in message.content


def test_a_client_without_any_vote_only_loses_its_ballot():
    nodes = {n: as_node(client_app(1.0, mods=[vote_mod])) for n in range(1, 11)}
    strategy = HoldOut(ballots="approvals", num_proposers=4, num_voters=6, seed=0)
    grid = FakeGrid(nodes)
    asked = strategy.configure_train(1, arrays(), ConfigRecord(), grid)
    replies = grid.send_and_receive(asked)
    nodes[strategy._open.voters[0]] = as_node(client_app(1.0))
    _, metrics = strategy.aggregate_train(1, replies)
    assert metrics["holdout-step"] == 1
    assert metrics["holdout-ballots-rejected-error"] == 1


def test_weights_in_another_order_are_put_in_the_model_s():
    net, (x, y) = model(), samples()
    state = net.state_dict()
    turned = ArrayRecord({name: Array(state[name].numpy()) for name in reversed(state)})
    message = vote_message(turned)
    slow = evaluating_app(model(), x, y)(message, context())
    assert approved(vote(message, model=net, x=x, y=y)) == approved(slow)


def test_weights_that_travel_as_a_list_are_taken_by_place():
    net, (x, y) = model(), samples()
    listed = ArrayRecord([part.numpy() for part in net.state_dict().values()])
    named = ArrayRecord(net.state_dict())
    ballots = [approved(vote(vote_message(r), model=net, x=x, y=y)) for r in (listed, named)]
    assert ballots[0] == ballots[1]


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (nn.Linear(4, 3), "do not fit the candidates"),
        (nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)), "Use vote_mod"),
    ],
    ids=["another model", "batch norm"],
)
def test_a_model_that_the_fast_path_cannot_score_is_refused_with_a_reason(net, message):
    x, y = samples()
    with pytest.raises(ModelError, match=message):
        vote(vote_message(ArrayRecord(model().state_dict())), model=net, x=x, y=y)


def test_the_fast_path_judges_without_dropout_and_leaves_the_model_as_it_was():
    x, y = samples()
    net = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.9), nn.Linear(6, 3))
    net.train()
    before = {name: part.clone() for name, part in net.state_dict().items()}
    message = vote_message(ArrayRecord(net.state_dict()))
    ballots = [approved(vote(message, model=net, x=x, y=y)) for _ in range(3)]
    assert ballots[0] == ballots[1] == ballots[2]
    assert net.training
    assert all(torch.equal(before[name], part) for name, part in net.state_dict().items())


def test_a_limited_number_of_samples_is_drawn_afresh_for_each_round_and_client():
    net, (x, y) = model(), samples(400)
    record = ArrayRecord(net.state_dict())

    def ballot(**changes):
        keys = {key: changes.pop(key) for key in ("seed", "worker_id") if key in changes}
        message = vote_message(record, candidates=12, holdout_samples=8, **changes)
        return tuple(approved(vote(message, model=net, x=x, y=y, **keys)))

    assert ballot() == ballot()
    assert len({ballot(round=number) for number in range(1, 6)}) > 1
    assert len({ballot(worker_id=number) for number in range(5)}) > 1
    assert len({ballot(seed=number) for number in range(5)}) > 1


def test_more_samples_than_there_are_means_all_of_them():
    net, (x, y) = model(), samples()
    record = ArrayRecord(net.state_dict())
    limited = vote(vote_message(record, holdout_samples=10**6), model=net, x=x, y=y)
    assert approved(limited) == approved(vote(vote_message(record), model=net, x=x, y=y))


def test_a_candidate_whose_loss_is_not_finite_is_not_approved():
    net, (x, y) = model(), samples()
    record = ArrayRecord(net.state_dict())
    layout = Layout.of(record)
    current = layout.flatten(record)
    stacked = torch.stack([current, torch.full_like(current, 3e38), current])
    message = vote_message(record, stacked=stacked)
    assert approved(vote(message, model=net, x=x, y=y)) == [1]
