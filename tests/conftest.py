"""Options and fixtures that all tests share."""

import os
import signal
from pathlib import Path

import pytest
import torch
from hypothesis import settings

ROOT = Path(__file__).resolve().parent.parent
REAL_DATA = Path(os.environ.get("HOLDOUT_TEST_DATA") or ROOT.parent / "shared" / "data")
"""A folder with `mnist` and `cifar10`, the official files in each."""

# A machine may be busy: no example fails for being slow.
settings.register_profile("holdout", settings(settings.default, deadline=None))
settings.load_profile("holdout")


def pytest_configure():
    # A shell starts what runs in its background deaf to Ctrl-C, and so would be what tests start.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser):
    parser.addoption(
        "--rewrite", action="store_true", help="write what golden scripts print as expected"
    )
    parser.addoption("--soak", action="store_true", help="run the long tests, and only those")


def pytest_collection_modifyitems(config, items):
    soak = config.getoption("--soak")
    others = [item for item in items if ("soak" in item.keywords) != soak]
    config.hook.pytest_deselected(items=others)
    items[:] = [item for item in items if ("soak" in item.keywords) == soak]
    for item in items:
        if "real_data" in item.keywords and not REAL_DATA.is_dir():
            item.add_marker(pytest.mark.skip(reason="the real data sets are not here"))


@pytest.fixture(autouse=True)
def _one_thread():
    """More torch threads than free cores are many times slower; tests stay with one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder with the real MNIST and CIFAR-10 files."""
    return REAL_DATA
