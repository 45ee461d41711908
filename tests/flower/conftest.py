"""What the tests of `holdout.flower` share: no internet, no pauses, a server with an identity."""

import logging
import os

import pytest
from tests.flower.flower_grid import OFFLINE

os.environ.update(OFFLINE)  # Before Flower is first used, and for every process started from here.

from flwr.supercore.task_identity import TaskIdentity


@pytest.fixture(autouse=True)
def _server(monkeypatch):
    """Give the server an identity: without one it cannot write messages."""
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


@pytest.fixture(autouse=True)
def _quiet():
    """Flower logs a lot; tests that read its log set the level themselves."""
    logger = logging.getLogger("flwr")
    before = logger.level
    logger.setLevel(logging.WARNING)
    yield
    logger.setLevel(before)


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """The nodes are functions that answer at once: poll without long pauses."""
    monkeypatch.setattr("holdout.flower.exchange.FIRST_PAUSE", 0.001)
    monkeypatch.setattr("holdout.flower.exchange.LONGEST_PAUSE", 0.01)
    monkeypatch.setattr("holdout.flower.roster.ASK_EVERY", 0.01)
