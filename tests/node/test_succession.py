"""A network that goes on where another ended, without the member that was caught lying."""

import shutil
import sys

import pytest
from tests.node import node_rig
from tests.node.test_commands import run

from holdout.errors import AuditError, UserError
from holdout.node.localnet.launcher import free_ports
from holdout.node.membership.genesis import Network, read_toml
from holdout.node.membership.seam import check_seam, read_end
from holdout.node.runtime.folder import join
from holdout.node.storage.succession import succeed

pytestmark = pytest.mark.slow


def test_a_caught_liar_is_removed_and_the_rest_goes_on(make_network, tmp_path, capsys):
    old = make_network(nodes=4)
    old.start(lies={3: "equivocate"})
    old.wait(lambda: "node-3" in old.status(0).get("evidence", {}), 90)
    old.wait_for_round(3, 0, 1, 2)
    old.stop()
    with pytest.raises(UserError, match="fewer than 4"):
        succeed(old.of(0), tmp_path / "net", members=[old.of(i) for i in range(3)], parameters={})
    # Three stay, with new keys; the liar goes; a new member comes.
    names = [*old.names[:3], "eve"]
    folders, ports = [tmp_path / name for name in names], free_ports(4)
    for index, (name, folder) in enumerate(zip(names, folders, strict=True)):
        address = f"127.0.0.1:{ports[index]}"
        worker = ("--worker", "tiny_worker:make_worker", "--address", address)
        assert run("node", "init", folder, "--name", name, *worker) == 0
        shutil.copy(node_rig.HERE / "tiny_worker.py", folder)
    made = ("--out", tmp_path / "net", "--beacon", "draw", "--learning-rate", "0.05")
    assert run("network", "succeed", old.of(0), *made, "--members", *folders) == 0
    assert run("network", "bundle", tmp_path / "net") == 0
    for name, folder in zip(names, folders, strict=True):
        bundle = tmp_path / "net" / "bundles" / f"{name}.bundle"
        assert run("node", "join", folder, bundle) == 0
    _forgeries_are_refused(tmp_path, folders, old)
    command = [sys.executable, "-m", "holdout", "node", "run"]
    running = [
        node_rig.start_alone([*command, str(folder)], tmp_path / f"{folder.name}.log")
        for folder in folders
    ]
    try:
        node_rig.wait_until(
            lambda: min(node_rig.status_of(folder)["decided"] for folder in folders) >= 2
        )
    finally:
        for process in running:
            process.terminate()
        assert [process.wait(30) for process in running] == [0] * 4
    capsys.readouterr()
    assert run("node", "verify", folders[3], "--full") == 0
    said = capsys.readouterr().out
    height = old.audits(0)[0].rounds
    assert f"after round {height}, which" in said
    assert "rounds are verified too" not in said
    assert run("node", "verify", folders[3], "--before", old.of(0)) == 0
    assert f"its {height} rounds are verified too" in capsys.readouterr().out
    assert run("node", "verify", folders[3], "--before", old.of(0), old.of(0)) == 1
    assert "is not before the first network" in capsys.readouterr().err
    network = Network.read(folders[0] / "genesis.toml")
    assert network.file.parameters.learning_rates == [0.05]
    assert "node-3" not in {member.name for member in network.members}
    # It begins with the very model with which the old one ended.
    assert run("node", "export", folders[0], "--round", "0", tmp_path / "w.safetensors") == 0
    assert old.audits(0)[0].model.hex() in capsys.readouterr().out


def _forgeries_are_refused(tmp_path, folders, old):
    """Another end, a certificate with too few votes, another old network."""
    network = Network.read(tmp_path / "net" / "genesis.toml")
    before = Network.read(old.of(0) / "genesis.toml")
    assert len(check_seam(network, before).marks) >= 3
    end = network.file.predecessor
    header, certificate = read_end(end)
    few = type(certificate)(
        **{
            name: getattr(certificate, name)
            for name in certificate.__dataclass_fields__
            if name != "marks"
        },
        marks=certificate.marks[:2],
    )
    for changed, said in (
        ({"round": end.round + 1}, "not of round"),
        ({"network": "00" * 32}, "another network"),
        ({"certificate": few.encode_bare().hex()}, "does not hold"),
        ({"certificate": end.certificate[:-2]}, "cannot be read"),
    ):
        section = end.model_copy(update=changed)
        forged = Network(network.file.model_copy(update={"predecessor": section}))
        with pytest.raises(AuditError, match=said):
            check_seam(forged, before)
    other = network.file.model.model_copy(update={"digest": "11" * 32})
    with pytest.raises(AuditError, match="another model"):
        check_seam(Network(network.file.model_copy(update={"model": other})), before)
    with pytest.raises(AuditError, match="another network"):
        check_seam(network, network)
    with pytest.raises(AuditError, match="names no network"):
        check_seam(before, before)
    assert header.round == end.round
    assert "predecessor" in read_toml(folders[0] / "genesis.toml")
    (tmp_path / "net" / "predecessor.toml").rename(tmp_path / "away.toml")
    shutil.copytree(folders[0], tmp_path / "again")
    (tmp_path / "again" / "genesis.toml").unlink()
    shutil.rmtree(tmp_path / "again" / "store")
    with pytest.raises(UserError, match="genesis file, is missing"):
        join(tmp_path / "again", tmp_path / "net")
