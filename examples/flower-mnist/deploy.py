"""A real deployment on one machine: SuperLink and SuperNode processes, TLS, authentication.

    python deploy.py --nodes 6 --run-config 'byzantine="sign-flip" num-proposers=3 num-voters=3'

makes a folder with certificates and keys, starts everything on free ports, registers the nodes'
keys, runs the app, prints its log as it goes and ends every process. The README lists the same
commands for several machines.
"""

import argparse
import datetime as dt
import ipaddress
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

HERE = Path(__file__).resolve().parent
BIN = Path(sys.executable).parent
OFFLINE = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
START_SECONDS, STOP_SECONDS = 120.0, 10.0
INTERRUPTED = 130
"""The exit code of a command that was stopped, as shells have it."""


class Deployment:
    """A SuperLink and its SuperNodes; use `deployed`, which always ends them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.environment = {
            "OMP_NUM_THREADS": "1",
            "OMP_WAIT_POLICY": "PASSIVE",
            **os.environ,
            **OFFLINE,
            # What a process prints is there when it is printed, also in a pipe or a file.
            "PYTHONUNBUFFERED": "1",
            "FLWR_HOME": str(folder / "home"),
            # Nodes start the client's process by name.
            "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}",
        }

    @property
    def address(self) -> str:
        """The SuperLink's host and port."""
        return f"127.0.0.1:{self.port}"

    def start_link(self, *options: str) -> None:
        """Start a SuperLink that lets in only nodes whose keys are registered."""
        folder = self.folder
        make_certificates(folder)
        self.tell_flwr(f'root-certificates = "{folder / "ca.crt"}"')
        self.start(
            "superlink",
            [
                *("flower-superlink", "--host", "127.0.0.1", "--port", str(self.port)),
                *("--ssl-certfile", str(folder / "server.crt")),
                *("--ssl-keyfile", str(folder / "server.key")),
                *("--ssl-ca-certfile", str(folder / "ca.crt")),
                "--enable-supernode-auth",
                *options,
            ],
        )
        self.wait(lambda: is_open(self.port), "the SuperLink")

    def start_simulator(self) -> None:
        """Start a SuperLink that simulates its nodes; without TLS, since nobody else connects."""
        self.tell_flwr("insecure = true")
        command = ["flower-superlink", "--insecure", "--simulation"]
        self.start("superlink", [*command, "--host", "127.0.0.1", "--port", str(self.port)])
        self.wait(lambda: is_open(self.port), "the SuperLink")

    def tell_flwr(self, how: str) -> None:
        """Write down where the `flwr` command finds the SuperLink, and how to talk to it."""
        (self.folder / "home").mkdir()
        (self.folder / "home" / "config.toml").write_text(
            f'[superlink]\ndefault = "deployment"\n\n[superlink.deployment]\n'
            f'address = "{self.address}"\n{how}\n',
            "utf-8",
        )

    def register(self, number: int) -> None:
        """Make a node's key, and tell the SuperLink that it may come in."""
        key = self.folder / f"node-{number}"
        make_node_key(key)
        self.flwr("supernode", "register", f"{key}.pub", "deployment")

    def start_node(self, number: int, nodes: int) -> None:
        """Start one SuperNode, with its registered key."""
        key = self.folder / f"node-{number}"
        self.start(
            f"node-{number}",
            [
                *("flower-supernode", "--superlink", self.address),
                *("--root-certificates", str(self.folder / "ca.crt")),
                *("--auth-supernode-private-key", str(key)),
                *("--port", str(free_port())),
                *("--node-config", f"partition-id={number} num-partitions={nodes}"),
            ],
        )

    def start(self, name: str, command: Sequence[str]) -> None:
        """Start a process in its own group, so that its children can be ended with it."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [str(BIN / command[0]), *command[1:]],
                env=self.environment,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def flwr(self, *arguments: str, timeout: float = 120.0) -> str:
        """Run a `flwr` command to its end and return what it printed."""
        done = subprocess.run(
            [str(BIN / "flwr"), *arguments],
            env=self.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"flwr {' '.join(arguments)}: {done.stdout}{done.stderr}")
        return done.stdout + done.stderr

    def follow(self, *arguments: str) -> None:
        """Run a `flwr` command to its end, printing what it prints, line by line."""
        with subprocess.Popen(
            [str(BIN / "flwr"), *arguments],
            env=self.environment,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            for line in process.stdout or ():
                print(line, end="", flush=True)
        if process.returncode:
            raise RuntimeError(f"flwr {' '.join(arguments)} ended with {process.returncode}")

    def wait(
        self, condition: Callable[[], bool], what: str, seconds: float = START_SECONDS
    ) -> None:
        """Wait for the condition; an error if a process ends or the time is over first."""
        deadline = time.monotonic() + seconds
        while not condition():
            ended = [name for name, process in self.processes.items() if process.poll() is not None]
            if ended or time.monotonic() > deadline:
                logs = "\n".join(self.log(name)[-2000:] for name in ended)
                raise RuntimeError(f"{what} did not come up in time; ended: {ended}\n{logs}")
            time.sleep(0.05)

    def log(self, name: str) -> str:
        """What a process has printed so far."""
        return (self.folder / f"{name}.log").read_text("utf-8", "replace")

    def kill(self, name: str) -> None:
        """End a process and its children at once, as a power cut would."""
        process = self.processes.pop(name)
        signal_group(process.pid, signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        """End all processes, politely first."""
        groups = [process.pid for process in self.processes.values()]
        for signal_number in (signal.SIGTERM, signal.SIGKILL):
            for group in groups:
                signal_group(group, signal_number)
            deadline = time.monotonic() + STOP_SECONDS
            while time.monotonic() < deadline and any(
                process.poll() is None for process in self.processes.values()
            ):
                time.sleep(0.05)
        for process in self.processes.values():
            process.wait()
        deadline = time.monotonic() + STOP_SECONDS
        while (left := self.stragglers()) and time.monotonic() < deadline:
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)

    def stragglers(self) -> list[int]:
        """Processes of ours that left their group, as Ray's do; found by their FLWR_HOME."""
        marker = f"FLWR_HOME={self.environment['FLWR_HOME']}".encode()
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):  # Gone meanwhile, or somebody else's.
                if marker in path.read_bytes().split(b"\0"):
                    found.append(int(path.parent.name))
        return found


@contextmanager
def deployed(folder: Path, nodes: int, *link_options: str) -> Iterator[Deployment]:
    """A running deployment; all its processes are ended on leaving, whatever happens."""
    deployment = Deployment(folder)
    try:
        say(f"starting the SuperLink at {deployment.address}")
        deployment.start_link(*link_options)
        say(f"registering the keys of {nodes} nodes")
        with ThreadPoolExecutor() as pool:
            list(pool.map(deployment.register, range(nodes)))
        for number in range(nodes):
            deployment.start_node(number, nodes)
        say(f"started {nodes} SuperNodes; logs are in {folder}")
        yield deployment
    finally:
        say("ending all processes")
        deployment.stop()


def say(what: str) -> None:
    """Tell whoever waits what happens, and when."""
    print(f"{dt.datetime.now():%H:%M:%S} {what}", flush=True)  # noqa: DTZ005  (For a person.)


def signal_group(group: int, number: int) -> None:
    """Signal a process group that may be gone already."""
    with suppress(ProcessLookupError):
        os.killpg(group, number)


def free_port() -> int:
    """A port that nobody listens on at the moment."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def is_open(port: int) -> bool:
    """Whether somebody listens on the port."""
    with socket.socket() as caller:
        caller.settimeout(1)
        return caller.connect_ex(("127.0.0.1", port)) == 0


def make_certificates(folder: Path) -> None:
    """Make a certificate authority, and a certificate of the SuperLink for this machine."""
    authority, server = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    issuer = name_of("example authority")
    certificates = {
        "ca": sign(
            issuer,
            authority.public_key(),
            issuer,
            authority,
            x509.BasicConstraints(ca=True, path_length=0),
        ),
        "server": sign(
            name_of("localhost"),
            server.public_key(),
            issuer,
            authority,
            x509.SubjectAlternativeName(names),
        ),
    }
    for name, certificate in certificates.items():
        path = folder / f"{name}.crt"
        path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    write_secret(
        folder / "server.key",
        server.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    )


def make_node_key(path: Path) -> None:
    """Make a node's key pair: `path` stays on the node, the SuperLink registers `path`.pub."""
    key = ec.generate_private_key(ec.SECP384R1())
    write_secret(
        path,
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.OpenSSH,
            serialization.NoEncryption(),
        ),
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    path.with_name(path.name + ".pub").write_bytes(public + b"\n")


def write_secret(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read, from the first moment on."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def name_of(who: str) -> x509.Name:
    """A common name, as certificates hold it."""
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, who)])


def sign(
    subject: x509.Name,
    key: ec.EllipticCurvePublicKey,
    issuer: x509.Name,
    authority: ec.EllipticCurvePrivateKey,
    extension: x509.ExtensionType,
) -> x509.Certificate:
    """A certificate that is valid for thirty days."""
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(minutes=5))
        .not_valid_after(now + dt.timedelta(days=30))
        .add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
        .sign(authority, hashes.SHA384())
    )


def interrupt(*_: object) -> None:
    """End what runs; whoever stops us again while we do so must not leave processes behind."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def main() -> None:
    """Deploy and run the app once."""
    parser = argparse.ArgumentParser(description="Run this app on real processes of this machine.")
    parser.add_argument("--nodes", type=int, default=6)
    parser.add_argument("--run-config", default="num-proposers=3 num-voters=3")
    options = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)
    try:
        with (
            tempfile.TemporaryDirectory() as folder,
            deployed(Path(folder), options.nodes) as deployment,
        ):
            say("running the app; a round's lines come as it ends")
            command = ["run", str(HERE), "deployment", "--stream"]
            deployment.follow(*command, "--run-config", options.run_config)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
