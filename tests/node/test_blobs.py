"""Fetching by digest: the right bytes or the next holder."""

import asyncio
import struct
from dataclasses import replace

from tests.node.test_inbox import params

from holdout.agreement import aggregate
from holdout.agreement.events import BlobKind
from holdout.ids import Digest
from holdout.node.network.blobs import CACHE_BYTES, Blobs, Fetcher
from holdout.node.network.zenoh_config import CHUNK_BYTES
from holdout.seeds import stream

DIMENSION = 10


def gradient(value=1.0, dimension=DIMENSION):
    data = struct.pack("<f", value) * dimension
    return aggregate.payload_digest(data), data


class Peers:
    """A transport whose peers answer as they are told."""

    def __init__(self, answers):
        self.answers = answers
        self.asked = []
        self.given_up = []

    async def request(self, peer, question, _seconds_max):
        self.asked.append(peer)
        await asyncio.sleep(0)
        answer = self.answers.get(peer)
        return answer(question) if callable(answer) else answer


def fetch(peers, kind, digest, hints, *, rules=None, until=lambda got: got, forget=False):
    """What a fetcher gets from these peers."""
    got = []

    async def run():
        fetcher = Fetcher(
            peers,
            rules or params(5),
            [1, 2, 3, 4],
            delay=0.001,
            words=stream(0, "test"),
            ready=lambda *item: got.append(item),
            gave_up=peers.given_up.append,
        )
        fetcher.want(kind, digest, hints, 7)
        fetcher.want(kind, digest, hints, 7)
        async with asyncio.timeout(5):
            while not until(got):  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        if forget:
            fetcher.forget(8)
            assert fetcher.count == 0
        fetcher.close()
        return fetcher

    return asyncio.run(run()), got


def holder(*blobs):
    held = Blobs(lambda *_: None)
    for digest, data in blobs:
        held.put(BlobKind.PAYLOAD, digest, data, 1)
    return held.serve


def test_the_named_holder_is_asked_first_and_once():
    digest, data = gradient()
    peers = Peers({3: holder((digest, data))})
    _, got = fetch(peers, BlobKind.PAYLOAD, digest, (3, 1))
    assert got == [(BlobKind.PAYLOAD, digest, data)]
    assert peers.asked == [3]


def test_wrong_bytes_and_silence_lead_to_the_next_holder():
    digest, data = gradient()
    _, other = gradient(2.0)
    size = struct.pack("<Q", len(data))
    peers = Peers(
        {
            1: size + other,
            2: None,
            3: struct.pack("<Q", 1 << 60) + data,
            4: holder((digest, data)),
        }
    )
    fetcher, got = fetch(peers, BlobKind.PAYLOAD, digest, (1, 2, 3))
    assert got == [(BlobKind.PAYLOAD, digest, data)]
    assert peers.asked == [1, 2, 3, 4]
    assert fetcher.wrong == {1: 1, 3: 1}
    assert fetcher.silent == {2: 1}


def dripping(data, *, bytes_each=1):
    """A holder that answers each question with a few bytes."""

    def answer(question):
        offset = int(question.rsplit("/", 1)[1])
        return struct.pack("<Q", len(data)) + data[offset : offset + bytes_each]

    return answer


def test_a_holder_that_drips_is_given_up_after_its_first_piece():
    digest, data = gradient()
    peers = Peers({1: dripping(data), 2: dripping(data, bytes_each=39), 4: holder((digest, data))})
    fetcher, got = fetch(peers, BlobKind.PAYLOAD, digest, (1, 2, 4))
    assert got == [(BlobKind.PAYLOAD, digest, data)]
    assert peers.asked == [1, 2, 4]
    assert fetcher.wrong == {1: 1, 2: 1}


def test_a_blob_whose_size_changes_is_given_up():
    rules = large_params(2)
    digest, data = gradient(1.5, rules.dimension)

    def growing(question):
        offset = int(question.rsplit("/", 1)[1])
        size = len(data) if offset else 2 * CHUNK_BYTES
        return struct.pack("<Q", size) + data[offset : offset + CHUNK_BYTES]

    peers = Peers({1: growing, 2: holder((digest, data))})
    fetcher, got = fetch(peers, BlobKind.PAYLOAD, digest, (1, 2), rules=rules)
    assert got == [(BlobKind.PAYLOAD, digest, data)]
    assert peers.asked[:3] == [1, 1, 2]
    assert fetcher.wrong == {1: 1}


def test_a_piece_that_is_too_long_is_given_up():
    rules = large_params(2)
    digest, data = gradient(1.5, rules.dimension)
    peers = Peers({1: struct.pack("<Q", len(data)) + data, 2: holder((digest, data))})
    fetcher, got = fetch(peers, BlobKind.PAYLOAD, digest, (1, 2), rules=rules)
    assert len(got) == 1
    assert fetcher.wrong == {1: 1}


def test_what_nobody_has_is_asked_for_until_it_is_forgotten():
    digest, _ = gradient()
    peers = Peers({})
    _, got = fetch(
        peers, BlobKind.PAYLOAD, digest, (), until=lambda _: len(peers.asked) > 12, forget=True
    )
    assert got == []
    assert set(peers.asked) == {1, 2, 3, 4}


def test_large_blobs_travel_in_pieces():
    rules = large_params(2)
    digest, data = gradient(1.5, rules.dimension)
    peers = Peers({2: holder((digest, data))})
    _, got = fetch(peers, BlobKind.PAYLOAD, digest, (2,), rules=rules)
    assert got == [(BlobKind.PAYLOAD, digest, data)]
    assert peers.asked == [2, 2, 2]


def large_params(pieces):
    """Gradients of so many whole pieces and a bit."""
    return replace(params(5), dimension=CHUNK_BYTES // 4 * pieces + 100)


def test_strange_questions_are_not_answered():
    digest, data = gradient()
    serve = holder((digest, data))
    assert serve(f"1/{digest.hex()}/0")[8:] == data
    assert serve(f"1/{digest.hex()}/40")[8:] == b""
    for question in (
        "",
        "1",
        f"4/{digest.hex()}/0",
        f"1/{digest.hex()}/41",
        f"1/{digest.hex()}/-1",
        f"1/{digest.hex().upper()}/0",
        "1/../../keys/signing.seed/0",
        f"1/{'0' * 64}/0",
    ):
        assert serve(question) is None, question


def test_memory_is_given_back():
    held = Blobs(lambda *_: None)
    for number in range(10):
        digest, data = gradient(float(number + 1))
        held.put(BlobKind.PAYLOAD, digest, data, number)
    held.forget(8)
    assert held.size == 2 * 4 * DIMENSION


def test_a_blob_on_disk_is_read_and_checked_once_for_many_questions():
    reads = []

    def on_disk(_kind, digest):
        reads.append(digest)
        return bytes(3 << 20) if digest == Digest(b"a" * 32) else None

    blobs = Blobs(on_disk)
    question = f"1/{(b'a' * 32).hex()}/"
    for offset in (0, 1 << 20, 2 << 20, 0):
        assert blobs.serve(question + str(offset)) is not None
    assert len(reads) == 1
    blobs.forget(2)
    assert blobs.size == 0
    blobs.serve(question + "0")
    assert len(reads) == 2


def test_what_was_read_from_disk_takes_bounded_memory():
    blobs = Blobs(lambda *_: bytes(CACHE_BYTES // 3))
    for number in range(9):
        blobs.get(BlobKind.PAYLOAD, Digest(bytes([number]) * 32))
        assert blobs.size <= CACHE_BYTES
    huge = Blobs(lambda *_: bytes(CACHE_BYTES + 1))
    for number in range(3):
        huge.get(BlobKind.PAYLOAD, Digest(bytes([number]) * 32))
    assert huge.size == CACHE_BYTES + 1


def test_a_gradient_that_its_first_holder_does_not_give_is_given_up_once_and_still_fetched():
    digest, data = gradient()
    peers = Peers({2: None, 3: None, 4: holder((digest, data))})
    fetcher, got = fetch(peers, BlobKind.PAYLOAD, digest, (2, 3))
    assert got == [(BlobKind.PAYLOAD, digest, data)]
    assert peers.given_up == [digest]
    assert fetcher.failed == {2: 1}
