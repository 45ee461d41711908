"""Where time goes, what is counted, and how it is told."""

import io
import json
import os

import pytest

from holdout.agreement.keys import SimulatedKeys
from holdout.node.logs import Log
from holdout.node.runtime.measure import (
    Idle,
    Spent,
    TimedVerifier,
    stopwatch,
)
from holdout.node.runtime.status import memory_bytes


def test_idle_time_is_charged_to_what_ended_it():
    spent = Spent()
    idle = Idle(spent)
    idle.waited(1.0, computing=True, fetching=False)
    idle.waited(2.0, computing=False, fetching=True)
    idle.waited(4.0, computing=False, fetching=False)
    idle.ended_by_timer()
    idle.waited(8.0, computing=False, fetching=False)
    idle.ended_by_message()
    idle.ended_by_timer()
    assert (spent.compute, spent.network, spent.deadlines) == (1.0, 10.0, 4.0)


def test_a_stopwatch_adds_up_also_when_the_work_fails():
    spent = Spent()
    with pytest.raises(ValueError, match="no"), stopwatch(spent, "disk"):
        raise ValueError("no")
    with stopwatch(spent, "disk"):
        pass
    assert spent.disk > 0
    assert spent.as_dict()["crypto"] == 0.0


def test_cryptography_is_timed_and_answers_as_ever():
    keys, spent = SimulatedKeys(0, 2), Spent()
    timed = TimedVerifier(keys.verifier(), spent)
    signer = keys.signer(0)
    assert timed.signature(signer.public.signing, b"m", signer.sign(b"m"))
    assert not timed.signature(signer.public.signing, b"other", signer.sign(b"m"))
    proof, out = signer.prove(b"a")
    assert timed.vrf(signer.public.vrf, b"a", proof) == out
    assert timed.key_fault(signer.public) is None
    assert spent.crypto > 0


def test_memory_is_that_of_the_process():
    assert 1 << 20 < memory_bytes(os.getpid()) < 1 << 36
    assert memory_bytes(1 << 30) == 0


def test_an_event_is_one_line_and_quiet_levels_are_left_out():
    file = io.StringIO()
    log = Log("alice", "info", file)
    log.round = 7
    log.debug("detail")
    log.warning("refused", why="two\nlines", model=b"\xab")
    (line,) = file.getvalue().splitlines()
    event = json.loads(line)
    assert (event["level"], event["node"], event["round"]) == ("warning", "alice", 7)
    assert (event["event"], event["why"], event["model"]) == ("refused", "two\nlines", "ab")


def test_a_log_that_cannot_be_written_does_not_stop_a_node():
    Log("alice", "info", _Full()).error("event")


class _Full(io.StringIO):
    def write(self, _text):
        raise OSError(28, "No space left on device")
