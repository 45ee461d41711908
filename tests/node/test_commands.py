"""The commands of a member's life, as a person types them."""

import json
import sqlite3
import subprocess
import sys
import urllib.request

import pytest
from node_rig import Network
from safetensors.numpy import load_file

from holdout.cli import run_command
from holdout.node.localnet import free_ports

NAMES = ("alice", "bob", "carol", "dave")


def run(*arguments):
    return run_command([str(argument) for argument in arguments])


def init_all(folder):
    for place, name in enumerate(NAMES):
        address = f"127.0.0.1:{7000 + place}"
        assert run("node", "init", folder / name, "--name", name, "--address", address) == 0


def test_help_needs_neither_torch_nor_the_network_extra():
    code = (
        "import sys; from holdout.cli import run_command\n"
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
    assert "0 rounds verified" in capsys.readouterr().out
    out = tmp_path / "w.safetensors"
    assert run("node", "export", tmp_path / "alice", "--round", "0", out) == 0
    assert {t.shape for t in load_file(out).values()} >= {(100, 16), (10,)}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("node", "status", "nowhere"), "no node runs"),
        (("node", "run", "nowhere"), "cannot be read"),
        (("node", "verify", "nowhere"), "cannot be read"),
        (("node", "init", "x", "--name", "A", "--address", "h:1"), "name"),
        (("node", "init", "x", "--name", "a", "--address", "nonsense"), "address"),
        (("network", "create", "x"), "--members"),
        (("network", "create", "x", "--beacon", "00"), "beacon"),
        (("localnet", "--nodes", "3", "--byzantine", "1"), "3B + 1"),
        (("localnet", "--lies", "nonsense"), "there is no lie"),
    ],
)
def test_mistakes_are_told_with_exit_code_2(arguments, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(*arguments) == 2
    assert said in capsys.readouterr().err


def test_keys_are_never_made_anew(tmp_path, capsys):
    init_all(tmp_path)
    assert run("node", "init", tmp_path / "bob", "--name", "bob", "--address", "h:1") == 2
    assert "never made anew" in capsys.readouterr().err


@pytest.mark.slow
def test_a_running_node_tells_how_it_is(make_network, capsys, tmp_path):
    network: Network = make_network(storage="bodies = 0\ngradients = 0\nmodels = 0\n")
    (port,) = free_ports(1)
    network.edit(0, "[node]\n", f'[node]\nmetrics = "127.0.0.1:{port}"\n')
    network.start(until=4)
    network.wait_for_round(4)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        metrics = answer.read().decode()
    assert 'holdout_rounds_total{node="node-0"} 4' in metrics
    assert 'holdout_seconds_total{node="node-0",kind="disk"}' in metrics
    assert run("node", "status", network.of(0), "--json") == 0
    status = json.loads(capsys.readouterr().out)
    assert status["decided"] == 4
    assert status["network"] == network.made.identity
    assert set(status["heard"]) == {"node-1", "node-2", "node-3"}
    assert len(status["certificate"]["signers"]) >= 3
    assert run("node", "status", network.of(0)) == 0
    assert "certificate round 4 by" in capsys.readouterr().out
    assert run("node", "verify", network.of(0)) == 2
    assert "another process" in capsys.readouterr().err
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
    # Whatever is changed afterwards is found.
    decided = [f"block-{value.hex()}" for value in network.chains(1)[1]]
    blobs = network.of(1) / "store" / "blobs"
    body = next(blobs / name for name in decided if (blobs / name).exists())
    body.write_bytes(body.read_bytes()[:-1])
    assert run("node", "verify", network.of(1)) == 0
    assert run("node", "verify", network.of(1), "--full") == 2
    assert "body on disk is damaged" in capsys.readouterr().err
    for gradient in (network.of(2) / "store" / "blobs").glob("payload-*"):
        gradient.write_bytes(bytes(gradient.stat().st_size))
    assert run("node", "verify", network.of(2), "--full") == 2
    assert "gradient on disk is damaged" in capsys.readouterr().err
    database = sqlite3.connect(network.of(3) / "store" / "node.sqlite")
    (certificate,) = database.execute("SELECT certificate FROM finished WHERE round = 2").fetchone()
    forged = certificate[:-10] + bytes(10)
    database.execute("UPDATE finished SET certificate = ? WHERE round = 2", (forged,))
    database.commit()
    database.close()
    assert run("node", "verify", network.of(3)) == 2
    assert "round 2: the certificate does not hold" in capsys.readouterr().err
