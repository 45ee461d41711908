"""The files of states."""

import numpy as np

from holdout import checkpoint_files
from holdout.checkpoint_files import Checkpoint, decode, encode


def test_one_thread_reads_at_a_time(monkeypatch):
    load, held = np.load, []

    def load_and_look(*args, **options):
        held.append(checkpoint_files._READING.locked())
        return load(*args, **options)

    monkeypatch.setattr(np, "load", load_and_look)
    found = decode(encode(Checkpoint({"round": 3}, {"x": np.arange(4)})))
    assert (found.meta["round"], found.arrays["x"].tolist(), held) == (3, [0, 1, 2, 3], [True])
    assert not checkpoint_files._READING.locked()
