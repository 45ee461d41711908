"""Networks of real processes on loopback, and the means to hurt them.

Between any two nodes stands a small proxy, so a test can cut connections as a network would,
without rights that only an administrator has.
"""

import contextlib
import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np

from holdout.errors import UserError
from holdout.node.localnet.launcher import free_ports
from holdout.node.membership import members, network_creation
from holdout.node.membership.genesis import DataDescription, Parameters
from holdout.node.membership.model_files import describe_model
from holdout.node.membership.network_creation import usual_parameters
from holdout.node.runtime.folder import join
from holdout.node.runtime.status import ask_status
from holdout.node.storage.audit import audit, opened

HERE = Path(__file__).parent
SHAPE, CLASSES = (8,), 3

_LIMITED = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
os.execv(sys.argv[2], sys.argv[2:])
"""


class Proxy:
    """Carries bytes between two nodes until it is told to stop."""

    def __init__(self, target):
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._cut = False
        self._pairs = []
        self._threads = []
        self._begin(self._accept)

    def _begin(self, work, *arguments):
        self._threads.append(threading.Thread(target=work, args=arguments, daemon=True))
        self._threads[-1].start()

    def _accept(self):
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            if self._cut:
                near.close()
                continue
            try:
                far = socket.create_connection(("127.0.0.1", self._target), timeout=2)
            except OSError:
                near.close()
                continue
            self._pairs.append((near, far))
            self._begin(self._carry, near, far)

    def _carry(self, near, far):
        with near, far, selectors.DefaultSelector() as selector, contextlib.suppress(OSError):
            selector.register(near, selectors.EVENT_READ, far)
            selector.register(far, selectors.EVENT_READ, near)
            while True:
                for key, _ in selector.select():
                    data = key.fileobj.recv(1 << 16)
                    if not data:
                        return
                    key.data.sendall(data)

    def cut(self):
        self._cut = True
        for pair in self._pairs:
            for end in pair:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
        self._pairs.clear()

    def heal(self):
        self._cut = False

    def close(self):
        self.cut()
        # Closing alone would not wake the thread that waits on it.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(5)


class Network:
    """Some nodes of a network, each a process."""

    def __init__(
        self,
        folder,
        *,
        nodes=4,
        byzantine=None,
        proxies=False,
        addresses=None,
        options=None,
        timing="",
        storage="",
    ):
        self.folder = Path(folder)
        self.count = nodes
        self.processes = {}
        self.proxies = {}
        self.expected_dead = set()
        self.names = [f"node-{i}" for i in range(nodes)]
        ports = free_ports(nodes)
        addresses = addresses or [f"127.0.0.1:{port}" for port in ports]
        for index, name in enumerate(self.names):
            members.init_node(
                self.of(index),
                name=name,
                address=addresses[index],
                make_worker="tiny_worker:make_worker",
            )
            shutil.copy(HERE / "tiny_worker.py", self.of(index))
            self.edit(
                index,
                "[timing]\n",
                "[timing]\ndelay = 300\nfetch = 300\npropose_max = 3000\nvote_max = 3000\n"
                + timing,
            )
            if proxies:
                self.edit(index, "[peers]\n", "[peers]\n" + self._peers(index, ports))
            self.edit(index, "[storage]\n", f"[storage]\nfree_megabytes_min = 1\n{storage}")
            self.edit(
                index, "[worker_options]\n", "[worker_options]\n" + (options or {}).get(index, "")
            )
        liars = (nodes - 1) // 3 if byzantine is None else byzantine
        parameters: Parameters = usual_parameters(nodes, liars, 0.1)
        tensors = {
            "weight": np.zeros((CLASSES, *SHAPE), np.float32),
            "bias": np.zeros(CLASSES, np.float32),
        }
        self.network = self.folder / "network"
        network_creation.draft_network(
            self.network,
            network_creation.gather([self.of(i) for i in range(nodes)]),
            name="test",
            parameters=parameters,
            model=describe_model("tiny_worker:make_model", tensors),
            data=DataDescription(description="synthetic", shape=list(SHAPE), classes=CLASSES),
        )
        self.made = network_creation.finish_network(self.network, beacon=bytes(32))
        for index in range(nodes):
            join(self.of(index), self.network)

    def _peers(self, index, ports):
        lines = []
        for other in range(index):
            self.proxies[index, other] = proxy = Proxy(ports[other])
            lines.append(f'{self.names[other]} = "127.0.0.1:{proxy.port}"')
        return "\n".join(lines) + "\n"

    def of(self, index):
        return self.folder / self.names[index]

    def edit(self, index, old, new):
        path = self.of(index) / "node.toml"
        path.write_text(path.read_text().replace(old, new, 1))

    # -- processes ------------------------------------------------------------------------------

    def start(self, *indices, until=None, lies=None, file_bytes_max=None):
        for index in indices or range(self.count):
            self.expected_dead.discard(index)
            run = [sys.executable, "-m", "holdout", "node", "run"]
            extra = [] if until is None else ["--until", str(until)]
            if lies and index in lies:
                run = [sys.executable, "-m", "holdout.node.localnet.lying_node"]
                extra += ["--lies", lies[index], "--liars", ",".join(map(str, lies))]
                # A flooder that takes only what others leave over is never heard on a busy machine.
                extra += ["--full-speed"]
            if file_bytes_max is not None:
                run = [sys.executable, "-c", _LIMITED, str(file_bytes_max), *run]
            with (self.of(index) / "node.log").open("ab") as log:
                self.processes[index] = subprocess.Popen(
                    self.wrap(index, [*run, str(self.of(index)), *extra]),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env={**os.environ, "HOLDOUT_END_WITH_PARENT": str(os.getpid())},
                    start_new_session=True,
                )

    def wrap(self, index, command):
        """How a node's command is run."""
        del index
        return command

    def kill(self, *indices):
        self.expected_dead |= set(indices)
        for index in indices:
            self.processes[index].kill()
        for index in indices:
            self.processes[index].wait()

    def stop(self, *indices, seconds=10):
        """SIGTERM; the exit codes."""
        self.expected_dead |= set(indices or self.processes)
        for index in indices or list(self.processes):
            self.processes[index].send_signal(signal.SIGTERM)
        return [self.processes[i].wait(seconds) for i in indices or list(self.processes)]

    def close(self):
        for process in self.processes.values():
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        for proxy in self.proxies.values():
            proxy.close()

    # -- looking --------------------------------------------------------------------------------

    def status(self, index):
        return status_of(self.of(index))

    def decided(self, *indices):
        return [self.status(index)["decided"] for index in indices or range(self.count)]

    def wait_for_round(self, number, *indices, seconds=60):
        self.wait(lambda: min(self.decided(*indices)) >= number, seconds)

    def wait(self, condition, seconds=60):
        end = time.monotonic() + seconds
        while not condition():
            ended = [i for i, process in self.processes.items() if process.poll() is not None]
            if time.monotonic() > end or set(ended) - self.expected_dead:
                raise AssertionError(f"not in time: {self.tell()}")
            time.sleep(0.2)

    def tell(self):
        lines = [f"decided {self.decided()}"]
        for index in range(self.count):
            log = self.of(index) / "node.log"
            if log.exists():
                lines += [f"{index}: {line}" for line in log.read_text().splitlines()[-3:]]
        return "\n".join(lines)

    def events(self, index, kind=None):
        found = []
        for line in (self.of(index) / "node.log").read_text().splitlines():
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
        return [event for event in found if kind is None or event["event"] == kind]

    def audits(self, *indices, last=None, full=False):
        """What an offline audit says of each store; the nodes must not run."""
        results = {}
        for index in indices or range(self.count):
            with opened(self.of(index)) as (store, network):
                results[index] = audit(store, network.genesis, last=last, full=full)
        return results

    def chains(self, *indices):
        """The digests of all decided blocks of each node, in order."""
        found = {}
        for index in indices or range(self.count):
            with opened(self.of(index)) as (store, _):
                items = store.finished(1, store.height())
                found[index] = [item.certificate.value for item in items]
        return found

    def cut_between(self, one, other):
        for (high, low), proxy in self.proxies.items():
            if (high in one) != (low in one) and {high, low} <= {*one, *other}:
                proxy.cut()

    def heal(self):
        for proxy in self.proxies.values():
            proxy.heal()


def status_of(folder):
    """What the node in this folder says of itself; if none runs, that nothing is decided."""
    try:
        return ask_status(folder, 2)
    except UserError:
        return {"decided": 0, "round": 0, "peers": [], "heard": []}


def start_alone(command, log):
    """Start a command that ends with this process; its output goes into a file."""
    with Path(log).open("ab") as file:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env={**os.environ, "HOLDOUT_END_WITH_PARENT": str(os.getpid())},
            start_new_session=True,
        )


def wait_until(condition, seconds=90):
    """Wait for something that happens in other processes."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "not in time"
        time.sleep(0.2)


def agree(chains):
    """Whether no two chains differ where both have a block."""
    for one in chains.values():
        for other in chains.values():
            shorter = min(len(one), len(other))
            if one[:shorter] != other[:shorter]:
                return False
    return True


def kill_at_random(network, victim, *, times, words):
    """Kill a node at random moments and start it again; each time it catches up."""
    others = [index for index in range(network.count) if index != victim]
    for _ in range(times):
        time.sleep(words.uniform(0.0, 1.5))
        network.kill(victim)
        network.start(victim)
        reached = max(network.decided(*others))
        network.wait_for_round(reached, victim)


def part_and_heal(network, one, other, *, seconds):
    """Cut the network in two, look, and heal it."""
    network.cut_between(one, other)
    time.sleep(1.0)  # What was under way may still arrive.
    before = network.decided()
    quorum = 2 * network.count // 3 + 1
    big = one if len(one) >= quorum else ()
    if big:
        network.wait(lambda: min(network.decided(*big)) >= max(before) + 2, 90)
    time.sleep(seconds)
    after = network.decided()
    for node in (*one, *other):
        if node not in big:
            # The certificate of one round may have been complete already.
            assert after[node] - before[node] <= 1, (before, after)
    network.heal()
    network.wait_for_round(max(after) + 2, seconds=90)
