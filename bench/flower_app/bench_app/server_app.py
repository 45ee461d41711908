"""Time rounds and votes on a real deployment, in turn, and write the medians to a file."""

import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from pathlib import Path

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

from holdout.flower import HoldOut
from holdout.flower.arrays import Layout
from holdout.flower.exchange import PollingGrid, exchange
from holdout.flower.vote_messages import VoteCall
from holdout.voting import Terms

HALF, LAYERS = 4, 10
CANDIDATES, WEIGHTS = 30, 79_510
TIMEOUT = 120.0
NODES_ASK_EVERY = 3.0
"""Seconds after which an idle SuperNode asks for messages again."""

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Measure everything; the file `out` appears when all is there."""
    config = context.run_config
    while len(list(grid.get_node_ids())) < int(config["nodes"]):
        time.sleep(0.1)
    nodes = sorted(grid.get_node_ids())
    out = Path(str(config["out"]))
    if config["weights"]:
        at_once = int(config["at-once"]) or None
        try:
            found = _large_round(grid, len(nodes) // 2, int(config["weights"]), at_once)
        except Exception as error:
            # Whoever waits for the file must not wait for ever.
            _write(out, {"error": f"{type(error).__name__}: {error}"})
            raise
        _write(out, found)
        return
    times = _seconds(
        {
            "stock": lambda: _stock_round(grid, nodes),
            "ours": lambda: _our_round(grid),
            "small vote": lambda: _vote(grid, nodes[:HALF], 1, 1),
            "large vote": lambda: _vote(grid, nodes[:HALF], CANDIDATES, WEIGHTS),
        },
        repetitions=int(config["repetitions"]),
    )
    _write(out, times)


def _write(out: Path, found: Mapping[str, float | str]) -> None:
    out.with_suffix(".partial").write_text(json.dumps(found), "utf-8")
    out.with_suffix(".partial").rename(out)


def _large_round(grid: Grid, half: int, weights: int, at_once: int | None) -> dict[str, float]:
    """One joint round in which half of the nodes propose and half vote, on ten layers."""
    part = np.zeros(weights // LAYERS, np.float32)
    arrays = ArrayRecord({f"layer{n}": Array(part + n) for n in range(LAYERS)})
    strategy = HoldOut(
        num_proposers=half, num_voters=half, nodes_at_once=at_once, fraction_evaluate=0.0
    )
    result = strategy.start(grid, arrays, num_rounds=1)
    metrics = result.train_metrics_clientapp[1].items()
    return {name: value for name, value in metrics if isinstance(value, int | float)}


def _seconds(actions: Mapping[str, Callable[[], None]], *, repetitions: int) -> dict[str, float]:
    """As `bench.measure.seconds`, but each action starts at a random point of the nodes' sleep."""
    times: dict[str, list[float]] = {name: [] for name in actions}
    moments = np.random.default_rng(1)
    for _ in range(repetitions):
        for name, action in actions.items():
            # An action that starts right after another would always find the nodes just asleep.
            time.sleep(moments.uniform(0, NODES_ASK_EVERY))
            start = time.perf_counter()
            action()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def _stock_round(grid: Grid, nodes: list[int]) -> None:
    """Two phases as Flower runs them: half of the nodes train, the others evaluate."""
    for message_type, half in (("train", nodes[:HALF]), ("evaluate", nodes[HALF:])):
        content = RecordDict({"arrays": _arrays(), "config": ConfigRecord()})
        messages = [Message(content, dst_node_id=n, message_type=message_type) for n in half]
        _expect(list(grid.send_and_receive(messages, timeout=TIMEOUT)), HALF)


def _our_round(grid: Grid) -> None:
    """One round of our strategy, which does its own polling."""
    strategy = HoldOut(
        ballots="approvals",
        num_proposers=HALF,
        num_voters=HALF,
        propose_timeout=TIMEOUT,
        vote_timeout=TIMEOUT,
        fraction_evaluate=0.0,
    )
    polling = PollingGrid(grid, {})
    asked = strategy.configure_train(1, _arrays(), ConfigRecord(), polling)
    replies = polling.send_and_receive(asked, timeout=TIMEOUT)
    _, metrics = strategy.aggregate_train(1, replies)
    if metrics is None or metrics["holdout-ballots-accepted"] != HALF:
        raise RuntimeError(f"a round on an idle deployment went wrong: {metrics}")


def _vote(grid: Grid, voters: list[int], candidates: int, weights: int) -> None:
    """A vote on so many candidates of so many weights, in another order for each voter."""
    arrays = ArrayRecord({"w": Array(np.zeros(weights, np.float32))})
    rows = torch.randn(candidates + 1, weights)

    def calls() -> Iterator[Message]:
        for node in voters:
            call = VoteCall(
                layout=Layout.of(arrays),
                stacked=rows[torch.randperm(len(rows))].numpy(),
                terms=Terms(Fraction(1, 3)),
                round=1,
                holdout_samples=None,
                others={},
                config=ConfigRecord(),
                array_key="arrays",
                config_key="config",
            )
            yield Message(call.content(), dst_node_id=node, message_type="evaluate.vote")

    _expect(exchange(grid, calls(), timeout=TIMEOUT), len(voters))


def _arrays() -> ArrayRecord:
    # Never the same twice: the SuperLink keeps objects that it has seen.
    return ArrayRecord({"w": Array(np.random.default_rng().random(10).astype(np.float32))})


def _expect(replies: list[Message], count: int) -> None:
    if len(replies) != count or any(reply.has_error() for reply in replies):
        raise RuntimeError(f"expected {count} replies without errors; got {replies}")
