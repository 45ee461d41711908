"""What our strategies share: Flower's `FedAvg` with every reply checked.

A round in Flower's words: `configure_train` waits for nodes, draws the committee and asks the
proposers; `aggregate_train` reads their replies, lets the subclass decide, and makes the step. An
update is g_j = w - w_j (the learning rate is 1): the candidate w - g_j is what the node returned.

Nothing that a node sends raises. A round that cannot decide keeps the model.
"""

import logging
import math
import secrets
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar

from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Message,
    MessageType,
    Metadata,
    MetricRecord,
    RecordDict,
)
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result

from holdout.custom_code import Kept
from holdout.errors import ConfigError, MisuseError
from holdout.flower.arrays import BUFFERS, Layout
from holdout.flower.exchange import Answers, PollingGrid, collate, log_faults
from holdout.flower.metrics import MetricsFunction, aggregate_metrics, median_metrics
from holdout.flower.open_round import DrawSizes, OpenRound, Verdict, make_record
from holdout.flower.recording import Recorder, RoundReport, Seconds, recording
from holdout.flower.roster import Roster, wait_for_nodes
from holdout.ids import RoundNumber
from holdout.rounds import AdmittedProposals
from holdout.seeds import stream
from holdout.shares import read_share, write_share
from holdout.voting import draw_committee

LOG = logging.getLogger("flwr")

SEED_BITS = 53
"""The size of a seed that nobody chose: unguessable, and exact in any JSON reader."""

EvaluateFunction = Callable[[int, ArrayRecord], MetricRecord | None]


@dataclass(eq=False, repr=False)
class CheckedStrategy(FedAvg):
    """`FedAvg` with every reply checked; subclasses say how large committees are and what decides.

    The fields are the constructor's arguments: those of `FedAvg` in its order, then ours, by
    keyword only. An `InitVar` is one that `FedAvg` keeps as an attribute of another type.
    """

    fraction_train: InitVar[float | None] = None
    fraction_evaluate: float = 1.0
    min_train_nodes: InitVar[int | None] = None
    min_evaluate_nodes: int = 2
    min_available_nodes: int = 2
    weighted_by_key: str = "num-examples"
    arrayrecord_key: str = "arrays"
    configrecord_key: str = "config"
    train_metrics_aggr_fn: InitVar[MetricsFunction | None] = None
    evaluate_metrics_aggr_fn: InitVar[MetricsFunction | None] = None
    _: KW_ONLY
    rule: str
    num_proposers: int | None = None
    byzantine_fraction: float | str | Fraction = 0.33
    trained: Sequence[str] = ("*",)
    buffers: Sequence[str] = BUFFERS
    propose_timeout: float = 600.0
    connect_timeout: float = 300.0
    seed: int | None = None
    run_folder: Path | str | None = None
    name: str = "flower"
    attack: str = "unknown attack"

    default_fraction_train: ClassVar[float]

    def __post_init__(
        self,
        fraction_train: float | None,
        min_train_nodes: int | None,
        train_metrics_aggr_fn: MetricsFunction | None,
        evaluate_metrics_aggr_fn: MetricsFunction | None,
    ) -> None:
        """Check every argument, and report all mistakes at once."""
        default = self.default_fraction_train
        super().__init__(
            fraction_train=default if fraction_train is None else fraction_train,
            fraction_evaluate=self.fraction_evaluate,
            min_train_nodes=2 if min_train_nodes is None else min_train_nodes,
            min_evaluate_nodes=self.min_evaluate_nodes,
            min_available_nodes=self.min_available_nodes,
            weighted_by_key=self.weighted_by_key,
            arrayrecord_key=self.arrayrecord_key,
            configrecord_key=self.configrecord_key,
            train_metrics_aggr_fn=train_metrics_aggr_fn or median_metrics,
            evaluate_metrics_aggr_fn=evaluate_metrics_aggr_fn or median_metrics,
        )
        problems = [*self._shared_problems(), *self._problems()]
        if self.num_proposers is not None and (fraction_train, min_train_nodes) != (None, None):
            problems.append(
                "num_proposers says how many nodes train in a round; with it, fraction_train and "
                "min_train_nodes must not be given"
            )
        if problems:
            raise ConfigError(problems, where="the strategy's arguments")
        self.byzantine_fraction = self._exact_fraction()
        # Whoever can foresee the draws can choose when to lie, so the default is a secret.
        self._seed = secrets.randbits(SEED_BITS) if self.seed is None else self.seed
        self.seed = self._seed
        self._begin()

    def _begin(self) -> None:
        """Forget what an earlier run left."""
        self._roster = Roster()
        self._recorder = Recorder()
        self._open: OpenRound | None = None
        self._radius: float | None = None
        self._rule_state: Kept = {}
        self._evaluation: list[Metadata] = []
        self._evaluate_config = ConfigRecord()

    @abstractmethod
    def _problems(self) -> list[str]:
        """Mistakes in the subclass's arguments."""

    @property
    @abstractmethod
    def _evaluate_timeout(self) -> float:
        """Seconds that nodes have to evaluate or to vote."""

    @abstractmethod
    def _sizes(self, connected: int) -> DrawSizes:
        """How many nodes propose and vote, given how many are connected."""

    def _trainers(self, proposers: Sequence[int], voters: Sequence[int]) -> list[int]:  # noqa: ARG002
        """The nodes that get the `train` message, of those drawn."""
        return list(proposers)

    @abstractmethod
    def _decide(
        self, open_round: OpenRound, admitted: AdmittedProposals, answers: Answers
    ) -> Verdict:
        """From valid updates to a decision; `answers` are those to the `train` messages."""

    def _step(
        self, open_round: OpenRound, admitted: AdmittedProposals, verdict: Verdict
    ) -> tuple[ArrayRecord, Verdict]:
        """The next model, and the verdict with the round's outcome."""
        arrays, outcome = open_round.step(
            verdict.decision, f=self._exact_fraction(), valid=admitted.valid
        )
        return arrays, replace(verdict, decision=replace(verdict.decision, outcome=outcome))

    @abstractmethod
    def _voters_in_words(self) -> str:
        """What the summary says after the number of proposers."""

    @abstractmethod
    def _vote_config(self) -> dict[str, dict[str, Any]]:
        """What the run folder's config says about the vote, by section."""

    def start(  # noqa: PLR0917  (The interface is Flower's.)
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFunction | None = None,
    ) -> Result:
        """Run the federation as `FedAvg` does, but poll for replies and record the rounds."""
        self._begin()
        self._evaluate_config = evaluate_config or ConfigRecord()
        timeouts = {
            MessageType.TRAIN: self.propose_timeout,
            MessageType.EVALUATE: self._evaluate_timeout,
        }
        config = self._config(num_rounds)
        with recording(self.run_folder, config, self._roster.numbers) as self._recorder:
            return super().start(
                PollingGrid(grid, timeouts),
                initial_arrays,
                num_rounds,
                timeout,
                train_config,
                evaluate_config,
                evaluate_fn and self._watched(evaluate_fn),
            )

    def summary(self) -> None:
        """Log the rule, the committee and the keys of the records."""
        number = self.num_proposers
        proposers = f"{self.fraction_train:g} of the nodes" if number is None else str(number)
        LOG.info("\t├──> Rule: %s", self.rule)
        LOG.info("\t│\t├── Byzantine share withstood: %s", self.byzantine_fraction)
        LOG.info("\t│\t├── Proposers: %s%s", proposers, self._voters_in_words())
        LOG.info("\t│\t└── Federated evaluation: %g of the nodes", self.fraction_evaluate)
        LOG.info("\t└──> Keys in records:")
        LOG.info("\t\t├── ArrayRecord key: '%s'", self.arrayrecord_key)
        LOG.info("\t\t└── ConfigRecord key: '%s'", self.configrecord_key)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Draw the committee and ask the proposers, with the plain `train` message."""
        self._recorder.flush()
        self._open = None
        if self.fraction_train == 0.0:
            return []
        layout = Layout.of(arrays, trained=self.trained, buffers=self.buffers)
        weights = layout.flatten(arrays)
        began = time.monotonic()
        nodes, sizes = self._draw_pool(grid, server_round)
        drawn = draw_committee(
            workers=len(nodes),
            proposers=sizes.proposers,
            voters=sizes.voters,
            disjoint=True,
            seed=self._seed,
            round_number=RoundNumber(server_round),
        )
        proposers = [nodes[place] for place in drawn.proposers]
        voters = [nodes[place] for place in drawn.voters]
        LOG.info(
            "configure_train: drew %d proposers and %d voters out of %d nodes",
            len(proposers),
            len(voters),
            len(nodes),
        )
        config["server-round"] = server_round
        record = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: config})
        trainers = self._trainers(proposers, voters)
        messages = [self._ask(record, node, MessageType.TRAIN, server_round) for node in trainers]
        now = time.monotonic()
        self._open = OpenRound(
            number=RoundNumber(server_round),
            grid=grid,
            arrays=arrays,
            layout=layout,
            weights=weights,
            proposers=proposers,
            voters=voters,
            asked=[message.metadata for message in messages],
            previous_radius=self._radius,
            rule_state=self._rule_state,
            wait_seconds=now - began,
            asked_at=now,
        )
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check the replies, decide, step; keep the model where nothing can be decided."""
        if self.fraction_train == 0.0:
            return None, None
        open_round = self._open
        if open_round is None or open_round.number != server_round:
            raise MisuseError("aggregate_train follows configure_train of the same round")
        self._open = None
        propose_seconds = time.monotonic() - open_round.asked_at
        answers = self._collate(open_round.asked, replies, server_round)
        # Before the arrays are read: what is read is no longer held.
        metrics = (
            aggregate_metrics(
                list(answers.contents.values()), self.train_metrics_aggr_fn, self.weighted_by_key
            )
            or MetricRecord()
        )
        of_proposers = answers.without(open_round.voters)
        admitted, faults = open_round.admit(of_proposers, key=self.arrayrecord_key)
        log_faults("proposal", faults)
        verdict = self._decide(open_round, admitted, answers)
        log_faults("proposal", verdict.proposal_faults)
        log_faults("ballot", verdict.ballot_faults)
        faults += verdict.proposal_faults
        arrays, verdict = self._step(open_round, admitted, verdict)
        self._radius, self._rule_state = verdict.radius, verdict.rule_state
        decide = time.monotonic() - open_round.asked_at - propose_seconds - verdict.vote_seconds
        seconds = Seconds(open_round.wait_seconds, propose_seconds, verdict.vote_seconds, decide)
        report = RoundReport(
            record=make_record(
                open_round,
                verdict,
                faults,
                numbers=self._roster.numbers,
                rule=self.rule,
                attack=self.attack,
                seed=self._seed,
                seconds=seconds.total,
            ),
            accepted=len(admitted.valid) - len(verdict.proposal_faults),
            left_out=len(self._roster.resting(server_round)),
            seconds=seconds,
        )
        self._recorder.add(report)
        report.log()
        for key, value in report.metrics().items():
            metrics[key] = value
        return arrays, metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask nodes to evaluate the model, as `FedAvg` does, but wait only a limited time."""
        self._evaluation = []
        if self.fraction_evaluate == 0.0:
            return []

        def needed(connected: int) -> int:
            share = int(connected * self.fraction_evaluate)
            return max(share, self.min_evaluate_nodes, 1)

        nodes = self._wait(grid, needed, "federated evaluation")
        size = needed(len(nodes))
        pool = self._roster.eligible(nodes, round_number=server_round, needed=size)
        drawn = stream(self._seed, "evaluate", server_round).sample(pool, min(size, len(pool)))
        LOG.info("configure_evaluate: drew %d out of %d nodes", len(drawn), len(nodes))
        config["server-round"] = server_round
        record = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: config})
        messages = [self._ask(record, node, MessageType.EVALUATE, server_round) for node in drawn]
        self._evaluation = [message.metadata for message in messages]
        return messages

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """The median of what nodes report, or what the user's function makes of it."""
        if not self._evaluation:
            return None
        answers = self._collate(self._evaluation, replies, server_round)
        log_faults("evaluation", answers.faults)
        metrics = aggregate_metrics(
            list(answers.contents.values()), self.evaluate_metrics_aggr_fn, self.weighted_by_key
        )
        self._recorder.evaluated(metrics, central=False)
        return metrics

    def _shared_problems(self) -> list[str]:
        """Mistakes in the arguments that all our strategies take."""
        problems = [
            *count_problems("num_proposers", self.num_proposers),
            *count_problems("seed", self.seed, least=0),
            *pattern_problems("trained", self.trained),
            *pattern_problems("buffers", self.buffers),
            *timeout_problems("propose_timeout", self.propose_timeout),
            *timeout_problems("connect_timeout", self.connect_timeout),
        ]
        try:
            self._exact_fraction()
        except ValueError as error:
            problems.append(f"byzantine_fraction = {self.byzantine_fraction!r}: {error}")
        return problems

    def _exact_fraction(self) -> Fraction:
        """The assumed Byzantine share f; a ValueError if the argument is not a share."""
        share = read_share(self.byzantine_fraction)
        if isinstance(share, int) or share >= Fraction(1, 2):
            raise ValueError("must be a share below 1/2")
        return share

    def _draw_pool(self, grid: Grid, server_round: int) -> tuple[list[int], DrawSizes]:
        """The nodes that a committee can be drawn from, and how large it is."""

        def needed(connected: int) -> int:
            return max(sum(self._sizes(connected)), self.min_available_nodes)

        connected = self._wait(grid, needed, f"round {server_round}")
        sizes = self._sizes(len(connected))
        pool = self._roster.eligible(connected, round_number=server_round, needed=sum(sizes))
        return pool, sizes

    def _wait(self, grid: Grid, needed: Callable[[int], int], what: str) -> Sequence[int]:
        return wait_for_nodes(grid.get_node_ids, needed, timeout=self.connect_timeout, what=what)

    def _proposers_among(self, connected: int) -> int:
        """How many nodes propose, by `num_proposers` or in `FedAvg`'s way."""
        if self.num_proposers is not None:
            return self.num_proposers
        return max(int(connected * self.fraction_train), self.min_train_nodes)

    def _ask(self, record: RecordDict, node: int, message_type: str, server_round: int) -> Message:
        training = message_type == MessageType.TRAIN
        return Message(
            record,
            dst_node_id=node,
            message_type=message_type,
            group_id=str(server_round),
            # A node that comes back later must not work on what nobody waits for.
            ttl=self.propose_timeout if training else self._evaluate_timeout,
        )

    def _collate(
        self, asked: Sequence[Metadata], replies: Iterable[object], server_round: int
    ) -> Answers:
        """Match the replies to what was asked, and note who was silent."""
        answers = collate(asked, replies)
        for node in (question.dst_node_id for question in asked):
            if node in answers.silent:
                self._roster.silent(node, round_number=server_round)
            else:
                self._roster.heard(node)
        return answers

    def _config(self, num_rounds: int) -> dict[str, Any]:
        """The run folder's config, with the keys that configs of experiments have."""
        federation: dict[str, Any] = {
            "mode": "flower",
            "assumed_byzantine": write_share(self._exact_fraction()),
        }
        if self.num_proposers is not None:
            federation["proposers"] = self.num_proposers
        config: dict[str, Any] = {
            "experiment": {
                "name": self.name,
                "rules": [self.rule],
                "rounds": num_rounds,
                "seeds": [self._seed],
                "baseline": False,
            },
            "federation": federation,
            "attack": {"name": self.attack},
        }
        for section, entries in self._vote_config().items():
            config[section] = {**config.get(section, {}), **entries}
        return config

    def _watched(self, evaluate_fn: EvaluateFunction) -> EvaluateFunction:
        """The user's central evaluation, whose result is recorded as the round's accuracy."""

        def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
            metrics = evaluate_fn(server_round, arrays)
            self._recorder.evaluated(metrics, central=True)
            return metrics

        return evaluate


def count_problems(argument: str, value: int | None, *, least: int = 1) -> list[str]:
    """What is wrong with an argument that must be a whole number of at least `least`, or None."""
    if value is None or (type(value) is int and value >= least):
        return []
    return [f"{argument} = {value!r}: must be a whole number, {least} or more"]


def pattern_problems(argument: str, patterns: object) -> list[str]:
    """What is wrong with an argument that must be a list of names, in which `*` may stand."""
    right = isinstance(patterns, list | tuple) and all(isinstance(p, str) for p in patterns)
    return (
        [] if right else [f'{argument} = {patterns!r}: must be a list of names, such as ["*bn*"]']
    )


def timeout_problems(argument: str, seconds: float) -> list[str]:
    """What is wrong with an argument that must be a time limit."""
    if 0 < seconds < math.inf:
        return []
    return [f"{argument} = {seconds!r}: must be a positive number of seconds"]
