"""A node restored from a copy never signs twice, however old the copy is."""

import shutil
from contextlib import suppress

import pytest
from tests.node.node_rig import agree
from tests.node.test_commands import run


def restore(network, index, copy):
    shutil.rmtree(network.of(index) / "store")
    shutil.copytree(copy / "store", network.of(index) / "store")


def check(network, copies):
    """Kill a node, put each copy in its place, and see it vote again without a contradiction."""
    for copy in copies:
        network.kill(3)
        restore(network, 3, copy)
        before = len(network.events(3, "amnesia"))
        network.start(3)
        reached = max(network.decided(0, 1, 2))
        network.wait_for_round(reached + 1, seconds=120)
        assert len(network.events(3, "amnesia")) == before + 1
        network.wait(lambda: not network.status(3).get("observer", True), 120)
        # The vote that it gives now counts for the others.
        network.wait(lambda: "node-3" in network.status(0)["certificate"]["signers"], 120)
    for index in range(3):
        assert network.status(index)["evidence"] == {}
    network.stop()
    assert agree(network.chains())


def running(make_network):
    network = make_network()
    network.start()
    network.wait_for_round(1)
    return network


def copy_while_it_runs(source, target):
    """Every file, as `cp -a` copies a folder in use: one that is gone by then is left out."""

    def copy(file, there):
        with suppress(FileNotFoundError):
            shutil.copy2(file, there)

    shutil.copytree(source, target, copy_function=copy)


@pytest.mark.slow
def test_an_old_copy_of_a_running_node_is_amnesia_not_equivocation(make_network, tmp_path, capsys):
    network = running(make_network)
    assert run("node", "backup", network.of(3), tmp_path / "backup") == 0
    assert "It holds secret keys" in capsys.readouterr().out
    assert run("node", "backup", network.of(3), tmp_path / "backup") == 2
    assert run("node", "verify", tmp_path / "backup") == 0
    key = tmp_path / "backup" / "keys" / "signing.seed"
    assert key.stat().st_mode & 0o077 == 0
    copy_while_it_runs(network.of(3) / "store", tmp_path / "raw" / "store")
    network.wait_for_round(3)
    check(network, [tmp_path / "raw"])


@pytest.mark.soak
def test_copies_of_every_age(make_network, tmp_path):
    network = running(make_network)
    copies = []
    for number in range(2, 12):
        copies.append(tmp_path / f"copy-{number}")
        if number % 2:
            assert run("node", "backup", network.of(3), copies[-1]) == 0
        else:
            copy_while_it_runs(network.of(3) / "store", copies[-1] / "store")
        network.wait_for_round(number)
    check(network, copies)
