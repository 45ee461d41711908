"""The faults of `test_faults.py` in full length, and those that need time or a compiler."""

import os
import random
import shutil
import subprocess
import sys
import time

import pytest
from tests.node.namespaces import NamespacedNetwork, why_not
from tests.node.node_rig import kill_at_random, part_and_heal
from tests.node.test_faults import HONEST, healthy

pytestmark = pytest.mark.soak

SHIFTED_CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

static long shift(void) { return atol(getenv("CLOCK_SHIFT")); }

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, now);
    if (clock == CLOCK_REALTIME) now->tv_sec += shift();
    return result;
}

int gettimeofday(struct timeval *now, void *zone) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (now) *now = exact.tv_sec;
    return exact.tv_sec;
}
"""


def test_twenty_kills_of_one_node(make_network):
    network = make_network(nodes=7)
    network.start()
    network.wait_for_round(2, seconds=120)
    kill_at_random(network, 3, times=20, words=random.Random(1))
    before = max(network.decided())
    network.wait_for_round(before + 2)
    network.stop(seconds=20)
    healthy(network)


def test_ten_kills_of_all_nodes(make_network):
    network = make_network(nodes=7)
    network.start()
    network.wait_for_round(2, seconds=120)
    words = random.Random(2)
    for _ in range(10):
        time.sleep(words.uniform(0.0, 2.0))
        before = max(network.decided())
        network.kill(*range(7))
        network.start()
        network.wait_for_round(before + 2, seconds=120)
    network.stop(seconds=20)
    healthy(network)


def test_partitions_of_half_a_minute(make_network):
    network = make_network(nodes=7, proxies=True)
    network.start()
    network.wait_for_round(2, seconds=120)
    part_and_heal(network, HONEST, (5, 6), seconds=30)
    part_and_heal(network, (0, 1, 2, 3), (4, 5, 6), seconds=30)
    network.stop(seconds=20)
    healthy(network)


def test_partitions_of_network_namespaces(tmp_path):
    """The same where packets vanish without a word, instead of connections being ended."""
    missing = why_not()
    if missing is not None:
        pytest.skip(missing)
    network = NamespacedNetwork(tmp_path / "net", nodes=7)
    try:
        network.start()
        network.wait_for_round(2, seconds=120)
        part_and_heal(network, HONEST, (5, 6), seconds=30)
        part_and_heal(network, (0, 1, 2, 3), (4, 5, 6), seconds=30)
        network.stop(seconds=20)
        healthy(network)
    finally:
        network.close()


@pytest.mark.parametrize(
    "lies",
    [
        "equivocate",
        "withhold,coalition",
        "garbage,replay,impersonate",
        "silent",
        "flood",
        "coalition,equivocate,withhold,garbage,replay,impersonate,flood",
    ],
)
def test_two_liars_of_seven(make_network, lies):
    network = make_network(nodes=7)
    network.start(*HONEST)
    network.wait_for_round(2, *HONEST, seconds=120)
    before = max(_memory(network, node) for node in HONEST)
    network.start(5, 6, lies={5: lies, 6: lies})
    reached = max(network.decided(*HONEST))
    network.wait_for_round(reached + 20, *HONEST, seconds=400)
    if "flood" in lies:
        network.wait(lambda: all(_is_flooded(network.status(node)) for node in HONEST), 200)
    if "equivocate" in lies:
        network.wait(lambda: all(_accuses_both(network.status(node)) for node in HONEST), 200)
    for node in HONEST:
        assert _memory(network, node) < before + (200 << 20)
        assert set(network.status(node)["evidence"]) <= {"node-5", "node-6"}
    network.stop(*HONEST, seconds=30)
    network.kill(5, 6)
    healthy(network, *HONEST)


def _memory(network, node):
    return network.status(node)["memory"]["node"]


def _is_flooded(status):
    # One message in two hundred of the flood is that large.
    dropped = status.get("dropped", {})
    return all(dropped.get(f"node-{liar}: oversize", 0) >= 20 for liar in (5, 6))


def _accuses_both(status):
    return {"node-5", "node-6"} <= set(status.get("evidence", ()))


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_clock_that_is_off_by_an_hour_has_no_effect(make_network, tmp_path, monkeypatch, hours):
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("a shifted clock needs a C compiler")
    source, library = tmp_path / "clock.c", tmp_path / "clock.so"
    source.write_text(SHIFTED_CLOCK)
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True
    )
    network = make_network()
    network.start(0, 1, 2)
    monkeypatch.setenv("LD_PRELOAD", str(library))
    monkeypatch.setenv("CLOCK_SHIFT", str(3600 * hours))
    shown = subprocess.run(
        [sys.executable, "-c", "import time; print(time.time())"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert abs(float(shown.stdout) - time.time() - 3600 * hours) < 60
    network.start(3)
    monkeypatch.delenv("LD_PRELOAD")
    network.wait_for_round(6, seconds=120)
    assert len(network.status(3)["peers"]) == 3
    network.stop(seconds=20)
    healthy(network)
    # All four signed: nobody was left out.
    signers = {name for node in range(4) for name in _signers(network, node)}
    assert 3 in signers


def _signers(network, node):
    from holdout.node.storage.audit import opened

    with opened(network.of(node)) as (store, _):
        items = store.finished(1, store.height())
    return {mark.worker for item in items for mark in item.certificate.marks}


def test_a_full_disk_stops_the_node_cleanly(make_network, tmp_path):
    """A real small file system, where one can be mounted."""
    if os.getuid() != 0:
        pytest.skip("mounting needs an administrator")
    network = make_network()
    store = network.of(0) / "store"
    kept = tmp_path / "kept"
    shutil.copytree(store, kept)
    mount = ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(store)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        shutil.copytree(kept, store, dirs_exist_ok=True)
        network.edit(0, "free_megabytes_min = 1", "free_megabytes_min = 0")
        network.edit(0, "[storage]\n", "[storage]\nbodies = 0\ngradients = 0\nmodels = 0\n")
        network.start()
        assert network.processes[0].wait(300) == 2
        said = (network.of(0) / "node.log").read_text().splitlines()[-1]
        assert "cannot be written" in said
        network.expected_dead.add(0)
        network.wait_for_round(max(network.decided(1, 2, 3)) + 3, 1, 2, 3)
        network.stop(1, 2, 3)
        healthy(network)
    finally:
        subprocess.run(["umount", str(store)], check=True)


@pytest.mark.slow
def test_a_localnet_of_seven_takes_less_than_three_minutes(tmp_path):
    command = "localnet --nodes 7 --byzantine 2 --rounds 20 --out"
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "holdout", *command.split(), str(tmp_path / "net")],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert "All 5 honest nodes hold model" in done.stdout
    assert time.monotonic() - began < 180
