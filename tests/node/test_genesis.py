"""The genesis file: strict, complete, and its digest is the network."""

import re

import numpy as np
import pytest

from holdout.errors import UserError
from holdout.node.membership import members, network_creation
from holdout.node.membership.genesis import GENESIS, DataDescription, Network
from holdout.node.membership.members import read_member, read_share_file
from holdout.node.membership.model_files import MODEL, describe_model, load_model, save_model
from holdout.node.membership.network_creation import usual_parameters
from holdout.node.runtime.folder import join


def draft(folder, names=("alice", "bob", "carol", "dave"), byzantine=1):
    for place, name in enumerate(names):
        members.init_node(folder / name, name=name, address=f"127.0.0.1:{5000 + place}")
    tensors = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.zeros(2, np.float32)}
    return network_creation.draft_network(
        folder / "net",
        network_creation.gather([folder / name for name in names]),
        name="trial",
        parameters=usual_parameters(len(names), byzantine, 0.1),
        model=describe_model("own:model", tensors),
        data=DataDescription(description="words", shape=[3], classes=2),
    )


def reveal_all(folder, names=("alice", "bob", "carol", "dave")):
    shares = []
    for name in names:
        shares.append(folder / f"{name}.share")
        members.reveal(folder / name, folder / "net" / "setup.toml", shares[-1])
    return shares


def test_commit_and_reveal_make_a_network_that_reads_back(tmp_path):
    before = draft(tmp_path)
    with pytest.raises(UserError, match="no beacon yet"):
        _ = before.genesis
    network = network_creation.finish_network(tmp_path / "net", reveals=reveal_all(tmp_path))
    again = Network.read(tmp_path / "net" / GENESIS)
    assert again.identity == network.identity
    assert again.setup == before.setup
    assert again.params.quorum == 3
    assert [m.name for m in again.members] == ["alice", "bob", "carol", "dave"]


def test_a_missing_or_wrong_share_is_named(tmp_path):
    network = draft(tmp_path)
    shares = reveal_all(tmp_path)
    with pytest.raises(UserError, match="missing: dave"):
        network_creation.finish_network(tmp_path / "net", reveals=shares[:3])
    text = shares[1].read_text()
    shares[1].write_text(re.sub(r'share = "..', 'share = "ff', text))
    with pytest.raises(UserError, match="bob is not what it committed to"):
        network_creation.finish_network(tmp_path / "net", reveals=shares)
    shares[1].write_text(re.sub(r'setup = "..', 'setup = "ff', text))
    with pytest.raises(UserError, match="another network"):
        read_share_file(shares[1], network)


def test_every_byte_that_counts_changes_the_identity(tmp_path):
    draft(tmp_path)
    network = network_creation.finish_network(tmp_path / "net", beacon=bytes(32))
    path = tmp_path / "net" / GENESIS
    text = path.read_text()
    changed = {
        "words": "other words",
        "127.0.0.1:5001": "127.0.0.1:5009",
        "learning_rates = [\n    0.1": "learning_rates = [\n    0.2",
        f'beacon = "{"0" * 64}"': f'beacon = "{"1" * 64}"',
        'name = "trial"': 'name = "other"',
    }
    identities = {network.identity}
    for old, new in changed.items():
        assert old in text, old
        path.write_text(text.replace(old, new))
        identities.add(Network.read(path).identity)
    assert len(identities) == 1 + len(changed)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("classes = 2", 'classes = "2"', "classes"),
        ("[data]", "[data]\nunknown = 1", "unknown"),
        ("byzantine = 1", "byzantine = 2", "3B"),
        ("proposers = 4", "", "parameters.proposers: must be given"),
        ('name = "trial"', 'name = "A trial"', "network.name = 'A trial': must be up to 32"),
        ("127.0.0.1:5001", "5001", "members.1.address = '5001': must be HOST:PORT"),
        ("[network]", "network]", "not TOML"),
    ],
)
def test_a_file_with_a_mistake_is_refused(tmp_path, old, new, said):
    draft(tmp_path)
    network_creation.finish_network(tmp_path / "net", beacon=bytes(32))
    path = tmp_path / "net" / GENESIS
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(UserError, match=re.escape(said)):
        _ = Network.read(path).params


def test_two_members_with_one_key_are_refused(tmp_path):
    draft(tmp_path)
    network_creation.finish_network(tmp_path / "net", beacon=bytes(32))
    path = tmp_path / "net" / GENESIS
    keys = re.findall(r'signing = "([0-9a-f]+)"', path.read_text())
    path.write_text(path.read_text().replace(keys[1], keys[0]))
    with pytest.raises(UserError, match="same signing"):
        Network.read(path)


def test_two_members_with_one_address_are_refused(tmp_path):
    for name in ("alice", "bob"):
        members.init_node(tmp_path / name, name=name, address="127.0.0.1:5000")
    with pytest.raises(UserError, match=r"alice and bob have the same address, 127\.0\.0\.1:5000"):
        network_creation.gather([tmp_path / "alice", tmp_path / "bob"])


def test_a_members_file_proves_itself(tmp_path):
    members.init_node(tmp_path / "a", name="alice", address="127.0.0.1:5000")
    path = tmp_path / "a" / "member.toml"
    member, _ = read_member(path)
    assert member.name == "alice"
    path.write_text(path.read_text().replace("127.0.0.1:5000", "127.0.0.1:6000"))
    with pytest.raises(UserError, match="not signed"):
        read_member(path)


def test_joining_happens_once_and_only_with_the_right_keys(tmp_path):
    draft(tmp_path)
    network_creation.finish_network(tmp_path / "net", beacon=bytes(32))
    join(tmp_path / "alice", tmp_path / "net")
    with pytest.raises(UserError, match="joined this network before"):
        join(tmp_path / "alice", tmp_path / "net")
    # Not even without its store: it may have voted.
    for path in (tmp_path / "alice" / "store").glob("*.sqlite"):
        path.unlink()
    with pytest.raises(UserError, match="joined this network before"):
        join(tmp_path / "alice", tmp_path / "net")
    members.init_node(tmp_path / "false", name="bob", address="127.0.0.1:5001")
    with pytest.raises(UserError, match="other keys"):
        join(tmp_path / "false", tmp_path / "net")
    members.init_node(tmp_path / "eve", name="eve", address="127.0.0.1:5001")
    with pytest.raises(UserError, match="not a member"):
        join(tmp_path / "eve", tmp_path / "net")


def test_models_travel_as_they_are(tmp_path):
    tensors = {"w": np.array([[1.5, -0.0]], np.float32), "b": np.array([3.0], np.float32)}
    section, data = describe_model("m", tensors)
    save_model(tmp_path / MODEL, section, data, {"round": "1"})
    assert load_model(tmp_path / MODEL, section) == data
    other, _ = describe_model("m", {**tensors, "b": np.array([4.0], np.float32)})
    with pytest.raises(UserError, match="not the model"):
        load_model(tmp_path / MODEL, other)
    (tmp_path / MODEL).write_bytes(b"nonsense")
    with pytest.raises(UserError, match="safetensors"):
        load_model(tmp_path / MODEL, section)
