"""The commands of a member's life, as a person types them."""

import json
import re
import sqlite3
import subprocess
import sys
import tomllib
import urllib.request
from pathlib import Path

import pytest
from safetensors.numpy import load_file
from tests.node.node_rig import Network as Processes

from holdout.commands import run_command
from holdout.node.localnet import LIES
from holdout.node.localnet.launcher import free_ports
from holdout.node.membership.genesis import Network
from holdout.node.membership.network_creation import usual_parameters
from holdout.node.membership.settings import DEMO_WORKER, read_settings, write_settings

NAMES = ("alice", "bob", "carol", "dave")


def run(*arguments):
    return run_command([str(argument) for argument in arguments])


def init_all(folder):
    for place, name in enumerate(NAMES):
        address = f"127.0.0.1:{7000 + place}"
        assert run("node", "init", folder / name, "--name", name, "--address", address) == 0


def test_help_needs_neither_torch_nor_the_network_extra():
    code = (
        "import sys; from holdout.commands import run_command\n"
        "try: run_command(['node', 'run', '--help'])\n"
        "except SystemExit: pass\n"
        "assert not {'torch', 'zenoh', 'nacl', 'pydantic', 'numpy'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "until SIGTERM or Ctrl-C" in done.stdout


def test_a_network_is_created_by_commit_and_reveal(tmp_path, capsys):
    init_all(tmp_path)
    net = tmp_path / "net"
    members = [tmp_path / name for name in NAMES]
    assert run("network", "create", net, "--members", *members, "--shape", "4,4,1") == 0
    assert "reveal" in capsys.readouterr().out
    assert not (net / "genesis.toml").exists()
    shares = [tmp_path / f"{name}.toml" for name in NAMES]
    for folder, share in zip(members, shares, strict=True):
        assert run("node", "reveal", folder, net / "setup.toml", share) == 0
    assert run("network", "create", net, "--reveals", *shares) == 0
    assert "4 members, of which 1 may lie" in capsys.readouterr().out
    old = (net / "certificates" / "bob.crt").read_bytes()
    assert run("network", "certify", net, tmp_path / "bob") == 0
    assert (net / "certificates" / "bob.crt").read_bytes() != old
    capsys.readouterr()
    for folder in members:
        assert run("node", "join", folder, net) == 0
    joined = capsys.readouterr().out
    assert len(set(joined.splitlines())) == 1
    assert run("node", "verify", tmp_path / "alice", "--full") == 0
    said = capsys.readouterr().out
    assert "0 rounds verified (0 steps, 0 executed again);" in said
    out = tmp_path / "w.safetensors"
    assert run("node", "export", tmp_path / "alice", "--round", "0", out) == 0
    assert {t.shape for t in load_file(out).values()} >= {(100, 16), (10,)}
    before = out.read_bytes()
    assert run("node", "export", tmp_path / "bob", "--round", "0", out) == 2
    assert "is there already" in capsys.readouterr().err
    assert out.read_bytes() == before


def test_parameters_come_from_options_a_file_or_the_tables(tmp_path, capsys):
    init_all(tmp_path)
    members = [tmp_path / name for name in NAMES]
    create = ("network", "create", "--beacon", "00" * 32, "--shape", "4,4,1", "--members", *members)
    assert run(*create, "--", tmp_path / "usual") == 0
    assert capsys.readouterr().err == ""
    usual = Network.read(tmp_path / "usual" / "genesis.toml").file.parameters
    assert usual == usual_parameters(4, 1, 0.1)
    path = tmp_path / "p.toml"
    path.write_text("[parameters]\nlearning_rates = [0.2, 0.1]\nvoters = 4\nleaders = 4\n")
    by_hand = ("--parameters", path, "--byzantine", "0.25", "--leaders", "2", "--voters", "2")
    floor = ("--ballots-min", "1", "--byzantine-voters-max", "0")
    assert run(*create, *by_hand, "--", tmp_path / "small") == 2
    assert "below the tables" in capsys.readouterr().err
    assert run(*create, *by_hand, *floor, "--", tmp_path / "small") == 0
    said = capsys.readouterr()
    assert "not guaranteed: 2 voters lack an honest majority" in said.err
    assert "4 members, of which 1 may lie" in said.out
    small = Network.read(tmp_path / "small" / "genesis.toml").file.parameters
    assert (small.voters, small.leaders, small.learning_rates) == (2, 2, [0.2, 0.1])
    # Afterwards nothing of it can be changed any more.
    again = ("network", "create", tmp_path / "small", "--beacon", "00" * 32, "--voters", "4")
    assert run(*again) == 2
    assert "once" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("node", "status", "nowhere"), "no node runs"),
        (("node", "run", "nowhere"), "cannot be read"),
        (("node", "verify", "nowhere"), "cannot be read"),
        (("node", "verify", "."), "belongs to no network yet"),
        (("node", "export", ".", "--round", "1", "m"), "belongs to no network yet"),
        (("network", "bundle", "nowhere"), "nowhere holds no network"),
        (("node", "init", "x", "--name", "A", "--address", "h:1"), "name"),
        (("node", "init", "x", "--name", "a", "--address", "nonsense"), "address"),
        (("network", "create", "x"), "--members"),
        (("network", "create", "x", "--beacon", "00"), "beacon"),
        (("localnet", "--nodes", "3", "--byzantine", "1"), "3B + 1"),
        (("localnet", "--lies", "gibberish"), "there is no lie"),
        (("localnet", "--byzantine", "some"), "--byzantine"),
        (("localnet", "--byzantine", "1", "--attack", "nonsense"), "there is no attack"),
        (("localnet", "--attack", "nonsense"), "there is no attack"),
        (("localnet", "--out", "/proc/x"), "/proc/x: No such file or directory"),
        (("node", "init", "x", "--name", "a", "--address", "h:99999"), "address"),
        (("localnet", "--nodes", "100000"), "1 to 10000 workers"),
        (("node", "init", "/proc/x", "--name", "a", "--address", "h:1"), "/proc/x"),
    ],
)
def test_mistakes_are_told_with_exit_code_2(arguments, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(*arguments) == 2
    told = capsys.readouterr().err
    assert said in told
    assert "Errno" not in told


def test_a_number_that_is_none_is_told_plainly(capsys):
    with pytest.raises(SystemExit):
        run("localnet", "--rounds", "0")
    assert "--rounds: must be a whole number from 1 on; got '0'" in capsys.readouterr().err


def test_the_help_names_every_lie(capsys):
    with pytest.raises(SystemExit):
        run("localnet", "--help")
    told = capsys.readouterr().out
    assert all(re.search(rf"\b{lie}\b", told) for lie in LIES)


def test_a_finished_network_is_not_begun_again(tmp_path, capsys):
    init_all(tmp_path)
    folders = [tmp_path / name for name in NAMES]
    beacon = ("--beacon", "draw", "--shape", "4")
    assert run("network", "create", tmp_path / "net", "--members", *folders, *beacon) == 0
    for again, said in (((), "holds a network already"), (("--beacon", "draw"), "exists already")):
        assert run("network", "create", tmp_path / "net", *again) == 2
        assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--shape", "4,0"), "whole numbers, each at least 1"),
        (("--shape", "x"), "whole numbers, each at least 1"),
        (("--beacon", "drew"), 'hexadecimal digits, or "draw"'),
        (("--classes", "0"), "at least one class"),
        (("--name", "Our Network"), "network's name"),
        (("--model", "nonsense"), "package.module:name"),
        (("--weights", "member.toml"), "not a safetensors file"),
        (("--byzantine", "2"), "3B + 1"),
        (("--byzantine", f"0.{'2' * 20}"), "at most 18 digits"),
        (("--learning-rate", "nan"), "learning_rates"),
        (("--proposers", "0"), "proposers"),
        (("--parameters", "member.toml"), "must hold a table"),
        (("--parameters", "nowhere.toml"), "cannot be read"),
        (("--parameters", "quorum.toml"), "the quorum is floor(2n/3) + 1"),
    ],
)
def test_a_network_that_cannot_be_is_refused_and_leaves_nothing(
    options, said, tmp_path, capsys, monkeypatch
):
    init_all(tmp_path)
    monkeypatch.chdir(tmp_path / "alice")
    Path("quorum.toml").write_text("[parameters]\nquorum = 1\n")
    members = [tmp_path / name for name in NAMES]
    create = ("network", "create", tmp_path / "net", "--members", *members)
    shape = () if "--shape" in options else ("--shape", "4")
    assert run(*create, *shape, *options) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "net").exists()
    # Once it is mended, it works.
    assert run(*create, "--shape", "4", "--beacon", "00" * 32) == 0


def test_a_model_that_cannot_be_written_is_a_clear_refusal(tmp_path, capsys):
    init_all(tmp_path)
    members = [tmp_path / name for name in NAMES]
    beacon = ("--beacon", "00" * 32, "--shape", "4")
    assert run("network", "create", tmp_path / "net", "--members", *members, *beacon) == 0
    assert run("node", "join", tmp_path / "bob", tmp_path / "net") == 0
    assert run("node", "export", tmp_path / "bob", tmp_path / "no" / "w.safetensors") == 2
    assert "No such file" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_can_be_verified(tmp_path, capsys):
    init_all(tmp_path)
    members = [tmp_path / name for name in NAMES]
    beacon = ("--beacon", "00" * 32, "--shape", "4")
    assert run("network", "create", tmp_path / "net", "--members", *members, *beacon) == 0
    bob = tmp_path / "bob"
    assert run("node", "join", bob, tmp_path / "net") == 0
    (bob / ".lock").unlink()
    (bob / ".lock").mkdir()  # As on a disk that is mounted read-only: no lock to be had.
    before = sorted(path.name for path in (bob / "store").iterdir())
    assert run("node", "verify", bob, "--full") == 0
    assert "0 rounds verified" in capsys.readouterr().out
    assert run("node", "export", bob, tmp_path / "w.safetensors") == 0
    assert sorted(path.name for path in (bob / "store").iterdir()) == before


def test_a_mistaken_worker_leaves_nothing_that_stands_in_the_way(tmp_path, capsys):
    init = ("node", "init", tmp_path / "x", "--name", "a", "--address", "h:1")
    assert run(*init, "--worker", "mine") == 2
    assert 'custom code is named "package.module:name"; got "mine"' in capsys.readouterr().err
    assert run(*init, "--worker", "mine:worker") == 0


def test_keys_are_never_made_anew(tmp_path, capsys):
    init_all(tmp_path)
    assert run("node", "init", tmp_path / "bob", "--name", "bob", "--address", "h:1") == 2
    assert "never replaced" in capsys.readouterr().err


@pytest.mark.slow
def test_a_running_node_tells_how_it_is(make_network, capsys, tmp_path):
    network: Processes = make_network(storage="bodies = 0\ngradients = 0\nmodels = 0\n")
    (port,) = free_ports(1)
    network.edit(0, "[node]\n", f'[node]\nmetrics = "127.0.0.1:{port}"\n')
    network.start(until=4)
    network.wait_for_round(4)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        metrics = answer.read().decode()
    assert 'holdout_rounds_total{node="node-0"} 4' in metrics
    assert 'holdout_seconds_total{kind="disk",node="node-0"}' in metrics
    assert run("node", "status", network.of(0), "--json") == 0
    status = json.loads(capsys.readouterr().out)
    assert status["decided"] == 4
    assert status["network"] == network.made.identity
    assert set(status["heard"]) == {"node-1", "node-2", "node-3"}
    assert len(status["certificate"]["signers"]) >= 3
    assert run("node", "status", network.of(0)) == 0
    said = capsys.readouterr().out
    assert "certificate round 4 by" in said
    assert "valid until" in said
    # All of it beside the running node.
    assert run("node", "verify", network.of(0), "--full") == 0
    assert capsys.readouterr().out.startswith("4 rounds verified")
    assert run("node", "export", network.of(0), tmp_path / "live.safetensors") == 0
    assert status["model"] in capsys.readouterr().out
    assert network.stop() == [0] * 4
    assert run("node", "verify", network.of(0), "--full") == 0
    said = capsys.readouterr().out
    assert said.startswith("4 rounds verified")
    assert "executed again" in said
    result = network.audits(0, full=True)[0]
    # A node that learned of a round by its certificate alone has no body of it.
    assert 2 <= result.executed <= 4
    assert run("node", "export", network.of(0), tmp_path / "model.safetensors") == 0
    assert result.model.hex() in capsys.readouterr().out
    assert run("node", "export", network.of(0), "--round", "9", tmp_path / "m") == 2
    assert "rounds 0 to 4" in capsys.readouterr().err
    _damage_is_found(network, capsys)


def _damage_is_found(network, capsys):
    """Whatever is changed afterwards."""
    decided = [f"block-{value.hex()}" for value in network.chains(1)[1]]
    blobs = network.of(1) / "store" / "blobs"
    body = next(blobs / name for name in decided if (blobs / name).exists())
    body.write_bytes(body.read_bytes()[:-1])
    assert run("node", "verify", network.of(1)) == 0
    assert run("node", "verify", network.of(1), "--full") == 1
    assert "body on disk is damaged" in capsys.readouterr().err
    for gradient in (network.of(2) / "store" / "blobs").glob("payload-*"):
        gradient.write_bytes(bytes(gradient.stat().st_size))
    assert run("node", "verify", network.of(2), "--full") == 1
    assert "gradient on disk is damaged" in capsys.readouterr().err
    database = sqlite3.connect(network.of(3) / "store" / "node.sqlite")
    (certificate,) = database.execute("SELECT certificate FROM finished WHERE round = 2").fetchone()
    forged = certificate[:-10] + bytes(10)
    database.execute("UPDATE finished SET certificate = ? WHERE round = 2", (forged,))
    database.commit()
    database.close()
    assert run("node", "verify", network.of(3)) == 1
    assert "round 2: the certificate does not hold" in capsys.readouterr().err


def test_a_new_settings_file_shows_the_true_defaults(tmp_path):
    write_settings(tmp_path, name="a", listen="h:1", make_worker=DEMO_WORKER)
    text = (tmp_path / "node.toml").read_text()
    shown = tomllib.loads(re.sub(r"(?m)^# (?=\w+ = )", "", text))
    examples = {"metrics", "stop_round", "stop_accuracy", "stop_date"}
    plain = read_settings(tmp_path).model_dump()
    for section in ("node", "worker", "timing", "training", "storage"):
        assert set(shown[section]) == set(plain[section]), section
        for key, value in shown[section].items():
            assert key in examples or value == plain[section][key], key
