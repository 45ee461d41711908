"""What the transport refuses is counted by who did it, and cannot fill the log."""

import io
import json
import os
import subprocess
import sys

from holdout.node import logs
from holdout.node.logs import Log
from holdout.node.network import refusals
from holdout.node.network.refusals import LOOK_SECONDS, SAY_SECONDS, SOMEBODY, Refusals

MESSAGE = (
    "\x1b[2m2026-01-01T00:00:00Z\x1b[0m \x1b[35mTRACE\x1b[0m rx-0 \x1b[1mdemux\x1b[0m{zid=77 "
    "\x1b[3msrc\x1b[0m\x1b[2m=\x1b[0mnorth/SHORT:2}: zenoh::net::routing::interceptor:"
    " Msg intercepted!"
)
ALICE, BOB = "2bd5d787aa01", "79c4d1300c17"


class Rig:
    def __init__(self):
        self.now = 0.0
        self.file = io.StringIO()
        self.refusals = Refusals(Log("test", "warning", self.file), lambda: self.now)
        self.asked = 0
        self.links = {ALICE: "alice", BOB: "bob"}
        self.refusals.links = self.ask

    def ask(self):
        self.asked += 1
        return self.links

    def refuse(self, number):
        self.refusals.on_lines([MESSAGE.replace("SHORT", number[:8])])

    @property
    def logged(self):
        return [json.loads(line) for line in self.file.getvalue().splitlines()]


def test_a_refused_message_is_charged_to_the_member_whose_connection_it_came_on():
    rig = Rig()
    for number in (ALICE, BOB, ALICE):
        rig.refuse(number)
    assert rig.refusals.messages() == {"alice": 2, "bob": 1}
    assert rig.asked == 1


def test_connections_are_looked_up_again_for_a_new_one_but_not_at_every_message():
    rig = Rig()
    rig.refuse(ALICE)
    for _ in range(100):
        rig.refuse("ffffffff")
    assert rig.asked == 1
    rig.links = {"ffffffff01": "carol"}
    rig.now += LOOK_SECONDS
    rig.refuse("ffffffff")
    assert rig.asked == 2
    assert rig.refusals.messages() == {"alice": 1, "carol": 101}


def test_whoever_connected_a_moment_ago_is_charged_when_the_counts_are_asked_for():
    rig = Rig()
    rig.refuse(ALICE)
    rig.links |= {"ffffffff01": "carol"}
    rig.refuse("ffffffff")
    assert rig.refusals.messages() == {"alice": 1, "carol": 1}


def test_connections_that_are_gone_are_somebodys_and_take_no_more_memory_than_so_much(monkeypatch):
    monkeypatch.setattr(refusals, "UNSETTLED_MAX", 10)
    rig = Rig()
    for number in range(100):
        rig.refuse(f"{number:08x}")
    assert rig.refusals.messages() == {SOMEBODY: 100}
    assert len(rig.refusals._unsettled) == 10


def test_nobody_is_charged_where_two_connections_look_alike():
    rig = Rig()
    rig.links = {ALICE: "alice", ALICE[:8] + "ff": "mallory"}
    rig.refuse(ALICE)
    assert rig.refusals.messages() == {SOMEBODY: 1}


def test_every_refusal_is_counted_and_few_are_logged():
    rig = Rig()
    for _ in range(1_000):
        rig.refusals.on_lines(["TLS error: peer sent no certificates"])
        rig.refuse(ALICE)
    assert rig.refusals.connections == {"no-certificate": 1_000}
    assert [(e["event"], e["kind"], e["count"]) for e in rig.logged] == [
        ("refused-connection", "no-certificate", 1),
        ("refused-message", "alice", 1),
    ]
    rig.now += SAY_SECONDS
    rig.refuse(ALICE)
    assert rig.logged[-1]["count"] == 1_001


def test_a_flood_of_refused_messages_is_counted_in_batches_with_whatever_else_was_printed():
    rig = Rig()
    lines = [MESSAGE.replace("SHORT", number[:8]) for number in (ALICE, BOB, ALICE)]
    rig.refusals.on_lines([*lines * 1_000, "TLS error: peer sent no certificates"])
    assert rig.refusals.messages() == {"alice": 2_000, "bob": 1_000}
    assert rig.refusals.connections == {"no-certificate": 1}
    # One look at the clock and the log for each sender, not for each message.
    assert [(e["kind"], e["count"]) for e in rig.logged if e["event"] == "refused-message"] == [
        ("alice", 2_000),
        ("bob", 1_000),
    ]


def test_what_libraries_print_is_handed_over_in_whole_lines():
    # In a process of its own, whose standard output it takes away.
    script = """
import os, sys, threading
from holdout.node.logs import divert_output
batches, done = [], threading.Event()
def on_lines(lines):
    batches.append(lines)
    if lines and lines[-1] == "end":
        done.set()
real = divert_output(on_lines)
for number in range(10_000):
    os.write(1 + number % 2, f"line {number} ".encode() + b"\\xff" + b"x" * 150 + b"\\n")
os.write(1, b"e")
os.write(2, b"nd\\n")
assert done.wait(30)
lines = [line for batch in batches for line in batch]
print(len(lines), lines[9_999].split("\\ufffd")[0], file=sys.stderr)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stderr.split() == ["10001", "line", "9999"]


def test_between_two_looks_at_what_libraries_print_there_is_a_pause(monkeypatch):
    reader, writer = os.pipe()
    os.write(writer, b"one\ntwo\nthr")
    batches, pauses = [], []

    def take(lines):
        batches.append(lines)
        if len(batches) == 1:
            os.write(writer, b"ee\nfour\n")
            os.close(writer)

    monkeypatch.setattr(logs.time, "sleep", pauses.append)
    logs._hand_over(reader, take)
    assert batches == [["one", "two"], ["three", "four"]]
    assert pauses == [logs.PAUSE_SECONDS] * 2
    assert logs.PAUSE_SECONDS > 0


def test_what_is_no_refusal_is_not_counted():
    rig = Rig()
    rig.refusals.on_lines(
        [
            "WARN zenoh_link_tls::utils: Skipping name verification of TLS server",
            "ERROR something else",
            "TRACE net-0 zenoh::net::routing::interceptor: Msg intercepted!",
        ]
    )
    assert not rig.refusals.connections
    assert not rig.refusals.messages()
    assert rig.logged == []
