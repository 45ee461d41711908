"""Nodes in network namespaces of their own, on two switches with a cable between them.

Cutting the cable drops packets without a word, as real networks do: nobody is told that a
connection is gone. Needs an administrator on Linux; `why_not` says what is missing.
"""

import os
import shutil
import subprocess

from tests.node.node_rig import Network

SUBNET = "10.213.77"
SWITCHES = ("left", "right")


def why_not():
    """Why there can be no namespaces here; None if there can."""
    if os.getuid() != 0:
        return "network namespaces need an administrator"
    if shutil.which("ip") is None:
        return "network namespaces need iproute2"
    name = f"ho{os.getpid()}-try"
    commands = (
        f"ip netns add {name}",
        f"ip -n {name} link add name s0 type bridge",
        f"ip -n {name} link add name v0 type veth peer name v1",
    )
    try:
        for command in commands:
            done = subprocess.run(command.split(), capture_output=True, text=True, check=False)
            if done.returncode:
                return f"`{command}` fails: {done.stderr.strip()}"
    finally:
        subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
    return None


class NamespacedNetwork(Network):
    """As `Network`, each node with a network of its own."""

    def __init__(self, folder, *, nodes, **settings):
        self._prefix = f"ho{os.getpid()}"
        self._made = []
        self._switch = self._namespace("switch")
        for name in SWITCHES:
            self._ip(f"link add name {name} type bridge")
            self._ip(f"link set {name} up")
        self._ip("link add name cable-l type veth peer name cable-r")
        for end, name in (("cable-l", "left"), ("cable-r", "right")):
            self._ip(f"link set {end} master {name}")
            self._ip(f"link set {end} up")
        for index in range(nodes):
            self._connect(index)
        super().__init__(
            folder,
            nodes=nodes,
            addresses=[f"{self._host(i)}:7447" for i in range(nodes)],
            **settings,
        )

    def _namespace(self, name):
        full = f"{self._prefix}-{name}"
        subprocess.run(["ip", "netns", "add", full], check=True)
        self._made.append(full)
        return full

    def _host(self, index):
        return f"{SUBNET}.{10 + index}"

    def _ip(self, command, namespace=None):
        subprocess.run(["ip", "-n", namespace or self._switch, *command.split()], check=True)

    def _connect(self, index):
        home = self._namespace(f"node-{index}")
        self._ip(f"link add name port-{index} type veth peer name eth0 netns {home}")
        self._ip(f"link set port-{index} master left")
        self._ip(f"link set port-{index} up")
        self._ip(f"addr add {self._host(index)}/24 dev eth0", home)
        for device in ("lo", "eth0"):
            self._ip(f"link set {device} up", home)

    def wrap(self, index, command):
        return ["ip", "netns", "exec", f"{self._prefix}-node-{index}", *command]

    def cut_between(self, one, other):
        del one
        for index in range(self.count):
            side = "right" if index in other else "left"
            self._ip(f"link set port-{index} master {side}")
        self._ip("link set cable-l down")

    def heal(self):
        self._ip("link set cable-l up")

    def close(self):
        super().close()
        for name in self._made:
            subprocess.run(["ip", "netns", "del", name], check=False)
