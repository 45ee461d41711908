"""What is kept by the hour and by the megabyte, and when a member stops training."""

import asyncio
import io
import os
import time
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from tests.node.test_commands import run
from tests.node.test_store import finished, open_again, payload
from tests.node.test_store import network as network  # noqa: PLC0414
from tests.node.test_store import store_folder as store_folder  # noqa: PLC0414

from holdout.agreement.events import BlobKind
from holdout.errors import UserError
from holdout.ids import Digest
from holdout.node.logs import Log
from holdout.node.membership.settings import NodeTrainingSection, read_settings, write_settings
from holdout.node.runtime.learner_client import LearnerClient
from holdout.node.runtime.training_end import stop_when_done
from holdout.node.storage.retention import Retention

HOUR = 3_600
KINDS = (BlobKind.PAYLOAD, BlobKind.BLOCK, BlobKind.MODEL)


def play(store, network, rounds, seconds, size=1):
    """Decide rounds that end `seconds` apart, the last one now; the digests of each."""
    made, now = {}, time.time()
    for number in range(1, rounds + 1):
        digest, data = payload(number)
        body, model = Digest(bytes([number]) * 32), Digest(bytes([100 + number]) * 32)
        made[number] = (digest, body, model)
        store.persist(
            b"state",
            [(number, finished(network, number, model))],
            [(BlobKind.MODEL, model, b"m" * size, number)],
        )
        blobs = [
            (BlobKind.PAYLOAD, digest, data, number),
            (BlobKind.BLOCK, body, b"b" * size, number),
        ]
        store.finish_round(number, blobs)
        at = now - (rounds - number) * seconds
        for kind, name in zip(KINDS, made[number], strict=True):
            os.utime(store._path(kind, name), (at, at))
    store.finish_round(rounds, [])
    return made


def kept(store, made, kind):
    return [n for n in made if store.blob(kind, made[n][KINDS.index(kind)]) is not None]


def test_what_is_young_is_kept_and_the_last_rounds_always_are(store_folder, network):
    retention = Retention(2, 2, 3, bodies_hours=25, gradients_hours=1.25, models_hours=25)
    store = open_again(store_folder, network, retention).store
    made = play(store, network, 40, seconds=HOUR)
    assert kept(store, made, BlobKind.PAYLOAD) == [39, 40]
    assert kept(store, made, BlobKind.BLOCK) == list(range(16, 41))
    # `export --round N` of the last day, whatever the day was like.
    assert kept(store, made, BlobKind.MODEL) == list(range(16, 41))
    # The first model's file is new: it came with the store, just now.
    assert store.usage().oldest == {"bodies": 16, "gradients": 39, "models": 0}
    store.close()


def test_what_is_old_is_found_without_looking_at_all_that_is_kept(store_folder, network):
    store = open_again(store_folder, network, Retention()).store
    store._database.execute("DROP INDEX blobs_by_round")  # As an older version made it.
    store.close()
    store = open_again(store_folder, network, Retention(2, 2, 3, 25, 25, 25)).store
    asked = []
    store._database.set_trace_callback(asked.append)
    play(store, network, 12, seconds=60)
    store.usage()
    store._database.set_trace_callback(None)
    questions = {question for question in asked if "FROM blobs" in question}
    assert len(questions) > 12
    for question in questions:
        plan = [row[3] for row in store._database.execute(f"EXPLAIN QUERY PLAN {question}")]
        assert all(step.startswith("SEARCH blobs") for step in plan), (question, plan)
    store.close()


def test_without_room_the_oldest_go_first_but_never_the_last_rounds(store_folder, network):
    size = 10_000
    retention = Retention(
        2, 2, 3, bodies_hours=99, gradients_hours=99, models_hours=99, bytes_max=1
    )
    store = open_again(store_folder, network, retention).store
    made = play(store, network, 12, seconds=1, size=size)
    assert kept(store, made, BlobKind.BLOCK) == [11, 12]
    assert kept(store, made, BlobKind.MODEL) == [10, 11, 12]
    store.close()


def test_gradients_are_given_up_before_models(store_folder, network):
    hours = {"bodies_hours": 99, "gradients_hours": 99, "models_hours": 99}
    store = open_again(store_folder, network, Retention(2, 2, 3, **hours)).store
    play(store, network, 12, seconds=1, size=10_000)
    whole = store.usage().bytes
    store._retention = Retention(2, 2, 3, **hours, bytes_max=whole - 1)
    store.finish_round(12, [])
    assert store.usage().oldest["gradients"] > 1
    assert store.usage().oldest["models"] <= 1
    assert store.usage().bytes < whole
    store.close()


def test_a_full_disk_costs_old_things_before_it_stops_the_node(store_folder, network, monkeypatch):
    hours = {"bodies_hours": 99, "gradients_hours": 99, "models_hours": 99}
    store = open_again(store_folder, network, Retention(2, 2, 3, **hours)).store
    made = play(store, network, 6, seconds=1)
    store._free_bytes_min = 1_000_000
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1_500_000))
    store.finish_round(6, [])
    assert kept(store, made, BlobKind.PAYLOAD) == [5, 6]
    store.close()


def test_what_is_gone_is_said(make_network, capsys, tmp_path):
    network = make_network()
    assert run("node", "verify", network.of(0)) == 0
    assert "No round can be executed again" in capsys.readouterr().out
    (network.of(0) / "store" / "blobs").joinpath(
        next(p.name for p in (network.of(0) / "store" / "blobs").iterdir())
    ).unlink()
    assert run("node", "export", network.of(0), "--round", "0", tmp_path / "w") == 2
    assert "no longer kept: those from round 0 on are" in capsys.readouterr().err


class Training:
    """A service as the end of training sees it."""

    def __init__(self, accuracy=None):
        self.accuracy, self.until = accuracy, None
        self.player = SimpleNamespace(round=7)

    def take_part_until(self, number):
        self.until = number


@pytest.mark.parametrize(
    ("given", "accuracy", "until"),
    [
        ({"stop_round": 5}, None, 5),
        ({"stop_accuracy": 0.9}, 0.95, 7),
        ({"stop_date": datetime.now(UTC) - timedelta(days=1)}, None, 7),
        ({}, 0.99, None),
    ],
)
def test_a_member_stops_when_it_wants_to(given, accuracy, until):
    service, log = Training(accuracy), io.StringIO()
    asyncio.run(stop_when_done(NodeTrainingSection(**given), service, Log("a", file=log)))
    assert service.until == until
    assert ("training-ended" in log.getvalue()) == (until == 7)


def test_it_goes_on_until_the_accuracy_is_there():
    service = Training(0.5)

    async def later():
        task = asyncio.create_task(
            stop_when_done(NodeTrainingSection(stop_accuracy=0.9), service, Log("a", "error"))
        )
        await asyncio.sleep(0)
        assert service.until is None
        service.accuracy = 0.9
        await asyncio.wait_for(task, 10)

    asyncio.run(later())
    assert service.until == 7


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("rounds_min_interval = 40.0", "half of"),
        ("stop_date = 2030-01-01T00:00:00", "time zone"),
        ("stop_accuracy = 95.0", "stop_accuracy"),
        ("stop_round = 0", "stop_round"),
    ],
)
def test_settings_of_training_that_cannot_be_are_refused(tmp_path, line, said):
    write_settings(tmp_path, name="a", listen="h:1", make_worker="a:b")
    path = tmp_path / "node.toml"
    path.write_text(path.read_text().replace("[training]\n", f"[training]\n{line}\n"))
    with pytest.raises(UserError, match=said):
        read_settings(tmp_path)


def test_gradients_begin_no_faster_than_asked(monkeypatch, tmp_path):
    slept, clock = [], [100.0]

    async def sleep(seconds):
        slept.append(seconds)
        clock[0] += seconds

    async def begin():
        client = LearnerClient(tmp_path, Log("a"), seconds_max=1, threads=1, interval=5.0)
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(loop, "time", lambda: clock[0])
        monkeypatch.setattr("asyncio.sleep", sleep)
        for passed in (0.0, 2.0, 9.0):
            clock[0] += passed
            await client._rest()

    asyncio.run(begin())
    assert slept == [0.0, 3.0, 0.0]
