"""The plan of what goes wrong in a run, drawn from its seed.

Each run switches on a random subset of the faults at random rates ("swarm testing"): if everything
always failed a little, some combinations would never happen. There are two types of runs, because
each finds bugs that the other hides. In a *safety* run faults last to the end, and the only demand
is that no invariant breaks. In a *liveness* run they end at a time that the workers do not know
(GST), except that faulty workers stay faulty; from then on the healthy ones must make progress.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, StrEnum

from holdout.agreement.messages import Kind, VoteStep
from holdout.agreement.params import MILLISECOND
from holdout.errors import UserError
from holdout.seeds import Stream, stream
from holdout.simulator.network import CALM, FOREVER, SECOND, Cut, Label, Weather, mask, partition

PARTS = 1 << 20
"""Probabilities are drawn in steps of one in this many."""
FEW = 2
"""If no more than this many kinds of faults are allowed, all of them are switched on."""


class FaultKind(StrEnum):
    """Kinds of faults that a run may have, by their names in `--faults`."""

    DELAY = "delay"
    """Slow links, jitter, and spikes that can be longer than all timeouts."""
    LOSS = "loss"
    DUPLICATION = "duplication"
    CUTS = "cuts"
    """One-way cuts: a hears b, but b does not hear a."""
    PARTITIONS = "partitions"
    CRASHES = "crashes"
    """A crash, at a write or at any time; the worker restarts with its disk."""
    DISK_LOSS = "disk-loss"
    """A crash, and a restart without the disk."""
    DEATH = "death"
    """A crash for good; the worker counts as Byzantine."""
    DRIFT = "drift"
    """Clocks run at different speeds."""
    SLOW = "slow"
    """Jobs take many times as long."""
    HOLDS = "holds"
    """All votes and bundles of one step to some workers are held back for long."""
    COMPLETION = "completion"
    """Liars complete quorums that lack only their votes, and show them to a victim."""
    LIARS = "liars"
    """Byzantine workers lie as `adversaries_agreement.BEHAVIOURS` says; else they are honest."""


ALL_FAULTS = tuple(FaultKind)


class RunType(StrEnum):
    """What a run tests."""

    SAFETY = "safety"
    LIVENESS = "liveness"


class Point(Enum):
    """When a crash happens, relative to a write."""

    BEFORE = "before the write"
    UNSYNCED = "written, not synced"
    WRITTEN = "after the write, before anything behind it"
    SENT = "after what is behind it"


@dataclass(frozen=True, slots=True)
class Crash:
    """A planned crash, at a time or at the write of this number."""

    worker: int
    down: int
    """Microseconds until the worker restarts."""
    at: int | None = None
    write: int | None = None
    point: Point = Point.BEFORE
    disk_lost: bool = False
    for_good: bool = False

    def describe(self) -> str:
        """The crash in words, for a trace."""
        when = f"at its write {self.write}, {self.point.value}"
        if self.at is not None:
            when = f"after {_seconds(self.at)}"
        then = "for good" if self.for_good else f"for {_seconds(self.down)}"
        if not self.for_good and not self.down:
            then = "starts again at once"
        lost = " and loses its disk" if self.disk_lost else ""
        return f"worker {self.worker} crashes {when}, {then}{lost}"


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """Everything that will go wrong."""

    run_type: RunType
    gst: int
    """In liveness runs, when faults end."""
    weather: Weather = CALM
    cuts: tuple[Cut, ...] = ()
    lasting: tuple[Cut, ...] = ()
    """Cuts that stay after GST; each cuts off a worker that is faulty anyway."""
    crashes: tuple[Crash, ...] = ()
    rates: tuple[int, ...] = ()
    """How much too fast each worker's clock runs, in millionths."""
    slowness: tuple[int, ...] = ()
    """How many times longer each worker's jobs take."""
    liars: tuple[tuple[int, tuple[str, ...]], ...] = ()
    """Byzantine workers and their behaviours."""
    completion: bool = False
    dead: tuple[int, ...] = ()
    """Workers that stay down or lose their disk; like liars, they count towards B."""

    @property
    def faulty(self) -> tuple[int, ...]:
        """Liars and dead workers: those of whom no progress is demanded."""
        return tuple(sorted({*(worker for worker, _ in self.liars), *self.dead}))

    def describe(self) -> list[str]:
        """The plan in words, for readers of a run's trace."""
        lines = ["a safety run: faulty to its end"]
        if self.run_type is RunType.LIVENESS:
            lines = [f"a liveness run: the network heals after {_seconds(self.gst)}"]
        lines += [f"worker {liar} is Byzantine: {', '.join(how)}" for liar, how in self.liars]
        if self.completion:
            lines.append("an attacker completes quorums with the liars' votes, at chosen victims")
        lines.append(f"weather: {self.weather.describe()}")
        lines += [cut.describe() for cut in self.cuts]
        lines += [f"{cut.describe()}, also after the network has healed" for cut in self.lasting]
        lines += [crash.describe() for crash in self.crashes]
        for worker, rate in enumerate(self.rates):
            if rate:
                wrong = f"{abs(rate) / 10_000:.1f} % too {'fast' if rate > 0 else 'slow'}"
                lines.append(f"the clock of worker {worker} is {wrong}")
        for worker, times in enumerate(self.slowness):
            if times > 1:
                lines.append(f"worker {worker} computes {times} times slower")
        return lines


def _seconds(time: int) -> str:
    return f"{time / SECOND:.3f} s"


def read_faults(
    text: str, behaviours: Iterable[str]
) -> tuple[tuple[FaultKind, ...], tuple[str, ...]]:
    """The faults and behaviours that a list like "loss,crashes,Z4" names."""
    known = tuple(behaviours)
    faults: dict[FaultKind, None] = {}
    named: dict[str, None] = {}
    for name in (part.strip() for part in text.split(",")):
        if name == "all":
            faults |= dict.fromkeys(ALL_FAULTS)
        elif name in known:
            faults[FaultKind.LIARS] = None
            named[name] = None
        elif name in list(FaultKind):
            faults[FaultKind(name)] = None
        elif name != "none":
            names = ", ".join(["all", "none", *FaultKind, *known])
            raise UserError(f"there is no fault {name!r}; choose from {names}")
    return tuple(faults), tuple(named)


def draw_plan(
    seed: int,
    *,
    n: int,
    byzantine: int,
    run_type: RunType,
    faults: Iterable[FaultKind] = ALL_FAULTS,
    behaviours: Iterable[str] = (),
) -> FaultPlan:
    """The plan of a run; the same seed gives the same plan."""
    words = stream(seed, "faults", run_type)
    # Every kind is drawn, allowed or not, so that leaving one out does not change the others.
    lucky = {fault: words.below(2) == 1 for fault in FaultKind}
    allowed = tuple(faults)
    on = {fault: fault in allowed and lucky[fault] for fault in FaultKind}
    # With one or two kinds allowed, leaving them to chance would waste most runs.
    if len(allowed) <= FEW:
        on = {fault: fault in allowed for fault in FaultKind}
    # Liars are the point of it all: if allowed they are there, usually as many as there may be.
    liar_count = byzantine if words.below(4) else words.below(byzantine + 1)
    gst = words.below(12 * SECOND) + SECOND
    order = words.sample(range(n), n)
    liars = tuple(sorted(order[:liar_count])) if FaultKind.LIARS in allowed else ()
    spare = order[len(liars) : byzantine]
    plan = _Drawing(seed, n, gst, order)
    crashes, dead = plan.crashes(
        liars, spare, on[FaultKind.CRASHES], on[FaultKind.DISK_LOSS], on[FaultKind.DEATH]
    )
    faulty = sorted({*liars, *dead})
    return FaultPlan(
        run_type=run_type,
        gst=gst,
        weather=plan.weather(on),
        cuts=plan.cuts(on),
        lasting=plan.lasting(faulty) if on[FaultKind.CUTS] else (),
        crashes=crashes,
        rates=plan.rates(on[FaultKind.DRIFT]),
        slowness=plan.slowness(on[FaultKind.SLOW]),
        liars=plan.behaviours(liars, tuple(behaviours)),
        completion=on[FaultKind.COMPLETION] and bool(liars),
        dead=tuple(sorted(dead)),
    )


@dataclass(frozen=True, slots=True)
class _Drawing:
    """Draws the parts of a plan, each from its own stream: no part changes another."""

    seed: int
    n: int
    gst: int
    order: list[int]

    def _words(self, part: str) -> Stream:
        return stream(self.seed, "faults", part)

    def weather(self, on: dict[FaultKind, bool]) -> Weather:
        words = self._words("weather")
        links = (5, 50), (1, 150), (20, 600)
        low, high = links[words.below(3)] if on[FaultKind.DELAY] else links[0]
        jitter = (20, 100, 400)[words.below(3)] if on[FaultKind.DELAY] else 20
        return Weather(
            delay_min=low * MILLISECOND,
            delay_max=high * MILLISECOND,
            jitter=jitter * MILLISECOND,
            loss=_share(words, 0.5) if on[FaultKind.LOSS] else 0.0,
            copies=_share(words, 0.3) if on[FaultKind.DUPLICATION] else 0.0,
            spikes=_share(words, 0.2) if on[FaultKind.DELAY] else 0.0,
            spike_max=(1 + words.below(20)) * SECOND,
        )

    def cuts(self, on: dict[FaultKind, bool]) -> tuple[Cut, ...]:
        found: list[Cut] = []
        if on[FaultKind.PARTITIONS]:
            words = self._words("partitions")
            for _ in range(1 + words.below(4)):
                group = words.sample(range(self.n), 1 + words.below(max(1, self.n // 2)))
                start, end = self._span(words)
                held = words.below(2) == 1
                found += partition(group, self.n, start=start, end=end, held=held)
        if on[FaultKind.CUTS]:
            words = self._words("cuts")
            for _ in range(1 + words.below(4)):
                one, other = words.sample(range(self.n), 2)
                start, end = self._span(words)
                found.append(Cut(1 << one, 1 << other, start, end, held=words.below(2) == 1))
        if on[FaultKind.HOLDS]:
            words = self._words("holds")
            everybody = (1 << self.n) - 1
            for _ in range(1 + words.below(4)):
                step = list(VoteStep)[words.below(len(VoteStep))]
                victims = words.sample(range(self.n), 1 + words.below(max(1, self.n // 3)))
                start, end = self._span(words)
                found.append(
                    Cut(everybody, mask(victims), start, end, held=True, only=labels_of(step))
                )
        return tuple(found)

    def _span(self, words: Stream) -> tuple[int, int]:
        start = words.below(self.gst)
        return start, start + words.below(10 * SECOND) + 100 * MILLISECOND

    def lasting(self, faulty: list[int]) -> tuple[Cut, ...]:
        """Each faulty worker is cut off from some others in one direction, for ever."""
        words = self._words("lasting")
        found = []
        for worker in faulty:
            others = mask(words.sample(range(self.n), words.below(self.n)))
            pair = (1 << worker, others) if words.below(2) else (others, 1 << worker)
            found.append(Cut(*pair, 0, FOREVER))
        return tuple(found)

    def crashes(
        self, liars: tuple[int, ...], spare: list[int], some: bool, lost: bool, death: bool
    ) -> tuple[tuple[Crash, ...], tuple[int, ...]]:
        words = self._words("crashes")
        found: list[Crash] = []
        dead: list[int] = []
        for worker in spare:
            kind = words.below(4)
            if death and kind == 0:
                found.append(Crash(worker, 0, at=words.below(self.gst), for_good=True))
                dead.append(worker)
            elif lost and kind != 1:
                down = words.below(4 * SECOND)
                found.append(Crash(worker, down, at=words.below(self.gst), disk_lost=True))
                dead.append(worker)
        if some:
            healthy = [w for w in self.order if w not in liars and w not in dead]
            for worker in healthy:
                for _ in range(words.below(4)):
                    down = words.below(3 * SECOND) if words.below(2) else 0
                    if words.below(3):
                        point = list(Point)[words.below(len(Point))]
                        found.append(Crash(worker, down, write=words.below(16), point=point))
                    else:
                        found.append(Crash(worker, down, at=words.below(self.gst)))
        return tuple(found), tuple(dead)

    def rates(self, on: bool) -> tuple[int, ...]:
        words = self._words("rates")
        # Up to a tenth too fast or too slow.
        drawn = tuple(words.below(200_001) - 100_000 for _ in range(self.n))
        return drawn if on else (0,) * self.n

    def slowness(self, on: bool) -> tuple[int, ...]:
        words = self._words("slowness")
        drawn = tuple((1, 1, 5, 30)[words.below(4)] for _ in range(self.n))
        return drawn if on else (1,) * self.n

    def behaviours(
        self, liars: tuple[int, ...], known: tuple[str, ...]
    ) -> tuple[tuple[int, tuple[str, ...]], ...]:
        words = self._words("behaviours")
        chosen = []
        for worker in liars:
            count = min(len(known), 1 + words.below(3))
            chosen.append((worker, tuple(words.sample(known, count))))
        return tuple(chosen)


def labels_of(step: VoteStep) -> frozenset[Label]:
    """The labels of the votes and bundles of one step."""
    return frozenset({(int(Kind.VOTE), int(step)), (int(Kind.BUNDLE), int(step))})


def _share(words: Stream, largest: float) -> float:
    return largest * words.below(PARTS) / PARTS
