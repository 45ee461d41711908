"""`holdout localnet`: make a whole network in one folder and run it as processes on this machine.

The folder holds the network (`network/`) and a folder for each node (`nodes/`), with its log. If
nodes are to lie, the last of the roster do. Whatever happens, no process is left behind: the
command ends its nodes, and a node whose parent has vanished ends itself.
"""

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from rich.console import Console
from rich.live import Live
from rich.table import Table

from holdout.agreement.messages import WORKERS_MAX
from holdout.errors import AuditError, LocalnetFailed, StoreError, UserError
from holdout.node.membership import members, network_creation
from holdout.node.membership.genesis import GENESIS, SETUP, DataDescription, Network
from holdout.node.membership.model_files import first_model
from holdout.node.membership.settings import DEMO_WORKER, SETTINGS
from holdout.node.runtime.folder import join
from holdout.node.runtime.metrics import NodeCollector, metrics_text
from holdout.node.runtime.node import END_WITH_PARENT
from holdout.node.runtime.page import page_state, page_thread
from holdout.node.runtime.status import ask_status
from holdout.node.storage.audit import Audit, audit
from holdout.node.storage.folder_lock import locked
from holdout.node.storage.retention import KEEP_EVERYTHING
from holdout.node.storage.store import FOLDER, Store

POLL_SECONDS = 0.5
STOP_SECONDS = 10.0
SHAPE, CLASSES = (1, 28, 28), 10
PORTS = range(15_000, 32_000)
ATTACK = "sign-flip"
"""What liars propose, unless told otherwise."""
LYING_WORKER = "holdout.node.demo:make_lying_worker"


@dataclass(frozen=True, slots=True)
class LocalnetPlan:
    """The network to run, and for how long."""

    folder: Path
    nodes: int = 7
    byzantine: int = 0
    rounds: int = 20
    lies: Sequence[str] = ("coalition", "equivocate")
    attack: str = ATTACK
    seed: int = 0
    model: str = "mlp"
    learning_rate: float = 0.1
    seconds_max: float | None = None
    delay_ms: int = 300
    keep_everything: bool = False
    """Keep gradients, bodies and models of all rounds, for a full audit."""
    page: str | None = None
    """The address of a page that shows the whole network, HOST:PORT."""
    full_speed: bool = False
    """Liars that flood get as much of this machine's processors as others, not just the rest."""


@dataclass(slots=True)
class LocalNode:
    """One node of the network, and its process."""

    name: str
    index: int
    folder: Path
    liar: bool
    process: subprocess.Popen[bytes] | None = None
    status: dict[str, Any] = field(default_factory=dict)
    memory_peak: int = 0

    @property
    def decided(self) -> int:
        """The newest round that the node has said it decided."""
        return int(self.status.get("decided", 0))


def free_ports(count: int) -> list[int]:
    """Ports of this machine that nobody listens on now.

    They are below those that systems give to outgoing connections, which could take one before its
    node has started.
    """
    found: list[int] = []
    while len(found) < count:
        port = PORTS.start + secrets.randbelow(len(PORTS))
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            if port not in found:
                found.append(port)
    return found


def prepare(plan: LocalnetPlan) -> list[LocalNode]:
    """Make the network and the folders of all nodes."""
    if plan.folder.exists() and any(plan.folder.iterdir()):
        raise UserError(f"{plan.folder} is not empty")
    if plan.nodes > WORKERS_MAX:
        raise UserError(f"a network has 1 to {WORKERS_MAX} workers; got {plan.nodes}")
    if not 0 <= 3 * plan.byzantine < plan.nodes:
        raise UserError(
            f"agreement needs n >= 3B + 1 nodes, of which B may lie; got n={plan.nodes},"
            f" B={plan.byzantine}"
        )
    if plan.byzantine or plan.attack != ATTACK:
        from holdout.attacks import ATTACKS  # Slow to import, and needed by liars alone.

        if plan.attack not in ATTACKS:
            raise UserError(f"there is no attack {plan.attack!r}; there are {', '.join(ATTACKS)}")
    ports = free_ports(plan.nodes)
    nodes = []
    width = len(str(plan.nodes - 1))
    for index, port in enumerate(ports):
        name = f"node-{index:0{width}}"
        liar = index >= plan.nodes - plan.byzantine
        folder = plan.folder / "nodes" / name
        members.init_node(
            folder,
            name=name,
            address=f"127.0.0.1:{port}",
            make_worker=LYING_WORKER if liar else DEMO_WORKER,
        )
        _append_settings(folder, plan, liar=liar)
        nodes.append(LocalNode(name, index, folder, liar))
    network = plan.folder / "network"
    # The network is built for as many liars as it can tolerate, whether they are there or not.
    tolerated = max(plan.byzantine, (plan.nodes - 1) // 3)
    network_creation.draft_network(
        network,
        network_creation.gather([node.folder for node in nodes]),
        name="localnet",
        parameters=network_creation.usual_parameters(plan.nodes, tolerated, plan.learning_rate),
        model=first_model(plan.model, SHAPE, CLASSES, plan.seed),
        data=DataDescription(
            description="5,000 MNIST digits, a shard each", shape=list(SHAPE), classes=CLASSES
        ),
    )
    shares = []
    for node in nodes:
        shares.append(network / f"{node.name}.share.toml")
        members.reveal(node.folder, network / SETUP, shares[-1])
    network_creation.finish_network(network, reveals=shares)
    for node in nodes:
        join(node.folder, network)
    return nodes


def _append_settings(folder: Path, plan: LocalnetPlan, *, liar: bool) -> None:
    path = folder / SETTINGS
    options = [f"seed = {plan.seed}", *([f'attack = "{plan.attack}"'] if liar else [])]
    # By the round alone: many nodes share this disk.
    kept = "bodies_hours = 0\ngradients_hours = 0\nmodels_hours = 0\n"
    if plan.keep_everything:
        kept += "bodies = 0\ngradients = 0\nmodels = 0"
    text = path.read_text("utf-8")
    text = text.replace("[worker_options]\n", "[worker_options]\n" + "\n".join(options) + "\n")
    text = text.replace("[storage]\n", f"[storage]\nfree_megabytes_min = 16\n{kept}\n")
    text = text.replace(
        "[timing]\n",
        f"[timing]\ndelay = {plan.delay_ms}\npropose_max = 20000\nvote_max = 20000\n"
        f"fetch = {plan.delay_ms}\n",
    )
    path.write_text(text, "utf-8")


def command_of(node: LocalNode, plan: LocalnetPlan) -> list[str]:
    """The command line that starts a node."""
    until = ["--until", str(plan.rounds)]
    if not node.liar:
        return [sys.executable, "-m", "holdout", "node", "run", str(node.folder), *until]
    liars = ",".join(str(i) for i in range(plan.nodes - plan.byzantine, plan.nodes))
    lies = ",".join(plan.lies)
    lying = [sys.executable, "-m", "holdout.node.localnet.lying_node", str(node.folder)]
    if plan.full_speed:
        lying.append("--full-speed")
    return [*lying, "--lies", lies, "--liars", liars, *until]


def start(node: LocalNode, plan: LocalnetPlan) -> None:
    """Start a node's process; its output goes into its log."""
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
        END_WITH_PARENT: str(os.getpid()),
    }
    with (node.folder / "node.log").open("ab") as log:
        # In a new session, so that Ctrl-C reaches this command alone, which then ends the nodes.
        node.process = subprocess.Popen(  # noqa: S603  # Our own command.
            command_of(node, plan),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,
        )


def stop_all(nodes: Sequence[LocalNode]) -> None:
    """End all nodes and what they started: politely, then by force."""
    running = [node.process for node in nodes if node.process is not None]
    for process in running:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
    end = time.monotonic() + STOP_SECONDS
    for process in running:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.1, end - time.monotonic()))
    for process in running:
        # Not those that have ended: another process may have their number by now, and their
        # learners end by themselves.
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextlib.contextmanager
def _ended_cleanly(nodes: Sequence[LocalNode]) -> Iterator[None]:
    def interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        # A second Ctrl-C must not leave anybody behind.
        held = signal.signal(signal.SIGINT, signal.SIG_IGN)
        stop_all(nodes)
        signal.signal(signal.SIGINT, held)
        signal.signal(signal.SIGTERM, before)


def run(plan: LocalnetPlan) -> str:
    """Run the network to its last round and return the closing line; raises LocalnetFailed."""
    nodes = prepare(plan)
    began = time.monotonic()
    with _ended_cleanly(nodes), _page(nodes, plan.page):
        for node in nodes:
            start(node, plan)
        _watch(nodes, plan)
    seconds = time.monotonic() - began
    return _conclude(nodes, plan, seconds)


@contextlib.contextmanager
def _page(nodes: Sequence[LocalNode], address: str | None) -> Iterator[None]:
    """Serve a page of all nodes, if there is an address for it."""
    if address is None:
        yield
        return
    with page_thread(address, LocalPage(nodes)):
        Console(stderr=True).print(f"page: http://{address}/", highlight=False, soft_wrap=True)
        yield


class LocalPage:
    """What the page of the whole network shows: what honest nodes see, and what all say."""

    def __init__(self, nodes: Sequence[LocalNode]) -> None:
        self._nodes = sorted(nodes, key=lambda node: (node.liar, node.index))
        self._rounds: dict[int, dict[str, Any]] = {}

    def _reports(self) -> list[dict[str, Any]]:
        return [node.status for node in self._nodes if node.status]

    def page(self) -> dict[str, Any]:
        """What the page shows; rounds are remembered from one look to the next."""
        reports = self._reports()
        for report in reports[:1]:
            self._rounds |= {seen["round"]: seen for seen in report["last_rounds"]}
        return page_state(reports, [self._rounds[n] for n in sorted(self._rounds)], "localnet")

    def metrics(self) -> bytes:
        """The numbers of all nodes; each node's own address has its histograms too."""
        return metrics_text(NodeCollector(self._reports))


def _watch(nodes: Sequence[LocalNode], plan: LocalnetPlan) -> None:
    """Show the table until all honest nodes have decided the last round."""
    limit = plan.seconds_max or max(180.0, 10.0 * plan.rounds)
    end = time.monotonic() + limit
    console = Console(stderr=True)
    with (
        Live(table(nodes), console=console, refresh_per_second=4)
        if console.is_terminal
        else contextlib.nullcontext() as live
    ):
        shown = 0
        while any(node.decided < plan.rounds for node in nodes if not node.liar):
            if time.monotonic() > end:
                raise LocalnetFailed(f"not done after {limit:.0f} s: {_progress(nodes)}")
            for node in nodes:
                _poll(node)
                assert node.process is not None  # noqa: S101
                if not node.liar and node.process.poll() is not None:
                    code = node.process.returncode
                    raise LocalnetFailed(
                        f"{node.name} ended with exit code {code}: {_last_words(node)}"
                    )
            if live is not None:
                live.update(table(nodes))
            elif (slowest := min(node.decided for node in nodes if not node.liar)) > shown:
                shown = slowest
                console.print(_progress(nodes), highlight=False, soft_wrap=True)
            time.sleep(POLL_SECONDS)


def _poll(node: LocalNode) -> None:
    with contextlib.suppress(UserError):
        node.status = ask_status(node.folder, seconds_max=2.0)
        memory = node.status["memory"]
        node.memory_peak = max(node.memory_peak, memory["node"] + memory["learner"])


def _progress(nodes: Sequence[LocalNode]) -> str:
    decided = " ".join(f"{node.name}:{node.decided}" for node in nodes)
    found = [node.status.get("accuracy") for node in nodes if not node.liar]
    known = [accuracy for accuracy in found if accuracy is not None]
    best = f", accuracy {100 * min(known):.1f} %" if known else ""
    return f"decided {decided}{best}"


def _last_words(node: LocalNode) -> str:
    lines = (node.folder / "node.log").read_text("utf-8", "replace").splitlines()
    return lines[-1] if lines else "its log is empty"


def table(nodes: Sequence[LocalNode]) -> Table:
    """How the nodes are, one line each."""
    shown = Table()
    for name in ("node", "round", "period", "accuracy", "role", "peers", "evidence", "memory"):
        shown.add_column(name, justify="left" if name in {"node", "role"} else "right")
    for node in nodes:
        status = node.status
        accuracy = status.get("accuracy")
        role = "liar" if node.liar else status.get("roles", "")
        if status.get("observer"):
            role = "observer"
        shown.add_row(
            node.name,
            str(status.get("round", "-")),
            str(status.get("period", "-")),
            "-" if accuracy is None else f"{100 * accuracy:.1f} %",
            role,
            str(len(status.get("heard", ()))),
            str(len(status.get("evidence", {}))),
            f"{node.memory_peak >> 20} MB",
        )
    return shown


def _conclude(nodes: Sequence[LocalNode], plan: LocalnetPlan, seconds: float) -> str:
    """Verify and compare what the honest nodes hold on their disks."""
    honest = [node for node in nodes if not node.liar]
    found: dict[str, Audit] = {}
    for node in honest:
        network = Network.read(node.folder / GENESIS)
        try:
            with locked(node.folder), Store(node.folder / FOLDER, KEEP_EVERYTHING, 0) as store:
                found[node.name] = audit(
                    store, network.genesis, last=plan.rounds, full=plan.keep_everything
                )
        except (AuditError, StoreError) as error:
            raise LocalnetFailed(f"{node.name}: {error}") from None
    models = {result.model for result in found.values()}
    if len(models) != 1 or any(result.rounds < plan.rounds for result in found.values()):
        held = ", ".join(f"{name} {r.model.hex()[:12]} ({r.rounds})" for name, r in found.items())
        raise LocalnetFailed(f"honest nodes differ: {held}")
    steps = next(iter(found.values())).steps
    peak = max(node.memory_peak for node in nodes)
    return (
        f"All {len(honest)} honest nodes hold model {models.pop().hex()} after round"
        f" {plan.rounds} ({steps} steps); each one's chain of {plan.rounds} certificates is"
        f" verified. {seconds:.0f} s, at most {peak >> 20} MB a node."
    )
