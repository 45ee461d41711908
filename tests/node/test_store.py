"""What is written is whole, what is lost is seen to be lost."""

import os
import shutil
import sqlite3
import struct
import subprocess
import threading

import pytest
from tests.node.test_genesis import draft

from holdout.agreement import aggregate, safety
from holdout.agreement.events import BlobKind
from holdout.agreement.headers import BlockKind, Header
from holdout.agreement.messages import (
    Bundle,
    Envelope,
    Evidence,
    Finished,
    Kind,
    VoteSignature,
    VoteStep,
    vote_part,
)
from holdout.errors import StoreError, UserError
from holdout.ids import Digest
from holdout.node.membership import network_creation
from holdout.node.membership.genesis import GENESIS, Network
from holdout.node.membership.model_files import MODEL, load_model
from holdout.node.storage.folder_lock import locked
from holdout.node.storage.retention import Retention
from holdout.node.storage.store import BLOBS, DATABASE, Store
from holdout.node.storage.store_recovery import checked_blob, open_store


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    folder = tmp_path_factory.mktemp("net")
    draft(folder)
    network_creation.finish_network(folder / "net", beacon=bytes(32))
    made = Network.read(folder / "net" / GENESIS)
    return made, load_model(folder / "net" / MODEL, made.file.model)


@pytest.fixture
def store_folder(tmp_path, network):
    made, model = network
    Store.create(tmp_path / "store", made.genesis, model)
    return tmp_path / "store"


SETTINGS = ("journal_mode", "synchronous", "locking_mode")


def open_again(folder, network, retention=None):
    made, model = network
    return open_store(folder, made.genesis, model, retention or Retention(), 0)


def finished(network, number, model):
    """A decided round; its certificate proves nothing, which is not the store's business."""
    chain = network[0].genesis.chain
    zero = Digest(bytes(32))
    header = Header(
        1, chain, number, zero, BlockKind.STEP, 0, 0, zero, b"", zero, zero, zero, zero,
        number, zero, model, 0.0,
    )  # fmt: skip
    marks = tuple(VoteSignature(worker, bytes(64), b"") for worker in range(3))
    bundle = Bundle(chain, number, 0, VoteStep.CERT, header.digest, marks)
    return Finished(header.encode(), bundle)


def payload(number):
    data = struct.pack("<8f", *[float(number + 1)] * 8)
    return aggregate.payload_digest(data), data


def test_a_new_store_is_no_amnesia_and_reads_back(store_folder, network):
    opened = open_again(store_folder, network)
    genesis = network[0].genesis
    assert opened.safety == safety.initial(genesis)
    assert opened.notes == ()
    assert opened.store.blob(BlobKind.MODEL, genesis.params.model_first) == network[1]
    state = safety.Safety(round=3).encode(genesis.chain)
    model = genesis.params.model_first
    digest, data = payload(1)
    opened.store.persist(
        state,
        [(1, finished(network, 1, model)), (2, finished(network, 2, model))],
        [(BlobKind.PAYLOAD, digest, data, 1)],
    )
    opened.store.close()
    again = open_again(store_folder, network)
    assert again.safety == state
    assert again.store.height() == 2
    assert again.store.finished(1, 2) == [finished(network, n, model) for n in (1, 2)]
    assert again.store.blob(BlobKind.PAYLOAD, digest) == data
    again.store.close()


def test_a_store_is_made_once(store_folder, network):
    with pytest.raises(UserError, match="already"):
        Store.create(store_folder, network[0].genesis, network[1])


def test_starting_without_a_store_is_amnesia(tmp_path, network):
    opened = open_again(tmp_path / "nothing", network)
    assert opened.safety is None
    assert "only watches" in opened.notes[0]
    opened.store.close()
    # And it stays amnesia: only what the player writes changes that.
    again = open_again(tmp_path / "nothing", network)
    assert again.safety is None
    again.store.close()


@pytest.mark.parametrize("size", [0, 100, 4096, 10_000])
def test_a_truncated_database_is_amnesia(store_folder, network, size):
    os.truncate(store_folder / DATABASE, size)
    opened = open_again(store_folder, network)
    assert opened.safety is None
    assert "lost or damaged" in opened.notes[0]
    assert (store_folder / "damaged-1" / DATABASE).stat().st_size == size
    opened.store.close()


def test_no_flipped_bit_goes_unnoticed_where_it_matters(store_folder, network):
    """Every byte of the safety record and of the certificates, and the pages around them."""
    genesis = network[0].genesis
    opened = open_again(store_folder, network)
    model = genesis.params.model_first
    state = safety.Safety(round=2).encode(genesis.chain)
    opened.store.persist(state, [(1, finished(network, 1, model))])
    opened.store.close()
    path = store_folder / DATABASE
    whole = path.read_bytes()
    start = whole.index(state)
    for at in [*range(0, len(whole), 997), *range(start, start + len(state), 7)]:
        damaged = bytearray(whole)
        damaged[at] ^= 0x04
        path.write_bytes(damaged)
        try:
            found = open_again(store_folder, network)
        except UserError:
            continue  # Refused outright: nothing is signed either.
        # Either it is seen to be damaged, or what was remembered is what was written.
        assert found.safety in {None, state}
        if found.safety is not None:
            assert found.store.finished(1, 1) in ([], [finished(network, 1, model)])
        found.store.close()


def test_a_cut_off_or_foreign_journal_loses_no_commit(store_folder, network):
    """What a killed process leaves beside the database never brings back an older state."""
    genesis = network[0].genesis
    opened = open_again(store_folder, network)
    state = safety.Safety(round=5).encode(genesis.chain)
    opened.store.persist(state)
    opened.store.close()
    assert not (store_folder / f"{DATABASE}-wal").exists()
    (store_folder / f"{DATABASE}-journal").write_bytes(b"\x00" * 512)
    again = open_again(store_folder, network)
    assert again.safety == state
    again.store.close()


def test_what_lies_in_the_journal_after_a_commit_undoes_nothing(store_folder, network):
    genesis = network[0].genesis
    states = [safety.Safety(round=number).encode(genesis.chain) for number in (5, 6)]
    opened = open_again(store_folder, network)
    for state in states:
        opened.store.persist(state)
    opened.store.close()
    journal = store_folder / f"{DATABASE}-journal"
    left = journal.read_bytes()
    assert not any(left[:8])
    for at in range(64):
        damaged = bytearray(left)
        damaged[at] ^= 0xFF
        journal.write_bytes(damaged)
        again = open_again(store_folder, network)
        assert again.safety == states[-1]
        again.store.close()


def test_a_store_is_read_while_it_is_written(store_folder, network):
    """The reader sees one moment of it; the writer waits for it and fails at nothing."""
    genesis = network[0].genesis
    first = genesis.params.model_first
    rounds, failures, done = 60, [], threading.Event()

    def write():
        opened = open_again(store_folder, network)
        try:
            for number in range(1, rounds + 1):
                state = safety.Safety(round=number + 1).encode(genesis.chain)
                opened.store.persist(state, [(number, finished(network, number, first))])
        except StoreError as error:
            failures.append(error)
        finally:
            opened.store.close()
            done.set()

    writer = threading.Thread(target=write)
    writer.start()
    heights = []
    while not done.is_set():
        with Store.snapshot(store_folder) as store:
            heights.append(store.height())
            state = safety.read_safety(store.safety(), genesis.chain)
            assert state.round == max(1, heights[-1] + 1)
            assert len(store.finished(1, rounds)) == heights[-1]
            assert store.damage() is None
    writer.join()
    assert failures == []
    assert heights == sorted(heights)
    with Store.snapshot(store_folder) as store:
        assert store.height() == rounds


def test_a_snapshot_holds_on_to_the_newest_model(store_folder, network):
    opened = open_again(store_folder, network)
    first = network[0].genesis.params.model_first
    opened.store.persist(b"state", [(1, finished(network, 1, first))])
    with Store.snapshot(store_folder) as store:
        for path in (store_folder / BLOBS).iterdir():
            path.unlink()
        assert store.blob(BlobKind.MODEL, first) == network[1]
    opened.store.close()


def test_a_snapshot_of_what_is_no_store_is_a_clear_refusal(tmp_path):
    with pytest.raises(UserError, match="cannot be read"):
        Store.snapshot(tmp_path)
    (tmp_path / DATABASE).write_bytes(b"nonsense" * 1000)
    with pytest.raises(UserError, match="cannot be read"):
        Store.snapshot(tmp_path)


def test_a_commit_leaves_no_lock_and_cannot_come_undone(store_folder, network):
    """A deleted journal is not synced away: after a power cut it would take the commit back."""
    opened = open_again(store_folder, network)
    database = opened.store._database
    pragmas = [database.execute(f"PRAGMA {name}").fetchone()[0] for name in SETTINGS]
    assert pragmas == ["persist", 2, "normal"]
    opened.store.close()


def test_a_store_of_another_network_is_refused(store_folder, tmp_path):
    draft(tmp_path / "other")
    network_creation.finish_network(tmp_path / "other" / "net", beacon=bytes(32))
    other = Network.read(tmp_path / "other" / "net" / GENESIS)
    model = load_model(tmp_path / "other" / "net" / MODEL, other.file.model)
    with pytest.raises(UserError, match="another network"):
        open_store(store_folder, other.genesis, model, Retention(), 0)


def test_a_failed_write_changes_nothing(store_folder, network, monkeypatch):
    opened = open_again(store_folder, network)
    before = opened.store.safety()
    digest, data = payload(1)

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match="No space left"):
        opened.store.persist(b"other", (), [(BlobKind.PAYLOAD, digest, data, 1)])
    monkeypatch.undo()
    assert opened.store.safety() == before
    assert opened.store.blob(BlobKind.PAYLOAD, digest) is None
    # A round that is there already: the transaction fails as a whole.
    model = network[0].genesis.params.model_first
    opened.store.persist(b"first", [(1, finished(network, 1, model))])
    with pytest.raises(StoreError, match="UNIQUE"):
        opened.store.persist(b"second", [(1, finished(network, 1, model))])
    assert opened.store.safety() == b"first"
    opened.store.close()
    again = open_again(store_folder, network)
    assert list((store_folder / BLOBS).glob(".*")) == []
    again.store.close()


def test_too_little_room_is_said_before_anything_is_written(store_folder, network):
    made, model = network
    opened = open_store(store_folder, made.genesis, model, Retention(), 1 << 60)
    with pytest.raises(StoreError, match="make room"):
        opened.store.persist(b"state")
    assert opened.safety == opened.store.safety()
    opened.store.close()


def test_old_rounds_are_dropped_as_designed(store_folder, network):
    retention = Retention(bodies=4, gradients=2, models=3)
    opened = open_again(store_folder, network, retention)
    store = opened.store
    digests = {}
    for number in range(1, 9):
        digest, data = payload(number)
        body = Digest(bytes([number]) * 32)
        model = Digest(bytes([100 + number]) * 32)
        digests[number] = (digest, body, model)
        store.persist(
            b"state",
            [(number, finished(network, number, model))],
            [(BlobKind.MODEL, model, b"m", number)],
        )
        store.finish_round(
            number,
            [(BlobKind.PAYLOAD, digest, data, number), (BlobKind.BLOCK, body, b"b", number)],
        )
    kinds = (BlobKind.PAYLOAD, BlobKind.BLOCK, BlobKind.MODEL)
    kept = {
        kind: [n for n in digests if store.blob(kind, digests[n][place]) is not None]
        for place, kind in enumerate(kinds)
    }
    assert kept == {
        BlobKind.PAYLOAD: [7, 8],
        BlobKind.BLOCK: [5, 6, 7, 8],
        BlobKind.MODEL: [6, 7, 8],
    }
    # The newest model stays, however long nothing is learned.
    for number in range(9, 20):
        store.persist(b"state", [(number, finished(network, number, digests[8][2]))])
        store.finish_round(number, [])
    assert store.blob(BlobKind.MODEL, digests[8][2]) is not None
    assert len(store.finished(1, 100)) == 19
    store.close()


@pytest.mark.parametrize("way", ["finish_round", "persist"])
def test_a_gradient_that_comes_again_is_kept_as_long_as_a_new_one(store_folder, network, way):
    store = open_again(store_folder, network, Retention(gradients=2)).store
    digest, data = payload(1)
    store.finish_round(1, [(BlobKind.PAYLOAD, digest, data, 1)])
    again = [(BlobKind.PAYLOAD, digest, data, 3)]
    if way == "persist":
        store.persist(b"state", (), again)
        store.finish_round(3, [])
    else:
        store.finish_round(3, again)
    for number in (4, 5):
        assert store.blob(BlobKind.PAYLOAD, digest) == data
        store.finish_round(number, [])
    assert store.blob(BlobKind.PAYLOAD, digest) is None
    store.close()


def test_a_damaged_blob_counts_as_lost(store_folder, network):
    opened = open_again(store_folder, network)
    genesis = network[0].genesis
    digest = genesis.params.model_first
    said = []
    assert checked_blob(opened.store, genesis, BlobKind.MODEL, digest, said.append) == network[1]
    path = next((store_folder / BLOBS).iterdir())
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    assert checked_blob(opened.store, genesis, BlobKind.MODEL, digest, said.append) is None
    assert "damaged on disk" in said[0]
    opened.store.close()


def test_evidence_is_kept(store_folder, network):
    genesis = network[0].genesis
    envelopes = [
        Envelope(
            Kind.VOTE,
            vote_part(genesis.chain, 1, 0, 1, 2, Digest(bytes([value]) * 32)),
            bytes(64),
        )
        for value in (1, 2)
    ]
    evidence = Evidence.of(*envelopes)
    opened = open_again(store_folder, network)
    opened.store.add_evidence(2, 1, evidence)
    opened.store.add_evidence(2, 1, evidence)
    opened.store.close()
    again = open_again(store_folder, network)
    assert again.store.evidence() == [(2, 1, evidence)]
    again.store.close()


def test_two_processes_do_not_share_a_folder(tmp_path):
    with locked(tmp_path), pytest.raises(UserError, match="another process"), locked(tmp_path):
        pass


def test_writes_are_synced_and_there_is_no_log_to_lose(store_folder):
    database = sqlite3.connect(store_folder / DATABASE)
    assert database.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    database.close()
    store = Store(store_folder, Retention(), 0)
    assert store._database.execute("PRAGMA synchronous").fetchone() == (2,)
    store.close()


def hard_copy(source, target):
    """As a careful administrator copies: with times, modes and attributes."""
    subprocess.run(["cp", "-a", source, target], check=True)


def test_a_store_that_was_copied_here_keeps_its_chain_and_forgets_its_votes(
    store_folder, network, tmp_path
):
    first = open_again(store_folder, network)
    assert first.safety is not None
    first.store.close()
    # Moved, it is the same store.
    moved = store_folder.rename(tmp_path / "moved")
    again = open_again(moved, network)
    assert (again.safety, again.notes) == (first.safety, ())
    again.store.close()
    for number, copy in enumerate((shutil.copytree, hard_copy)):
        place = tmp_path / f"copy-{number}"
        copy(moved, place)
        copied = open_again(place, network)
        assert copied.safety is None
        assert "is a copy" in copied.notes[0]
        copied.store.close()
        # It stays so until others have told it how far the chain is.
        later = open_again(place, network)
        assert later.safety is None
        later.store.close()


def test_a_copy_back_into_the_same_place_is_noticed(store_folder, network, tmp_path):
    shutil.copytree(store_folder, tmp_path / "backup")
    for _ in range(20):  # A system may give a new file the number of one that was removed.
        shutil.rmtree(store_folder)
        shutil.copytree(tmp_path / "backup", store_folder)
        opened = open_again(store_folder, network)
        assert opened.safety is None
        opened.store.close()
