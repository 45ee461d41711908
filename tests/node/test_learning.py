"""The member's worker in a separate process, whatever it does."""

import asyncio
import json
import os
import shutil
import signal
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.node.node_rig import CLASSES, SHAPE, Network

from holdout.agreement import aggregate
from holdout.errors import LearnerFailed
from holdout.node.logs import Log
from holdout.node.runtime import learner_process
from holdout.node.runtime.learner_client import (
    PREFIX_BYTES,
    LearnerClient,
    frame_lengths,
    kill,
    pack_frame,
)
from holdout.voting import Approvals

DIMENSION = CLASSES * (SHAPE[0] + 1)


@given(st.dictionaries(st.text(), st.integers() | st.text()), st.binary(max_size=100))
def test_frames_read_back(header, body):
    data = pack_frame(header, body)
    head, size = frame_lengths(data[:PREFIX_BYTES])
    rest = data[PREFIX_BYTES:]
    assert json.loads(rest[:head]) == header
    assert rest[head:] == body
    assert len(body) == size


def test_nonsense_is_no_frame():
    with pytest.raises(ValueError, match="not a frame"):
        frame_lengths(b"\xff" * PREFIX_BYTES)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = Network(tmp_path_factory.mktemp("learners"))
    yield made
    made.close()


def with_learner(folders, options, work, tmp_path, seconds_max=60.0):
    """Do something with a learner whose worker has these options; what it logged."""
    folder = tmp_path / "node"
    shutil.copytree(folders.of(0), folder)
    path = folder / "node.toml"
    path.write_text(
        path.read_text().replace("[worker_options]\n", f"[worker_options]\n{options}\n")
    )
    log = (tmp_path / "log").open("w")

    async def run():
        learner = LearnerClient(
            folder, Log("test", "debug", log), seconds_max=seconds_max, threads=1
        )
        try:
            await work(learner)
        finally:
            await learner.close()

    asyncio.run(run())
    log.close()
    return Path(log.name).read_text()


@pytest.mark.slow
def test_gradients_and_ballots_come_back(folders, tmp_path):
    model = bytes(4 * DIMENSION)
    bad = np.full(DIMENSION, 50.0, np.float32).tobytes()

    async def work(learner):
        first = await learner.propose(model, round_number=1, rate=0.1)
        assert len(first) == len(model)
        assert aggregate.canonical(np.frombuffer(first, "<f4")) == first
        assert first == await learner.propose(model, round_number=1, rate=0.1)
        turned = (-np.frombuffer(first, "<f4")).tobytes()
        ballot = await learner.judge(
            model,
            [turned, first, bad],
            round_number=1,
            rate=0.1,
            radius=0.0,
            f=Fraction(1, 3),
        )
        assert 1 in ballot
        assert 0 not in ballot
        assert await learner.accuracy(model) is None

    with_learner(folders, "", work, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "why"),
    [("raises", "no data today"), ("nan", "not finite"), ("hangs", "longer than")],
)
def test_a_failing_worker_is_told_and_asked_again_later(folders, tmp_path, how, why):
    model = bytes(4 * DIMENSION)

    async def work(learner):
        assert await learner.propose(model, round_number=1, rate=0.1)
        with pytest.raises(LearnerFailed, match=why):
            await learner.propose(model, round_number=9, rate=0.1)
        assert learner.failures == 1
        if how == "hangs":
            assert learner.pid is None
            with pytest.raises(LearnerFailed, match="a moment ago"):
                await learner.propose(model, round_number=1, rate=0.1)
            await asyncio.sleep(1.1)
        assert await learner.propose(model, round_number=1, rate=0.1)

    options = f'how = "{how}"\nafter = 5'
    log = with_learner(folders, options, work, tmp_path, seconds_max=6.0)
    assert "worker-failed" in log


@pytest.mark.slow
def test_a_worker_that_approves_too_many_is_told_and_not_cut(folders, tmp_path):
    model = bytes(4 * DIMENSION)
    updates = [np.full(DIMENSION, float(n), np.float32).tobytes() for n in range(4)]

    async def work(learner):
        def judge(round_number, f):
            return learner.judge(
                model, updates, round_number=round_number, rate=0.1, radius=0.0, f=f
            )

        with pytest.raises(LearnerFailed, match="may approve 3 of 4 updates; it approved 4"):
            await judge(2, Fraction(1, 4))
        assert learner.failures == 1
        assert await judge(2, Fraction(0)) == (0, 1, 2, 3)
        assert learner.failures == 1

    assert "worker-failed" in with_learner(folders, 'how = "approves-all"', work, tmp_path)


def test_a_process_that_cannot_be_started_is_a_failed_worker(tmp_path, monkeypatch):
    """A machine without memory or processes left must not end the node."""

    async def refuse(*_, **__):
        raise BlockingIOError("no process left")

    async def run():
        monkeypatch.setattr(asyncio, "create_subprocess_exec", refuse)
        with (tmp_path / "log").open("w") as log:
            learner = LearnerClient(tmp_path, Log("test", "debug", log), seconds_max=1.0, threads=1)
            await learner.start()
            assert learner.failures == 1
            learner._not_before = 0.0
            with pytest.raises(LearnerFailed, match="cannot be started: no process left"):
                await learner.propose(b"", round_number=1, rate=0.1)
            with pytest.raises(LearnerFailed, match="a moment ago"):
                await learner.propose(b"", round_number=1, rate=0.1)
            await learner.close()

    asyncio.run(run())
    assert "worker-failed" in (tmp_path / "log").read_text()


@pytest.mark.slow
def test_a_worker_that_cannot_be_made_is_told(folders, tmp_path):
    async def work(learner):
        await learner.start()
        assert learner.failures == 1
        with pytest.raises(LearnerFailed):
            await learner.propose(bytes(4 * DIMENSION), round_number=1, rate=0.1)

    assert "the data base is down" in with_learner(folders, 'how = "no-worker"', work, tmp_path)


def start_python(code):
    return asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE
    )


def test_a_process_killed_in_the_middle_of_a_long_answer_is_seen_to_end():
    async def run():
        process = await start_python(
            "import os, time; os.write(1, bytes(10_000_000)); time.sleep(100)"
        )
        await process.stdout.readexactly(1)
        await kill(process)
        return process.returncode

    assert asyncio.run(run()) == -signal.SIGKILL


def test_a_process_whose_child_holds_its_output_is_not_waited_for_long(monkeypatch):
    monkeypatch.setattr("holdout.node.runtime.learner_client.END_SECONDS_MAX", 0.2)

    async def run():
        process = await start_python(
            "import subprocess, time; print(subprocess.Popen(['sleep', '100']).pid, flush=True);"
            "time.sleep(100)"
        )
        child = int(await process.stdout.readline())
        await kill(process)
        os.kill(child, signal.SIGKILL)
        await process.stdout.read()

    asyncio.run(asyncio.wait_for(run(), 30))


def test_a_worker_that_takes_a_state_finds_what_it_left_there():
    class Counting:
        def propose(self, weights, *, state, **_facts):
            state["asked"] = state.get("asked", torch.zeros(1)) + 1
            return weights + state["asked"]

        def vote(self, _weights, proposals, *, state, **_facts):
            state["asked"] += 10
            return Approvals(tuple(proposals)[:1])

    kept, body = {}, np.zeros(3, "<f4").tobytes()
    propose = {"job": "propose", "round": 1, "rate": 0.1}
    judge = {"job": "judge", "round": 1, "rate": 0.1, "radius": 0.0, "f": [1, 3]}
    for expected in (1.0, 12.0):
        _, update = learner_process._answer(Counting(), 3, propose, body, kept)
        assert np.frombuffer(update, "<f4").tolist() == [expected] * 3
        reply, _ = learner_process._answer(Counting(), 3, judge, 3 * body, kept)
        assert reply == {"approved": [0]}
