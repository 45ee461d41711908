"""`node.toml`: what a member decides for itself. Members need not agree on any of it."""

from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from holdout.agreement.params import MILLISECOND, Timing
from holdout.config import Section
from holdout.errors import UserError
from holdout.node.membership.genesis import Address, MemberName, read_section
from holdout.results import write_atomic

SETTINGS = "node.toml"
DEMO_WORKER = "holdout.node.demo:make_worker"

Milliseconds = Annotated[int, Field(ge=1, le=3_600_000)]
Count = Annotated[int, Field(ge=0)]
Hours = Annotated[float, Field(ge=0, le=24 * 366)]
Seconds = Annotated[float, Field(ge=0, le=86_400)]
Positive = Annotated[int, Field(ge=1)]


class NodeSection(Section):
    """The node's name, addresses and log level."""

    name: MemberName
    listen: Address
    """The address that this node listens on."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    metrics: Address | None = None
    """The address that serves metrics in Prometheus's text format; None: they are not served."""


class WorkerSection(Section):
    """The member's worker: the code that trains on its data and votes."""

    make_worker: Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$")] = (
        DEMO_WORKER
    )
    threads: Annotated[int, Field(ge=1, le=256)] = 1
    """How many threads torch uses in the worker's process."""
    seconds_max: Annotated[float, Field(gt=0, le=86_400)] = 600.0
    """A worker that takes longer for one gradient or vote is stopped and started again."""


class TimingSection(Section):
    """How long this node waits for others, in milliseconds; between the bounds it adapts."""

    delay: Milliseconds = 500
    """How long a small message takes at most."""
    propose_min: Milliseconds = 100
    propose_max: Milliseconds = 60_000
    """The longest wait for gradients."""
    vote_min: Milliseconds = 100
    vote_max: Milliseconds = 60_000
    """The longest wait for ballots, after that."""
    fetch: Milliseconds = 500
    """How long it takes to fetch a block."""
    validate_block: Milliseconds = 500
    """How long it takes to recompute a block."""

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


class NodeTrainingSection(Section):
    """How fast this member trains, and when it stops."""

    rounds_min_interval: Seconds = 0.0
    """The least time between the beginnings of two of its gradients, in seconds."""
    stop_round: Positive | None = None
    """It takes part up to this round."""
    stop_accuracy: Annotated[float, Field(gt=0, le=1)] | None = None
    """It stops once its worker has measured at least this accuracy, from 0 to 1."""
    stop_date: datetime | None = None
    """It stops at this time, such as 2030-01-31T18:00:00Z."""


class StorageSection(Section):
    """How long things are kept; headers and certificates always are."""

    bodies: Count = 100
    """The last rounds, whatever they take; 0: for ever."""
    gradients: Annotated[int, Field(ge=2)] | Literal[0] = 2
    models: Annotated[int, Field(ge=3)] | Literal[0] = 3
    bodies_hours: Hours = 25.0
    """And those of the last hours, while they fit."""
    gradients_hours: Hours = 1.25
    models_hours: Hours = 25.0
    megabytes_max: Count = 20_000
    """What the store may take; 0: no limit. Where it is too little, the oldest go first."""
    free_megabytes_min: Count = 256
    """With less free disk than this the node stops, before a write can fail half-way."""


class NodeSettings(Section):
    """Everything in `node.toml`."""

    node: NodeSection
    worker: WorkerSection = WorkerSection()
    worker_options: dict[str, str | int | float | bool] = Field(default_factory=dict)
    """Handed to `make_worker` as keyword arguments."""
    timing: TimingSection = TimingSection()
    training: NodeTrainingSection = NodeTrainingSection()
    storage: StorageSection = StorageSection()
    peers: dict[str, Address] = Field(default_factory=dict)
    """Addresses of members that have moved since the genesis file was made."""


def read_settings(folder: Path) -> NodeSettings:
    """The settings of a node's folder; a UserError lists all mistakes."""
    settings = read_section(NodeSettings, folder / SETTINGS)
    timing = settings.timing
    if timing.propose_min > timing.propose_max or timing.vote_min > timing.vote_max:
        raise UserError(f"{folder / SETTINGS}: timing: a shortest wait exceeds the longest")
    interval = settings.training.rounds_min_interval
    if 2_000 * interval > timing.propose_max:
        raise UserError(
            f"{folder / SETTINGS}: training.rounds_min_interval must be at most half of"
            f" timing.propose_max, {timing.propose_max / 2_000:g} s; got {interval:g} s"
        )
    date = settings.training.stop_date
    if date is not None and date.tzinfo is None:
        raise UserError(f"{folder / SETTINGS}: training.stop_date needs a time zone, such as Z")
    return settings


def write_settings(folder: Path, *, name: str, listen: str, make_worker: str) -> None:
    """Write a new node's file, with a commented line for each default."""
    text = _TEMPLATE.format(name=name, listen=listen, make_worker=make_worker)
    write_atomic(folder / SETTINGS, text.encode())


_TEMPLATE = """\
# What this member decides for itself. Lines that begin with '#' show the defaults.

[node]
name = "{name}"
listen = "{listen}"            # the address to listen on, HOST:PORT
# log_level = "info"              # debug, info, warning, error
# metrics = "127.0.0.1:9100"      # serve a page, and metrics for Prometheus, here

[worker]
# Your code, package.module:make_worker. It is called once, in a separate process, as
# make_worker(model=..., shape=..., classes=..., member=..., members=..., **worker_options)
# and returns a holdout.workers.Worker. The module may lie in this folder.
make_worker = "{make_worker}"
# threads = 1                     # how many torch uses in that process
# seconds_max = 600.0             # a worker that takes longer is stopped and started again

[worker_options]
# data = "private.csv"            # whatever make_worker takes

[timing]
# Milliseconds. A wait ends as soon as everybody has been heard; these limit the other waits.
# delay = 500                     # a small message takes at most this long; 2000 across the world
# propose_min = 100               # the shortest and the longest wait for gradients
# propose_max = 60000
# vote_min = 100                  # the shortest and the longest wait for ballots
# vote_max = 60000
# fetch = 500                     # how long it takes to fetch a block
# validate_block = 500            # how long it takes to recompute a block

[training]
# rounds_min_interval = 0.0       # the least time between two of this member's gradients, seconds
# stop_round = 1000               # take part up to this round
# stop_accuracy = 0.95            # stop once the worker has measured this accuracy
# stop_date = 2030-01-31T18:00:00Z

[storage]
# How long things are kept: so many rounds at least (0: for ever), and so many hours while they fit.
# Headers and certificates always are.
# bodies = 100
# gradients = 2                   # 0 lets `holdout node verify --full` re-execute everything
# models = 3
# bodies_hours = 25.0
# gradients_hours = 1.25          # for `holdout node verify --full` of the last hour
# models_hours = 25.0             # for `holdout node export --round N` of the last day
# megabytes_max = 20000           # 0: no limit; where it is too little, the oldest go first
# free_megabytes_min = 256        # with less free disk the node stops

[peers]
# Members that have moved since the genesis file was made:
# other-member = "host:port"
"""
