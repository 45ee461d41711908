"""The page of a node: over HTTP, and in a real browser."""

import http.client
import json
import re
from contextlib import contextmanager

import pytest
from tests.node import chromium

from holdout.errors import UserError
from holdout.node.localnet.launcher import free_ports
from holdout.node.runtime.alarms import alarms_of
from holdout.node.runtime.page import BROWSERS_MAX, page_state, page_thread, read_page

NAMES = ("alice", "bob", "<b>carol</b>", "dave")


def member(place, **values):
    known = {
        "name": NAMES[place],
        "own": place == 0,
        "connected": True,
        "heard": True,
        "left": False,
        "slow": False,
        "caught": 0,
        "seconds": dict.fromkeys(("gradient", "ballot", "lead", "vote"), 0.25),
        "missed": 0,
        "excused_until": 0,
        "floods": 0,
        "version": 2,
        "foreign": None,
        "unserved": 0,
        "rejected": {},
        "dropped": {},
    }
    return {**known, **values}


def report(**values):
    known = {
        "node": "alice",
        "network": "ab" * 32,
        "quorum": 3,
        "round": 4,
        "decided": 3,
        "period": 0,
        "accuracy": 0.5,
        "roles": "PV",
        "observer": False,
        "halted": None,
        "heard": ["bob", "dave"],
        "memory": {"node": 1 << 20, "learner": 1 << 20},
        "worker_failures": 0,
        "worker_failed": None,
        "slow": [],
        "evidence": {},
        "members": [member(0), member(1, slow=True), member(2, caught=2), member(3, left=True)],
        "certificate_expires": "2999-01-01T00:00:00+00:00",
        "alarms": [],
        "stored": {"bytes": 5 << 20, "free": 1 << 30, "oldest": {}},
    }
    return {**known, **values}


def seen(number, **values):
    known = {
        "round": number,
        "seconds": 0.5,
        "periods": 0,
        "stepped": True,
        "selected": [0, 1],
        "proposers": [0, 1, 2],
        "approvals": [[0, [0, 1]], [1, [0, 1]]],
        "accuracy": number / 10,
    }
    return {**known, **values}


class Source:
    """A node as a page sees it."""

    def __init__(self):
        self.reports = [report()]
        self.rounds = [seen(1), seen(2), seen(3, accuracy=None)]

    def page(self):
        return page_state(self.reports, self.rounds, "clinics")

    def metrics(self):
        return b"holdout_round 4\n"


@contextmanager
def served():
    (port,) = free_ports(1)
    source = Source()
    with page_thread(f"127.0.0.1:{port}", source):
        yield source, port


def ask(port, path, method="GET", host=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request(method, path, headers={} if host is None else {"Host": host})
    answer = connection.getresponse()
    return answer, connection


def test_the_page_the_metrics_and_nothing_else_are_served():
    with served() as (_, port):
        answer, connection = ask(port, "/")
        page = answer.read().decode()
        connection.close()
        assert answer.status == 200
        policy = answer.getheader("Content-Security-Policy")
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.getheader("X-Content-Type-Options") == "nosniff"
        assert page.startswith("<!DOCTYPE html>")
        for path, method, status in (
            ("/metrics", "GET", 200),
            ("/other", "GET", 404),
            ("/../../etc/passwd", "GET", 404),
            ("/", "POST", 405),
            ("/", "DELETE", 405),
        ):
            answer, connection = ask(port, path, method)
            answer.read()
            connection.close()
            assert answer.status == status, path
        for path in ("/", "/events"):
            answer, connection = ask(port, path, "HEAD")
            # Without a body, after which a client that goes on reading would find another answer.
            assert (answer.status, answer.fp.read()) == (200, b"")
            connection.close()
        answer, connection = ask(port, "/", host="evil.example.org")
        answer.close()
        connection.close()
        assert answer.status == 403
        with (
            pytest.raises(UserError, match="cannot be served"),
            page_thread(f"127.0.0.1:{port}", Source()),
        ):
            pass


def test_nothing_is_loaded_from_elsewhere():
    page, _ = read_page()
    text = page.decode()
    assert re.findall(r"<(?:link|img|iframe|object|embed)\b|\bsrc=|@import|url\(", text) == []
    assert set(re.findall(r"https?://[^\s\"']+", text)) == {"http://www.w3.org/2000/svg"}
    # The policy allows no style attributes, and text is never taken for markup.
    assert re.findall(r"\sstyle=|innerHTML|insertAdjacentHTML|document\.write", text) == []


def test_the_state_comes_live_and_browsers_are_limited():
    with served() as (source, port):
        answer, connection = ask(port, "/events")
        assert answer.getheader("Content-Type") == "text/event-stream"
        first = json.loads(answer.fp.readline().removeprefix(b"data: "))
        assert first["nodes"][0]["round"] == 4
        source.reports = [report(round=5)]
        answer.fp.readline()
        assert json.loads(answer.fp.readline().removeprefix(b"data: "))["nodes"][0]["round"] == 5
        others = [ask(port, "/events") for _ in range(BROWSERS_MAX - 1)]
        assert {answer.status for answer, _ in others} == {200}
        refused, last = ask(port, "/events")
        assert refused.status == 503
        for given, opened in [*others, (answer, connection), (refused, last)]:
            given.close()
            opened.close()


def test_alarms_are_told_once_with_the_nodes_that_raise_them():
    calm = [alarm for alarm in alarms_of(report()) if alarm.level == "error"]
    assert calm == []
    reports = [
        report(node=name, halted="too many", worker_failed="no data", evidence={"carol": 2})
        for name in ("alice", "bob")
    ]
    found = page_state(reports, [], "x")["alarms"]
    texts = [alarm["text"] for alarm in found]
    assert texts[0].startswith("the node has halted")
    assert "the worker fails: no data" in texts
    assert "caught lying: carol" in texts
    assert all(alarm["nodes"] == ["alice", "bob"] for alarm in found)
    (few,) = alarms_of(report(heard=["bob"], members=[]))
    assert few.text == "2 members are heard; a decision needs 3"
    (alone,) = alarms_of(report(heard=[], members=[]))
    assert alone.text == "only this member is heard; a decision needs 3"
    assert [
        a.level for a in alarms_of(report(certificate_expires="2001-01-01T00:00:00+00:00"))
    ] == ["error"]


def test_who_is_not_heard_is_not_called_slow():
    members = [member(0), member(1, slow=True), member(2, heard=False, slow=True)]
    members.append(member(3, heard=False, left=True))
    texts = [a.text for a in alarms_of(report(members=members, slow=["bob", "<b>carol</b>"]))]
    assert texts == ["not heard: <b>carol</b>", "slow: bob"]


def test_a_long_history_is_thinned_and_keeps_its_newest_round():
    state = page_state([report()], [seen(n) for n in range(1, 501)], "x")
    assert len(state["history"]) <= 400
    assert state["history"][-1][0] == 500
    assert [r["round"] for r in state["rounds"]] == list(range(477, 501))
    assert page_state([], [], "x")["nodes"] == []


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_words_and_marks_can_be_told_from_their_ground():
    page, _ = read_page()
    themes = re.findall(r":root \{(.*?)\}", page.decode(), re.DOTALL)
    assert len(themes) == 2
    for theme in themes:
        colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", theme))
        for words in ("ink", "soft", "liar", "honest"):
            for ground in ("page", "ground") if words != "honest" else ("page",):
                assert contrast(colours[words], colours[ground]) >= 4.5, (words, ground)
        for ground in ("notes", "wrong", "cell"):
            assert contrast(colours["ink"], colours[ground]) >= 4.5, ground
        for mark in ("honest", "liar", "notes-edge", "wrong-edge", "edge"):
            assert contrast(colours[mark], colours["page"]) >= 3, mark


@pytest.mark.slow
@pytest.mark.skipif(chromium.PATH is None, reason="there is no Chromium here")
def test_in_a_browser_it_is_live_narrow_and_usable_by_keyboard(tmp_path):
    with served() as (source, port):
        browser = chromium.Chromium(tmp_path, width=420, height=900)
        try:
            browser.go(f"http://127.0.0.1:{port}/")
            browser.wait("document.querySelectorAll('#members tbody tr').length === 4")
            assert browser.run("document.getElementById('title').textContent") == "alice of clinics"
            # What members call themselves is text.
            assert browser.run("document.querySelectorAll('#members b').length") == 0
            assert "<b>carol</b>" in browser.run("document.getElementById('members').textContent")
            assert browser.run("document.documentElement.scrollWidth") <= 420
            states = browser.run(
                "[...document.querySelectorAll('#members .state')].slice(1).map(x => x.textContent)"
            )
            assert states == ["this node", "heard, slow", "heard, caught 2×", "left"]
            assert browser.run("document.querySelectorAll('#map tbody td').length") == 12
            assert browser.run("document.querySelectorAll('#map i.selected').length") == 6
            assert browser.run("document.querySelectorAll('#accuracy path.curve').length") == 1
            assert browser.run("document.getElementById('calm').hidden") is False
            # By keyboard: an earlier round, and back.
            browser.run("document.getElementById('pick').focus()")
            browser.press("ArrowLeft", 37)
            browser.wait("document.getElementById('picked').textContent === 'Round 2'")
            # Live: a new round does not move what was picked; alarms come by themselves.
            source.rounds.append(seen(4))
            source.reports = [report(round=5, halted="too many liars")]
            browser.wait("document.querySelectorAll('#alarms li.error').length === 1")
            assert browser.run("document.title") == "clinics: round 5"
            assert browser.run("document.getElementById('picked').textContent") == "Round 2"
            assert browser.run("document.activeElement.id") == "pick"
            browser.run("document.getElementById('newest').click()")
            assert browser.run("document.getElementById('picked').textContent") == "Round 4"
            assert browser.said == []
        finally:
            browser.close()
