"""What the tests of `holdout.flower` share: no internet, no pauses, a server that knows itself."""

import logging
import os

import pytest
from tests.flower.flower_grid import OFFLINE

os.environ.update(OFFLINE)  # Before Flower is first used, and for every process started from here.

from flwr.supercore.task_identity import TaskIdentity


@pytest.fixture(autouse=True)
def _server(monkeypatch):
    """Messages are written by a server that has an identity."""
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


@pytest.fixture(autouse=True)
def _quiet():
    """Flower says much; tests that look at it say from which level on."""
    logger = logging.getLogger("flwr")
    before = logger.level
    logger.setLevel(logging.WARNING)
    yield
    logger.setLevel(before)


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """Functions answer at once; nobody needs a pause."""
    monkeypatch.setattr("holdout.flower.exchange.FIRST_PAUSE", 0.001)
    monkeypatch.setattr("holdout.flower.exchange.LONGEST_PAUSE", 0.01)
    monkeypatch.setattr("holdout.flower.roster.ASK_EVERY", 0.01)
