"""What breaks in real networks, done to real processes. The long versions are in `test_soak.py`."""

import os
import random
import shutil
import signal
import socket
import sqlite3
import ssl
import subprocess
import sys
import time
from datetime import timedelta

import pytest
from tests.node.node_rig import Network, agree, kill_at_random, part_and_heal

from holdout.node.membership.identity import Authority, create_identity
from holdout.node.storage.store import DATABASE, FOLDER

pytestmark = pytest.mark.slow

HONEST = (0, 1, 2, 3, 4)


def healthy(network, *indices):
    """All of these nodes have the same chain, every certificate of it holds, nobody lied."""
    nodes = indices or range(network.count)
    chains = network.chains(*nodes)
    assert agree(chains), {node: len(chain) for node, chain in chains.items()}
    network.audits(*nodes)
    for node in nodes:
        honest = {network.names[index] for index in nodes}
        accused = {event["member"] for event in network.events(node, "evidence")}
        assert not honest & accused
    return chains


def test_killed_nodes_lose_nothing_and_come_back(make_network):
    network = make_network()
    network.start()
    network.wait_for_round(2)
    kill_at_random(network, 3, times=3, words=random.Random(0))
    # All at once: the network goes on from the last certificate.
    before = max(network.decided())
    network.kill(0, 1, 2, 3)
    network.start()
    network.wait_for_round(before + 2)
    # A polite stop in the middle of a round takes seconds, and nothing is lost by it either.
    began = time.monotonic()
    assert network.stop(1) == [0]
    assert time.monotonic() - began < 8
    network.wait(lambda: network.status(0)["left"] == ["node-1"], 5)
    assert "node-1" not in network.status(0)["heard"]
    network.start(1)
    network.wait_for_round(max(network.decided(0, 2, 3)) + 2)
    network.processes[2].send_signal(signal.SIGINT)
    assert network.processes[2].wait(8) == 130
    assert network.stop(0, 1, 3) == [0, 0, 0]
    chains = healthy(network)
    assert min(map(len, chains.values())) >= before + 2


@pytest.mark.soak
def test_a_part_with_a_quorum_goes_on_and_parts_without_one_stop(make_network):
    network = make_network(nodes=7, proxies=True)
    network.start()
    network.wait_for_round(2, seconds=90)
    part_and_heal(network, HONEST, (5, 6), seconds=1)
    part_and_heal(network, (0, 1, 2, 3), (4, 5, 6), seconds=5)
    network.stop()
    healthy(network)


def test_liars_among_them_cannot_stop_or_deceive_the_honest(make_network):
    network = make_network(nodes=7)
    lies = {5: "coalition,equivocate,garbage,replay,impersonate", 6: "withhold,flood,equivocate"}
    for node in HONEST:
        # The honest leave some of the processors, so that there is time to lie to them.
        network.edit(node, "[training]\n", "[training]\nrounds_min_interval = 1.0\n")
    network.start(lies=lies)
    network.wait_for_round(6, *HONEST, seconds=150)
    network.wait(lambda: all(_has_caught_both(network.status(node)) for node in HONEST), 120)
    # A valid certificate and another worker's name.
    network.wait(lambda: all(_refuses_both(network.status(node)) for node in HONEST[1:]), 120)
    for node in HONEST:
        status = network.status(node)
        assert set(status["evidence"]) == {"node-5", "node-6"}
        # They use the name of node-0, under which node-0 itself takes nothing.
        refused = set() if node == 0 else {"node-5", "node-6"}
        assert set(status["refused_messages"]) == refused
        # Without a flood a node takes some 60 MB, its learner not counted.
        assert status["memory"]["node"] < 260 << 20
    network.stop(*HONEST, seconds=30)
    network.kill(5, 6)
    healthy(network, *HONEST)


def _has_caught_both(status):
    return (
        {"node-5", "node-6"} <= set(status.get("evidence", ()))
        and {"wrong-signature", "malformed"} <= set(status["rejected"])
        # Whoever floods loses its allowance, and with it the chance to send what is too large.
        and any(status["dropped"].get(f"node-6: {why}", 0) for why in ("oversize", "flooding"))
    )


def _refuses_both(status):
    return {"node-5", "node-6"} <= set(status["refused_messages"])


def test_strangers_are_refused_and_counted(make_network, tmp_path, monkeypatch):
    monkeypatch.setenv("RUST_LOG", "off")  # Meant for other programs.
    network = make_network()
    network.start(0)
    network.wait(lambda: network.status(0)["round"] == 1)
    port = int(network.made.members[0].address.rpartition(":")[2])
    authority = Authority.read(network.network / "authority")
    keys = tmp_path / "stranger"
    request = create_identity(keys, "node-3").request
    foreign = Authority.create(tmp_path / "foreign", "other")
    certificates = {
        "expired": authority.issue(request, "node-3", valid_for=timedelta(seconds=-3600)),
        "foreign": foreign.issue(request, "node-3"),
        "none": None,
    }
    for name, certificate in certificates.items():
        assert not _is_let_in(port, network, keys, certificate), name
    with socket.create_connection(("127.0.0.1", port)) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\n\r\n" * 20)
    wanted = {"expired-certificate", "foreign-certificate", "no-certificate", "no-tls"}
    network.wait(lambda: wanted <= set(network.status(0)["refused"]), 10)
    good = authority.issue(request, "node-3")
    assert _is_let_in(port, network, keys, good)


@pytest.mark.soak
def test_a_certificate_that_expires_ends_its_connections_at_once(make_network):
    network = make_network()
    authority = Authority.read(network.network / "authority")
    keys = network.of(3) / "keys"
    request = (keys / "tls.csr").read_bytes()
    soon = authority.issue(request, "node-3", valid_for=timedelta(seconds=12))
    (keys / "tls.crt").write_bytes(soon)
    network.start()
    # Said in time by the node itself, and when it has happened.
    network.wait(lambda: network.events(3, "certificate-expires"))
    network.wait(lambda: len(network.status(0)["peers"]) == 3, 12)
    network.wait(lambda: network.events(3, "certificate-expired"), 20)
    network.wait(lambda: network.status(0)["peers"] == ["node-1", "node-2"], 5)
    network.wait(lambda: network.status(0)["refused"].get("expired-certificate"), 20)
    # The others go on; with a new certificate the member is back.
    network.wait_for_round(max(network.decided(0, 1, 2)) + 1, 0, 1, 2)
    assert network.stop(3) == [0]
    assert "expired" in _refusal(network.of(3))
    (keys / "tls.crt").write_bytes(authority.issue(request, "node-3"))
    network.start(3)
    network.wait_for_round(max(network.decided(0, 1, 2)) + 1)
    network.stop()
    healthy(network)


def _is_let_in(port, network, keys, certificate):
    """Whether TLS lets somebody with this certificate in."""
    context = ssl.create_default_context(cafile=str(network.of(0) / "keys" / "authority.crt"))
    context.check_hostname = False
    if certificate is not None:
        (keys / "tls.crt").write_bytes(certificate)
        context.load_cert_chain(keys / "tls.crt", keys / "tls.key")
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        try:
            with context.wrap_socket(connection) as wrapped:
                wrapped.settimeout(1)
                wrapped.sendall(b"\x00")
                return bool(wrapped.recv(1))
        except TimeoutError:
            return True  # It waits for more: the door is open.
        except (ssl.SSLError, ConnectionError):
            return False


@pytest.mark.soak
def test_a_lost_or_damaged_store_is_noticed_and_costs_votes_not_agreement(make_network):
    network = make_network()
    network.start()
    network.wait_for_round(3)
    network.kill(3)
    store = network.of(3) / FOLDER
    # A gradient or model with a flipped bit is fetched again.
    for blob in (store / "blobs").iterdir():
        _flip(blob, blob.stat().st_size // 2)
    network.start(3)
    network.wait_for_round(max(network.decided(0, 1, 2)) + 1)
    assert not network.status(3)["observer"]
    assert network.events(3, "damaged-blob")
    network.kill(3)
    # A database cut short: amnesia, said clearly; votes again three rounds later.
    os.truncate(store / DATABASE, 5_000)
    network.start(3)
    network.wait(lambda: network.events(3, "amnesia"))
    assert "only watches" in network.events(3, "amnesia")[0]["why"]
    assert (store / "damaged-1" / DATABASE).exists()
    network.wait_for_round(max(network.decided(0, 1, 2)) + 5)
    network.wait(lambda: not network.status(3)["observer"])
    network.stop()
    healthy(network)


def _flip(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)


def test_a_folder_that_cannot_be_written_stops_the_node_and_leaves_no_half_state(make_network):
    network = make_network()
    network.start(1, 2, 3)
    # As a full disk: the store cannot grow any more.
    network.start(0, file_bytes_max=45_000)
    assert network.processes[0].wait(90) == 2
    said = (network.of(0) / "node.log").read_text().splitlines()[-1]
    assert "cannot be written" in said
    assert "start it again" in said
    database = sqlite3.connect(network.of(0) / FOLDER / DATABASE)
    assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    database.close()
    network.start(0)
    network.wait_for_round(max(network.decided(1, 2, 3)) + 2)
    assert not network.status(0)["observer"]
    network.stop()
    healthy(network)


def test_a_read_only_folder_is_refused_with_a_clear_message(make_network):
    network = make_network()
    folder = network.of(0)
    # Modes do not bind an administrator: for one, a mount does.
    if os.getuid() == 0:
        mount = ["mount", "--bind", "-o", "ro", str(folder), str(folder)]
        if subprocess.run(mount, check=False, capture_output=True).returncode:
            pytest.skip("nothing can be mounted here")
        subprocess.run(["mount", "-o", "remount,ro,bind", str(folder)], check=True)
        try:
            said = _refusal(folder)
        finally:
            subprocess.run(["umount", str(folder)], check=True)
    else:
        folder.chmod(0o500)
        said = _refusal(folder)
        folder.chmod(0o700)
    assert "cannot be used" in said


@pytest.mark.soak
def test_refusals_are_clear_and_a_failing_worker_only_misses_its_role(make_network):
    # One raises, one hangs, one proposes NaN, and one has no worker at all: nobody learns any
    # more, and all go on agreeing.
    options = {
        0: 'how = "raises"\nafter = 2\n',
        1: 'how = "hangs"\nafter = 2\n',
        2: 'how = "nan"\nafter = 2\n',
        3: 'how = "no-worker"\n',
    }
    network = make_network(options=options, timing="propose_min = 200\nvote_min = 200\n")
    for index in range(4):
        network.edit(index, "[worker]\n", "[worker]\nseconds_max = 3.0\n")
        network.edit(
            index, "propose_max = 3000\nvote_max = 3000", "propose_max = 1000\nvote_max = 1000"
        )
    network.start()
    network.wait_for_round(6, seconds=90)
    network.wait(lambda: all(network.status(i).get("worker_failures") for i in range(4)), 90)
    reached = max(network.decided())
    network.wait_for_round(reached + 3)
    # Another process on the same folder, the same port, another network's genesis file.
    assert "another process" in _refusal(network.of(0))
    copy = network.folder / "copy"
    shutil.copytree(network.of(0), copy, ignore=shutil.ignore_patterns("*.sock", "*.log", "blobs"))
    (copy / FOLDER / "blobs").mkdir()
    assert "in use" in _refusal(copy)
    other = Network(network.folder / "other")
    shutil.copy(other.network / "genesis.toml", copy / "genesis.toml")
    assert "other keys" in _refusal(copy)
    network.stop()
    healthy(network)


def _refusal(folder):
    done = subprocess.run(
        [sys.executable, "-m", "holdout", "node", "run", str(folder)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    return done.stderr
