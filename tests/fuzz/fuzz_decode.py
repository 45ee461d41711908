"""Coverage-guided fuzzing of everything that is decoded from a peer's bytes.

    python -m tests.fuzz.fuzz_decode CORPUS_FOLDER -max_total_time=60

The first byte chooses the decoder, the rest is what a peer sent. A decoder gives a value whose
encoding is the same bytes, or raises `InvalidMessage`; anything else is a finding, which is written
to a file `crash-*` and can be replayed by naming that file instead of the folder. A folder that is
empty is filled with one message of each kind first.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdout.errors import InvalidMessage

Pair = tuple[Callable[[bytes], Any], Callable[[Any], bytes]]


def decoders() -> list[Pair]:
    """Every decoder with its encoder."""
    from holdout.agreement import blocks, wire

    return [
        (wire.decode, lambda unverified: wire.encode(unverified.claim)),
        (blocks.read_block, blocks.Block.encode),
        (blocks.read_header, blocks.Header.encode),
    ]


def examine(data: bytes, pairs: list[Pair]) -> None:
    """One input: right, or refused."""
    if not data:
        return
    decode, encode = pairs[data[0] % len(pairs)]
    try:
        value = decode(data[1:])
    except InvalidMessage:
        return
    if encode(value) != data[1:]:
        raise AssertionError("a second encoding was accepted")


def examples() -> list[bytes]:
    """Valid inputs: without them a fuzzer spends its time on lengths and tags."""
    from tests.agreement.rig import Network

    from holdout.agreement import messages, wire
    from holdout.agreement.codec import BOTTOM
    from holdout.agreement.messages import Evidence, VoteStep

    net = Network(4)
    updates = [net.update(worker) for worker in range(3)]
    evidence = Evidence.of(net.update(3).envelope, net.update(3, [0.0] * 6).envelope)
    ballots = [net.ballot(worker, updates) for worker in range(3)]
    block = net.finish(net.draft(updates, ballots, [evidence]))
    sent = [
        updates[0],
        ballots[0],
        net.lead(1),
        net.vote(1, VoteStep.CERT),
        net.bundle([0, 1, 2], VoteStep.DOWN, BOTTOM),
        evidence,
        messages.Finished(block.header.encode(), net.bundle([0, 1, 2], VoteStep.CERT)),
        messages.GetBlocks(net.chain, 1, 2),
        messages.GetUpdates(net.chain, 1, (updates[0].update_id,)),
        messages.Behind(net.chain, 1, 2),
        messages.HeadQuery(net.chain, bytes(32)),
        net.head_answer(2),
    ]
    return [
        *(b"\0" + wire.encode(message) for message in sent),
        b"\1" + block.encode(),
        b"\2" + block.header.encode(),
    ]


def main() -> None:
    """Fuzz until a finding, or until the time is over."""
    import atheris

    # First of all: what is imported already is not instrumented.
    with atheris.instrument_imports(include=["holdout.agreement"]):
        pairs = decoders()
    for folder in (Path(name) for name in sys.argv[1:] if not name.startswith("-")):
        if folder.is_dir() and not any(folder.iterdir()):
            for number, data in enumerate(examples()):
                (folder / f"example-{number}").write_bytes(data)
    atheris.Setup(sys.argv, lambda data: examine(data, pairs))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
