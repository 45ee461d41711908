"""Bundles, and what `holdout node check` finds before anything runs."""

import json
import os
import shutil
import socket
import time
import zipfile

import pytest
from tests.node.test_commands import NAMES, init_all, run

from holdout.node.membership.members import read_member
from holdout.node.membership.settings import read_settings
from holdout.node.runtime.check import CheckResult, check_node

BEACON = ("--beacon", "00" * 32, "--shape", "8", "--classes", "3")


@pytest.fixture
def made(tmp_path, capsys):
    """A network with bundles, and its members' folders."""
    init_all(tmp_path)
    members = [tmp_path / name for name in NAMES]
    model = ("--model", "holdout.node.demo:linear")
    assert run("network", "create", tmp_path / "net", "--members", *members, *BEACON, *model) == 0
    assert run("network", "bundle", tmp_path / "net") == 0
    capsys.readouterr()
    return tmp_path


def test_a_bundle_holds_what_one_member_needs_and_no_secret(made):
    with zipfile.ZipFile(made / "net" / "bundles" / "bob.bundle") as bundle:
        parts = sorted(bundle.namelist())
        text = b"".join(bundle.read(part) for part in parts)
    assert parts == ["certificates/bob.crt", "genesis.toml", "model.safetensors"]
    assert b"PRIVATE KEY" not in text
    # The same network gives the same bytes.
    before = (made / "net" / "bundles" / "bob.bundle").read_bytes()
    assert run("network", "bundle", made / "net", "bob", "--out", made / "again") == 0
    assert (made / "again" / "bob.bundle").read_bytes() == before
    assert [path.name for path in (made / "again").iterdir()] == ["bob.bundle"]


def test_a_member_joins_with_its_own_bundle_alone(made, capsys):
    bundles = made / "net" / "bundles"
    assert run("node", "join", made / "bob", bundles / "carol.bundle") == 2
    assert "is the bundle of carol, not of bob" in capsys.readouterr().err
    cut = bundles / "cut.bundle"
    cut.write_bytes((bundles / "bob.bundle").read_bytes()[:-40])
    assert run("node", "join", made / "bob", cut) == 2
    assert "no bundle, or it is damaged" in capsys.readouterr().err
    with zipfile.ZipFile(cut, "w") as other:
        other.writestr("../outside", b"")
    assert run("node", "join", made / "bob", cut) == 2
    assert "lacks genesis.toml" in capsys.readouterr().err
    assert run("node", "join", made / "bob", bundles / "bob.bundle") == 0
    assert run("node", "verify", made / "bob") == 0
    assert run("network", "bundle", made / "net", "eve") == 2
    assert "eve is not a member" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ((), "fewer than 4 members"),
        (("--fewer-than-four",), "needs --shape"),
    ],
)
def test_few_members_and_a_missing_shape_are_refused(tmp_path, capsys, change, said):
    init_all(tmp_path)
    three = [tmp_path / name for name in NAMES[:3]]
    create = ("network", "create", tmp_path / "net", "--beacon", "draw", "--members", *three)
    assert run(*create, *change) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "net").exists()
    assert run(*create, "--fewer-than-four", "--shape", "4") == 0


def outcomes(folder):
    found = {}
    for finding in check_node(folder):
        found.setdefault(finding.what, []).append((finding.outcome, finding.said))
    return found


@pytest.fixture
def bob(made):
    folder = made / "bob"
    assert run("node", "join", folder, made / "net" / "bundles" / "bob.bundle") == 0
    return folder


def set_worker(folder, body):
    code = f"def make_worker(**options):\n    {body}\n"
    (folder / "mine.py").write_text(code)
    settings = folder / "node.toml"
    text = settings.read_text().replace("holdout.node.demo:make_worker", "mine:make_worker")
    settings.write_text(text)


def test_a_folder_without_a_network_is_told_what_to_do(made, capsys):
    assert run("node", "check", made / "alice") == 1
    assert "`holdout node join` makes it a member" in capsys.readouterr().out
    assert run("node", "check", made / "nowhere", "--json") == 1
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["what"], found["outcome"]) == ("settings", "wrong")


def test_each_thing_that_is_wrong_is_found(bob):
    set_worker(bob, 'raise FileNotFoundError("private.csv")')
    settings = bob / "node.toml"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        text = settings.read_text().replace(":7001", f":{port}", 1)
        text = text.replace("[peers]\n", f'[peers]\ncarol = "127.0.0.1:{port}"\n')
        text = text.replace("[peers]\n", '[peers]\nalice = "no-such-host.invalid:1"\n')
        settings.write_text(
            text.replace("[storage]\n", "[storage]\nfree_megabytes_min = 1000000000\n")
        )
        later = time.time() + 3600
        os.utime(bob / "keys" / "tls.key", (later, later))
        found = outcomes(bob)
    for what, said in (
        ("disk", "the node stops below"),
        ("port", "Address already in use"),
        ("clock", "but files here were made at"),
        ("worker", "raised FileNotFoundError: private.csv"),
    ):
        ((outcome, words),) = found[what]
        assert outcome is CheckResult.WRONG, words
        assert said in words
    peers = dict(zip(("alice", "carol", "dave"), found["peers"], strict=True))
    assert peers["alice"][0] is CheckResult.WRONG
    assert "no such host" in peers["alice"][1]
    assert "carol" in peers["carol"][1]
    assert peers["dave"][0] is CheckResult.NOTE
    assert found["model"][0][0] is CheckResult.OK
    (bob / "keys" / "vrf.seed").chmod(0o644)
    assert "mode 0644" in outcomes(bob)["keys"][0][1]


def test_one_address_for_two_things_is_found(bob):
    settings = bob / "node.toml"
    listen = read_settings(bob).node.listen
    text = settings.read_text().replace("[worker]\n", f'metrics = "{listen}"\n[worker]\n', 1)
    settings.write_text(text)
    ((outcome, words),) = outcomes(bob)["port"]
    assert outcome is CheckResult.WRONG
    assert "each needs its own" in words


def test_the_store_is_looked_into(bob, made, tmp_path):
    assert outcomes(bob)["store"] == [(CheckResult.OK, "sound, up to round 0")]
    database = bob / "store" / "node.sqlite"
    sound = database.read_bytes()
    database.write_bytes(sound[:5000])
    ((outcome, words),) = outcomes(bob)["store"]
    assert outcome is CheckResult.NOTE
    assert words.endswith("the node starts as one that has lost its memory")
    shutil.rmtree(bob / "store")
    assert "has no store" in outcomes(bob)["store"][0][1]
    # The store of another network is a mistake, not a loss.
    members = [made / name for name in NAMES]
    other = made / "other"
    changed = (*BEACON[:1], "11" * 32, *BEACON[2:], "--model", "holdout.node.demo:linear")
    assert run("network", "create", other, "--members", *members, *changed) == 0
    assert run("node", "join", made / "carol", other) == 0
    shutil.copytree(made / "carol" / "store", bob / "store")
    ((outcome, words),) = outcomes(bob)["store"]
    assert outcome is CheckResult.WRONG
    assert "belongs to another network" in words


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("import os; os._exit(3)", "did not start: exit code 3"),
        ("import os; os.kill(os.getpid(), 9)", "did not start: ended by SIGKILL"),
    ],
)
def test_a_worker_that_dies_is_told_how(bob, body, said):
    set_worker(bob, body)
    assert outcomes(bob)["worker"] == [(CheckResult.WRONG, said)]


def test_a_certificate_for_another_key_is_found(bob, made):
    key = (made / "carol" / "keys" / "tls.key").read_bytes()
    (bob / "keys" / "tls.key").write_bytes(key)
    set_worker(bob, "return None")
    found = outcomes(bob)
    assert found["certificate"][0] == (CheckResult.WRONG, "keys/tls.crt is not for keys/tls.key")
    assert "must return a Worker" in found["worker"][0][1]


@pytest.mark.slow
def test_a_running_network_answers_and_is_not_disturbed(make_network):
    network = make_network()
    network.start()
    network.wait_for_round(2)
    found = outcomes(network.of(0))
    assert [outcome for outcome, _ in found["peers"]] == [CheckResult.OK] * 3, found["peers"]
    assert found["port"][0][1].endswith("the node runs")
    assert found["worker"][0][0] is CheckResult.OK
    assert found["data"][0][0] is CheckResult.OK
    reached = max(network.decided())
    network.wait_for_round(reached + 2)
    assert all(not network.status(index)["refused"] for index in range(4))
    assert network.stop() == [0] * 4


def test_a_member_goes_on_with_its_settings_and_new_keys(made, capsys):
    settings = made / "bob" / "node.toml"
    settings.write_text(settings.read_text().replace("# delay = 500 ", "delay = 700 "))
    again = ("--name", "bob", "--address", "h:1", "--like", made / "bob")
    assert run("node", "init", made / "bob-2", *again) == 0
    # It moves, and so does where it listens, unless that was another address anyway.
    old_listen = f'listen = "{read_member(settings.parent / "member.toml")[0].address}"'
    moved = settings.read_text().replace(old_listen, 'listen = "h:1"')
    assert (made / "bob-2" / "node.toml").read_text() == moved != settings.read_text()
    settings.write_text(settings.read_text().replace(old_listen, 'listen = "0.0.0.0:7"'))
    assert run("node", "init", made / "bob-3", *again) == 0
    assert (made / "bob-3" / "node.toml").read_bytes() == settings.read_bytes()
    assert run("node", "init", made / "bob-4", *again, "--listen", "0.0.0.0:8") == 0
    assert 'listen = "0.0.0.0:8"' in (made / "bob-4" / "node.toml").read_text()
    for key in ("signing.seed", "vrf.seed", "tls.key", "beacon.share"):
        old, new = (made / name / "keys" / key for name in ("bob", "bob-2"))
        assert old.read_bytes() != new.read_bytes()
    assert run("node", "init", made / "x", "--name", "eve", *again[2:]) == 2
    assert "another member than eve" in capsys.readouterr().err
    assert not (made / "x").exists()
