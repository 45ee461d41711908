"""What our strategies share: Flower's `FedAvg` with every reply checked.

A round in Flower's words: `configure_train` waits for nodes, draws the committee and asks the
proposers; `aggregate_train` reads what they return, lets the subclass decide, and steps. An update
is g_j = w - w_j (the learning rate is 1), so that the candidate w - g_j is what the node returned.

Nothing that a node sends raises. Where a round cannot decide, the model stays as it is.
"""

import logging
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result

from holdout.errors import ConfigError, MisuseError
from holdout.flower.exchange import PollingGrid
from holdout.flower.metrics import MetricsFunction, aggregate_metrics, median_metrics
from holdout.flower.open_round import DrawSizes, OpenRound, Verdict, admit, make_record, step
from holdout.flower.recording import Recorder, RoundReport, Seconds, recording
from holdout.flower.records import Layout
from holdout.flower.replies import Answers, collate, log_faults
from holdout.flower.roster import Roster, wait_for_nodes
from holdout.flower.settings import StrategySettings
from holdout.ids import RoundNumber
from holdout.rounds import AdmittedProposals
from holdout.seeds import stream
from holdout.shares import write_share
from holdout.voting import draw_committee

LOG = logging.getLogger("flwr")

EvaluateFunction = Callable[[int, ArrayRecord], MetricRecord | None]


class CheckedStrategy(FedAvg):
    """`FedAvg` with every reply checked; how to decide is the subclass's."""

    rule: str

    def __init__(
        self,
        settings: StrategySettings,
        problems: Iterable[str],
        *,
        fraction_train: float | None,
        min_train_nodes: int | None,
        default_fraction: float,
        train_metrics_aggr_fn: MetricsFunction | None,
        evaluate_metrics_aggr_fn: MetricsFunction | None,
        **others: Any,
    ) -> None:
        """`others` are handed to `FedAvg`; `problems` are what the subclass complains of."""
        found = [*settings.problems(), *problems]
        if settings.num_proposers is not None and (fraction_train, min_train_nodes) != (None, None):
            found.append(
                "num_proposers says how many nodes train in a round; with it, fraction_train and "
                "min_train_nodes must not be given"
            )
        if found:
            raise ConfigError(found)
        super().__init__(
            fraction_train=default_fraction if fraction_train is None else fraction_train,
            min_train_nodes=2 if min_train_nodes is None else min_train_nodes,
            train_metrics_aggr_fn=train_metrics_aggr_fn or median_metrics,
            evaluate_metrics_aggr_fn=evaluate_metrics_aggr_fn or median_metrics,
            **others,
        )
        self.settings = settings
        self.byzantine_fraction = settings.exact_fraction()
        self.seed = settings.own_seed()
        self._begin()

    def _begin(self) -> None:
        """Forget what an earlier run left."""
        self._roster = Roster()
        self._recorder = Recorder()
        self._open: OpenRound | None = None
        self._evaluation: list[Message] = []
        self._evaluate_config = ConfigRecord()

    @abstractmethod
    def _sizes(self, connected: int) -> DrawSizes:
        """How many propose and vote when so many nodes are connected."""

    @abstractmethod
    def _decide(self, stage: OpenRound, admitted: AdmittedProposals) -> Verdict:
        """From valid updates to a decision."""

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
        """Run the federation, as in Flower; replies are polled by us, and rounds recorded."""
        self._begin()
        self._evaluate_config = evaluate_config or ConfigRecord()
        timeouts = {
            MessageType.TRAIN: self.settings.propose_timeout,
            MessageType.EVALUATE: self.settings.evaluate_timeout,
        }
        config = self._config(num_rounds)
        with recording(self.settings.run_folder, config, self._roster.numbers) as self._recorder:
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
        """Log what was chosen."""
        number = self.settings.num_proposers
        proposers = f"{self.fraction_train:g} of the nodes" if number is None else str(number)
        LOG.info("\t├──> Rule: %s", self.rule)
        LOG.info("\t│\t├── Byzantine share withstood: %s", self.byzantine_fraction)
        LOG.info("\t│\t├── Proposers: %s%s", proposers, self._voters_in_words())
        LOG.info("\t│\t└── Federated evaluation: %g of the nodes", self.fraction_evaluate)
        LOG.info("\t└──> Keys in records:")
        LOG.info("\t\t├── ArrayRecord key: '%s'", self.arrayrecord_key)
        LOG.info("\t\t└── ConfigRecord key: '%s'", self.configrecord_key)

    def _voters_in_words(self) -> str:
        return ""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Draw the committee and ask the proposers, with the plain `train` message."""
        self._recorder.flush()
        self._open = None
        if self.fraction_train == 0.0:
            return []
        layout = Layout.of(arrays)
        weights = layout.flatten(arrays)
        began = time.monotonic()
        nodes, sizes = self._draw_pool(grid, server_round)
        drawn = draw_committee(
            workers=len(nodes),
            proposers=sizes.proposers,
            voters=sizes.voters,
            disjoint=True,
            seed=self.seed,
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
        asked = [self._ask(record, node, MessageType.TRAIN, server_round) for node in proposers]
        now = time.monotonic()
        self._open = OpenRound(
            number=RoundNumber(server_round),
            grid=grid,
            arrays=arrays,
            layout=layout,
            weights=weights,
            proposers=proposers,
            voters=voters,
            asked=asked,
            wait_seconds=now - began,
            asked_at=now,
        )
        return asked

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check the replies, decide, step; the model stays where nothing can be decided."""
        if self.fraction_train == 0.0:
            return None, None
        stage = self._open
        if stage is None or stage.number != server_round:
            raise MisuseError("aggregate_train follows configure_train of the same round")
        self._open = None
        propose_seconds = time.monotonic() - stage.asked_at
        answers = self._collate(stage.asked, replies, server_round)
        admitted, faults = admit(stage, answers, key=self.arrayrecord_key)
        log_faults("proposal", faults)
        verdict = self._decide(stage, admitted)
        log_faults("ballot", verdict.ballot_faults)
        arrays, outcome = step(stage, verdict)
        verdict = replace(verdict, outcome=outcome)
        decide = time.monotonic() - stage.asked_at - propose_seconds - verdict.vote_seconds
        seconds = Seconds(stage.wait_seconds, propose_seconds, verdict.vote_seconds, decide)
        record = make_record(
            stage,
            verdict,
            faults,
            numbers=self._roster.numbers,
            names=(self.rule, self.settings.attack),
            seed=self.seed,
        )
        report = RoundReport(
            record=replace(record, seconds=round(seconds.all, 6)),
            accepted=len(admitted.valid),
            ballots=sum(ballot is not None for ballot in verdict.ballots or ()),
            left_out=len(self._roster.resting(server_round)),
            seconds=seconds,
        )
        self._recorder.add(report)
        _log_round(report)
        contents = list(answers.contents.values())
        metrics = (
            aggregate_metrics(contents, self.train_metrics_aggr_fn, self.weighted_by_key)
            or MetricRecord()
        )
        for key, value in report.metrics().items():
            metrics[key] = value
        return arrays, metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask nodes to evaluate the model, as `FedAvg` does, but wait only so long for them."""
        self._evaluation = []
        if self.fraction_evaluate == 0.0:
            return []

        def needed(connected: int) -> int:
            share = int(connected * self.fraction_evaluate)
            return max(share, self.min_evaluate_nodes, 1)

        nodes = self._wait(grid, needed, "federated evaluation")
        size = needed(len(nodes))
        pool = self._roster.eligible(nodes, round_number=server_round, needed=size)
        drawn = stream(self.seed, "evaluate", server_round).sample(pool, min(size, len(pool)))
        LOG.info("configure_evaluate: drew %d out of %d nodes", len(drawn), len(nodes))
        config["server-round"] = server_round
        record = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: config})
        self._evaluation = [
            self._ask(record, node, MessageType.EVALUATE, server_round) for node in drawn
        ]
        return self._evaluation

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """The median of what nodes report, or what the given function makes of it."""
        if not self._evaluation:
            return None
        answers = self._collate(self._evaluation, replies, server_round)
        log_faults("evaluation", answers.faults)
        metrics = aggregate_metrics(
            list(answers.contents.values()), self.evaluate_metrics_aggr_fn, self.weighted_by_key
        )
        self._recorder.evaluated(metrics, central=False)
        return metrics

    def _draw_pool(self, grid: Grid, server_round: int) -> tuple[list[int], DrawSizes]:
        """The nodes that a committee can be drawn from, and how large it is."""

        def needed(connected: int) -> int:
            return max(sum(self._sizes(connected)), self.min_available_nodes)

        connected = self._wait(grid, needed, f"round {server_round}")
        sizes = self._sizes(len(connected))
        pool = self._roster.eligible(connected, round_number=server_round, needed=sum(sizes))
        return pool, sizes

    def _wait(self, grid: Grid, needed: Callable[[int], int], what: str) -> Sequence[int]:
        return wait_for_nodes(
            grid.get_node_ids, needed, timeout=self.settings.connect_timeout, what=what
        )

    def _trained_by(self, connected: int) -> int:
        """How many propose, by `num_proposers` or in `FedAvg`'s way."""
        if self.settings.num_proposers is not None:
            return self.settings.num_proposers
        return max(int(connected * self.fraction_train), self.min_train_nodes)

    def _ask(self, record: RecordDict, node: int, message_type: str, server_round: int) -> Message:
        training = message_type == MessageType.TRAIN
        return Message(
            record,
            dst_node_id=node,
            message_type=message_type,
            group_id=str(server_round),
            # A node that comes back later must not work on what nobody waits for.
            ttl=self.settings.propose_timeout if training else self.settings.evaluate_timeout,
        )

    def _collate(
        self, asked: Sequence[Message], replies: Iterable[object], server_round: int
    ) -> Answers:
        """Match the replies, and remember who was silent."""
        answers = collate([message.metadata for message in asked], replies)
        nodes = [message.metadata.dst_node_id for message in asked]
        self._remember(nodes, answers, server_round)
        return answers

    def _remember(self, asked: Iterable[int], answers: Answers, server_round: int) -> None:
        for node in asked:
            if node in answers.silent:
                self._roster.silent(node, round_number=server_round)
            else:
                self._roster.heard(node)

    def _config(self, num_rounds: int) -> dict[str, Any]:
        """What the run folder says about the federation, in the words of our own configs."""
        federation: dict[str, Any] = {
            "mode": "flower",
            "assumed_byzantine": write_share(self.byzantine_fraction),
        }
        if self.settings.num_proposers is not None:
            federation["proposers"] = self.settings.num_proposers
        return {
            "experiment": {
                "name": self.settings.name,
                "rules": [self.rule],
                "rounds": num_rounds,
                "seeds": [self.seed],
                "baseline": False,
            },
            "federation": federation,
            "attack": {"name": self.settings.attack},
        }

    def _watched(self, evaluate_fn: EvaluateFunction) -> EvaluateFunction:
        """The user's central evaluation; what it finds is also the round's accuracy."""

        def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
            metrics = evaluate_fn(server_round, arrays)
            self._recorder.evaluated(metrics, central=True)
            return metrics

        return evaluate


def _log_round(report: RoundReport) -> None:
    record = report.record

    def counts(rejected: Mapping[str, int]) -> str:
        return ", ".join(f"{reason} {n}" for reason, n in rejected.items()) or "none"

    LOG.info(
        "aggregate_train: %s; %d proposals accepted, rejected: %s",
        record.outcome,
        report.accepted,
        counts(record.rejected_proposals),
    )
    if record.ballots is not None:
        LOG.info(
            "\t└──> %d of %d ballots valid, rejected: %s; %d proposals in the union-consensus",
            report.ballots,
            len(record.voters),
            counts(record.rejected_ballots),
            len(record.selection or ()),
        )
