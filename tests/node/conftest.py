"""Fixtures for tests with real processes."""

import pytest
from tests.node.node_rig import Network


@pytest.fixture
def make_network(tmp_path):
    """Networks that are ended with the test, whatever happens in it."""
    made = []

    def make(**settings):
        made.append(Network(tmp_path / f"net-{len(made)}", **settings))
        return made[-1]

    yield make
    for network in made:
        network.close()
