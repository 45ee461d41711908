"""`node.toml`: what one member decides for itself. None of it has to be equal anywhere else."""

import tomllib
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, ValidationError

from holdout.agreement.params import MILLISECOND, Timing
from holdout.config import Section
from holdout.errors import ConfigError
from holdout.node.membership.genesis import Address, MemberName
from holdout.results import write_atomic

SETTINGS = "node.toml"

Milliseconds = Annotated[int, Field(ge=1, le=3_600_000)]
Count = Annotated[int, Field(ge=0)]


class NodeSection(Section):
    """Who and where."""

    name: MemberName
    listen: Address
    """Where this node waits for others."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    metrics: Address | None = None
    """Where metrics are served, in Prometheus's text format; nowhere if left out."""


class WorkerSection(Section):
    """The member's own code and data."""

    make_worker: Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$")] = (
        "holdout.node.localnet.demo_worker:make_worker"
    )
    threads: Annotated[int, Field(ge=1, le=256)] = 1
    """Of torch, in the worker's process."""
    seconds_max: Annotated[float, Field(gt=0, le=86_400)] = 600.0
    """A worker that takes longer for one gradient or vote is stopped and started again."""


class TimingSection(Section):
    """How long this node waits for others, in milliseconds. Bounds: within them it adapts."""

    delay: Milliseconds = 500
    """A small message takes at most this long."""
    propose_min: Milliseconds = 500
    propose_max: Milliseconds = 60_000
    """Gradients are waited for so long at most."""
    vote_min: Milliseconds = 500
    vote_max: Milliseconds = 60_000
    """Ballots are waited for so long at most, after that."""
    fetch: Milliseconds = 500
    """Fetching a block takes so long."""
    validate_block: Milliseconds = 500
    """Recomputing a block takes so long."""

    def bounds(self) -> tuple[Timing, Timing]:
        """The shortest and the longest waits."""
        lowest, highest = (
            Timing(
                delay=self.delay * MILLISECOND,
                propose=propose * MILLISECOND,
                vote=vote * MILLISECOND,
                fetch=self.fetch * MILLISECOND,
                validate=self.validate_block * MILLISECOND,
            )
            for propose, vote in (
                (self.propose_min, self.vote_min),
                (self.propose_max, self.vote_max),
            )
        )
        return lowest, highest


class StorageSection(Section):
    """What is kept, for how many rounds; 0: for ever. Headers and certificates always are."""

    bodies: Count = 100
    gradients: Annotated[int, Field(ge=2)] | Literal[0] = 2
    models: Annotated[int, Field(ge=3)] | Literal[0] = 3
    free_megabytes_min: Count = 256
    """With less room than this on the disk the node stops, before a write can fail half-way."""


class NodeSettings(Section):
    """The whole file."""

    node: NodeSection
    worker: WorkerSection = WorkerSection()
    worker_options: dict[str, str | int | float | bool] = Field(default_factory=dict)
    """Handed to `make_worker` as keyword arguments."""
    timing: TimingSection = TimingSection()
    storage: StorageSection = StorageSection()
    peers: dict[str, Address] = Field(default_factory=dict)
    """Addresses of members that have moved since the genesis file was made."""


def read_settings(folder: Path) -> NodeSettings:
    """The settings of a node's folder; a ConfigError lists all mistakes."""
    path = folder / SETTINGS
    try:
        values = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError([f"{path}: cannot be read ({error.strerror})"]) from None
    except (ValueError, RecursionError) as error:
        raise ConfigError([f"{path}: not TOML ({error})"]) from None
    try:
        settings = NodeSettings.model_validate(values)
    except ValidationError as error:
        raise ConfigError(
            [
                f"{path}: {'.'.join(map(str, detail['loc']))}: {detail['msg']}"
                for detail in error.errors()
            ]
        ) from None
    timing = settings.timing
    if timing.propose_min > timing.propose_max or timing.vote_min > timing.vote_max:
        raise ConfigError([f"{path}: timing: the shortest wait is longer than the longest"])
    return settings


def write_settings(
    folder: Path,
    *,
    name: str,
    listen: str,
    make_worker: str = "holdout.node.localnet.demo_worker:make_worker",
    more: str = "",
) -> None:
    """A commented file with the defaults."""
    write_atomic(
        folder / SETTINGS,
        _TEMPLATE.format(name=name, listen=listen, make_worker=make_worker, more=more).encode(),
    )


_TEMPLATE = """\
# What this member decides for itself. Lines with a '#' show the defaults.

[node]
name = "{name}"
listen = "{listen}"            # where this node waits for others, HOST:PORT
# log_level = "info"              # debug, info, warning, error
# metrics = "127.0.0.1:9100"      # serve metrics in Prometheus's text format here

[worker]
# Your own code: package.module:make_worker, called once in a process of its own as
# make_worker(model=..., shape=..., classes=..., member=..., members=..., **worker_options).
# It returns a holdout.workers.Worker. The module may lie in this folder.
make_worker = "{make_worker}"
# threads = 1                     # of torch, in that process
# seconds_max = 600.0             # a worker that takes longer is started again

[worker_options]
# data = "private.csv"            # whatever make_worker takes

[timing]
# Milliseconds. Waits end as soon as everybody has been heard; these are for when somebody is not.
# delay = 500                     # a small message takes at most this long; 2000 across the world
# propose_min = 500               # gradients are waited for, at least and at most
# propose_max = 60000
# vote_min = 500                  # ballots are waited for, at least and at most
# vote_max = 60000
# fetch = 500                     # fetching a block takes so long
# validate_block = 500            # recomputing a block takes so long

[storage]
# Rounds for which things are kept; 0: for ever. Headers and certificates always are.
# bodies = 100
# gradients = 2                   # 0 if `holdout node verify --full` shall re-execute everything
# models = 3
# free_megabytes_min = 256        # with less room on the disk the node stops

[peers]
# Members that have moved since the genesis file was made:
# other-member = "host:port"
{more}"""
