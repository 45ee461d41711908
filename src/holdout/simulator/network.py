"""A network in virtual time: one queue, one generator, every fault decided by the seed.

Nothing here waits. The `Agenda` is the queue of things to come, ordered by time and then by when
they were planned; time jumps from one entry to the next. `SimulatedNetwork` decides when a message
arrives, if at all. Each link has its own delay; the `Weather` adds jitter (enough for messages to
overtake each other), spikes, loss and copies. A `Cut` stops or holds back what passes from one
group of workers to another: a single one is a one-way cut, a pair is a partition, and one that
picks messages by their kind is a hold, as an adversary in the network would do it.
"""

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, TypeAlias

from holdout.agreement.messages import Kind, base_step
from holdout.agreement.params import MILLISECOND
from holdout.seeds import stream

FOREVER = 1 << 62
SECOND = 1_000 * MILLISECOND
RELAY_ALL_MAX = 8
"""In networks of up to this many workers, a message is relayed to everybody."""
RELAY_PEERS = 2
"""In larger ones, to this many: its author has sent it to everybody already."""
BYTES_PER_MICROSECOND = 12
"""About 100 Mbit/s, for blobs; small messages take no transfer time."""

Label: TypeAlias = tuple[int, int]
"""What a cut picks messages by: (kind of message, step), with step 0 where there is none."""


class Agenda:
    """The queue of things to come; `now` is the virtual time in microseconds."""

    __slots__ = ("_heap", "_order", "now")

    def __init__(self) -> None:
        self.now = 0
        self._heap: list[tuple[int, int, Callable[[Any], None], Any]] = []
        self._order = 0

    def at(self, time: int, do: Callable[[Any], None], what: Any) -> None:
        """Call `do(what)` at this time, or now if it is past."""
        self._order += 1
        heapq.heappush(self._heap, (max(time, self.now), self._order, do, what))

    def after(self, delay: int, do: Callable[[Any], None], what: Any) -> None:
        """Call `do(what)` after this delay."""
        self._order += 1
        heapq.heappush(self._heap, (self.now + delay, self._order, do, what))

    def step(self, until: int = FOREVER) -> bool:
        """Let the next thing happen; False if nothing is planned up to `until`."""
        if not self._heap or self._heap[0][0] > until:
            return False
        self.now, _, do, what = heapq.heappop(self._heap)
        do(what)
        return True


@dataclass(frozen=True, slots=True)
class Weather:
    """How well links carry messages; times in microseconds, the rest are probabilities."""

    delay_min: int = 5 * MILLISECOND
    delay_max: int = 50 * MILLISECOND
    """Each link has a fixed delay between these two."""
    jitter: int = 20 * MILLISECOND
    """Up to this much more for each message, which makes messages overtake each other."""
    loss: float = 0.0
    copies: float = 0.0
    spikes: float = 0.0
    spike_max: int = 0
    """A spike delays one message by up to this; it may be longer than any timeout."""

    def describe(self) -> str:
        """The weather in words, for a trace."""
        low, high, jitter = (
            t // MILLISECOND for t in (self.delay_min, self.delay_max, self.jitter)
        )
        parts = [f"links of {low} to {high} ms, up to {jitter} ms more for each message"]
        if self.loss:
            parts.append(f"{self.loss:.1%} lost")
        if self.copies:
            parts.append(f"{self.copies:.1%} twice")
        if self.spikes:
            parts.append(f"{self.spikes:.1%} late by up to {self.spike_max / SECOND:.1f} s")
        return ", ".join(parts)


CALM = Weather()


@dataclass(frozen=True, slots=True)
class Cut:
    """For some time, messages from `sources` to `targets` (bit masks of workers) do not pass."""

    sources: int
    targets: int
    start: int = 0
    end: int = FOREVER
    held: bool = False
    """Whether they arrive when the cut ends; otherwise they are lost."""
    only: frozenset[Label] | None = None
    """Only messages with these labels are stopped; None: all messages, and blobs too."""

    def describe(self) -> str:
        """The cut in words, for a trace."""
        what = "everything" if self.only is None else ", ".join(map(_label_text, sorted(self.only)))
        end = "the end" if self.end >= FOREVER else f"{self.end / SECOND:.3f} s"
        how = "held back" if self.held else "lost"
        return (
            f"{what} from {_group_text(self.sources)} to {_group_text(self.targets)} is {how}, "
            f"{self.start / SECOND:.3f} s to {end}"
        )


def _label_text(label: Label) -> str:
    kind, step = label
    name = Kind(kind).name.lower() if kind in list(Kind) else f"kind {kind}"
    return f"{name} {base_step(step).name}" if step else name


def _group_text(bits: int) -> str:
    return ",".join(str(worker) for worker in range(bits.bit_length()) if bits >> worker & 1)


def mask(workers: Iterable[int]) -> int:
    """A group of workers as a bit mask."""
    bits = 0
    for worker in workers:
        bits |= 1 << worker
    return bits


def partition(
    group: Iterable[int], n: int, *, start: int, end: int, held: bool = False
) -> tuple[Cut, Cut]:
    """The cuts that keep a group and everybody else apart for some time."""
    inside = mask(group)
    outside = ((1 << n) - 1) & ~inside
    return (
        Cut(inside, outside, start, end, held=held),
        Cut(outside, inside, start, end, held=held),
    )


Tap: TypeAlias = Callable[[int, int, bytes], int]
"""Sees what is sent (source, target, bytes) and may delay it.

Returns by how many microseconds; `FOREVER` stops the message.
"""
Receive: TypeAlias = Callable[[tuple[int, bytes]], None]


class SimulatedNetwork:
    """Carries bytes between workers. The bytes object itself is handed on, never a copy.

    Attributes:
        messages: How many messages were sent; duplicates that the network made do not count.
        bytes: Their total length, blobs included.
    """

    __slots__ = (
        "_base",
        "_cuts",
        "_label",
        "_random",
        "_receivers",
        "agenda",
        "bytes",
        "messages",
        "n",
        "tap",
        "weather",
    )

    def __init__(
        self,
        agenda: Agenda,
        n: int,
        seed: int,
        *,
        weather: Weather,
        label: Callable[[bytes], Label],
    ) -> None:
        self.agenda = agenda
        self.n = n
        self.messages = 0
        self.bytes = 0
        self.tap: Tap | None = None
        self._label = label
        # Python's generator, seeded from a stream: drawing every number by hash would be too slow.
        self._random = Random(stream(seed, "network").generator_seed())  # noqa: S311  # No secret.
        self._cuts: list[Cut] = []
        self._receivers: list[Receive] = []
        self.weather = weather
        self._base: list[int] = []
        self.change_weather(weather)

    def connect(self, receivers: Iterable[Receive]) -> None:
        """Set who receives what arrives, in the order of workers."""
        self._receivers = list(receivers)

    def change_weather(self, weather: Weather) -> None:
        """Let the links be like this from now on; each gets a new delay."""
        self.weather = weather
        spread = weather.delay_max - weather.delay_min + 1
        draw = self._random.random
        self._base = [weather.delay_min + int(draw() * spread) for _ in range(self.n * self.n)]

    def add_cut(self, cut: Cut) -> None:
        """Put a cut in force, now or when its time comes, until it ends."""
        if cut.start > self.agenda.now:
            self.agenda.at(cut.start, self.add_cut, cut)
            return
        self._cuts.append(cut)
        if cut.end < FOREVER:
            self.agenda.at(cut.end, self._end_cut, cut)

    def _end_cut(self, cut: Cut) -> None:
        # `heal` may have ended it already.
        if cut in self._cuts:
            self._cuts.remove(cut)

    def heal(self, keep: Iterable[Cut] = ()) -> None:
        """End all cuts except these. What they held back still arrives at the planned time."""
        kept = list(keep)
        self._cuts = [cut for cut in self._cuts if cut in kept]

    # -- messages ------------------------------------------------------------------------------

    def send(self, source: int, target: int, data: bytes) -> None:
        """Send a message to one worker."""
        self.messages += 1
        self.bytes += len(data)
        weather = self.weather
        arrival = self.arrival(source, target, data)
        if arrival is None:
            return
        agenda = self.agenda
        receive = self._receivers[target]
        agenda.at(arrival, receive, (source, data))
        if weather.copies and self._random.random() < weather.copies:
            extra = int(self._random.random() * 4 * (weather.delay_max + weather.jitter))
            agenda.at(arrival + extra, receive, (source, data))

    def broadcast(self, source: int, data: bytes, without: int = -1) -> None:
        """Send a message to all others, except `without`."""
        if self._cuts or self.tap or self.weather.loss or self.weather.spikes:
            for target in range(self.n):
                if target not in (source, without):
                    self.send(source, target, data)
            return
        self._broadcast_undisturbed(source, data, without)

    def _broadcast_undisturbed(self, source: int, data: bytes, without: int) -> None:
        # A faster loop of `send`, for when messages can only be delayed and copied: the usual case.
        draw, jitter, copies = self._random.random, self.weather.jitter, self.weather.copies
        receivers, after = self._receivers, self.agenda.after
        item = (source, data)
        first = source * self.n
        for target in range(self.n):
            if target in (source, without):
                continue
            delay = self._base[first + target] + int(draw() * jitter)
            after(delay, receivers[target], item)
            if copies and draw() < copies:
                after(2 * delay + jitter, receivers[target], item)
        count = self.n - (2 if 0 <= without != source else 1)
        self.messages += count
        self.bytes += count * len(data)

    def send_in_order(self, source: int, target: int, batch: Sequence[bytes]) -> None:
        """Send messages as one stream: none overtakes another, some may be lost."""
        latest = 0
        for data in batch:
            self.messages += 1
            self.bytes += len(data)
            arrival = self.arrival(source, target, data)
            if arrival is None:
                continue
            latest = max(latest, arrival)
            self.agenda.at(latest, self._receivers[target], (source, data))

    def relay(self, source: int, data: bytes, without: int) -> None:
        """Pass a message on: to everybody in a small network, to a few in a large one."""
        if self.n <= RELAY_ALL_MAX:
            self.broadcast(source, data, without)
            return
        draw = self._random.random
        for _ in range(RELAY_PEERS):
            target = int(draw() * self.n)
            if target not in (source, without):
                self.send(source, target, data)

    def arrival(self, source: int, target: int, data: bytes = b"", size: int = 0) -> int | None:
        """When something sent now arrives; None: never. Blobs have a size and no data."""
        weather, draw = self.weather, self._random.random
        earliest = self.agenda.now
        for cut in self._cuts:
            if not (cut.sources >> source & 1 and cut.targets >> target & 1):
                continue
            if cut.only is not None and (not data or self._label(data) not in cut.only):
                continue
            if not cut.held or cut.end >= FOREVER:
                return None
            earliest = max(earliest, cut.end)
        if weather.loss and draw() < weather.loss:
            return None
        delay = self._base[source * self.n + target] + int(draw() * weather.jitter)
        if weather.spikes and draw() < weather.spikes:
            delay += int(draw() * weather.spike_max)
        if self.tap is not None and data:
            held = self.tap(source, target, data)
            if held >= FOREVER:
                return None
            delay += held
        return earliest + delay + size // BYTES_PER_MICROSECOND

    def draw(self, bound: int) -> int:
        """A random whole number below the bound, from the network's generator."""
        return int(self._random.random() * bound)
