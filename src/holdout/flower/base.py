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
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, InitVar, dataclass, fields, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar, Self

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
from flwr.serverapp.strategy import FedAvg
from flwr.serverapp.strategy.strategy_utils import log_strategy_start_info

from holdout.custom_code import Kept
from holdout.errors import ConfigError, InfeasibleError, MisuseError
from holdout.flower.arrays import BUFFERS, Layout
from holdout.flower.committee_sizes import shrink
from holdout.flower.complaints import Complaints, describe, describe_arrays
from holdout.flower.exchange import (
    Again,
    Answers,
    PollingGrid,
    RejectedReply,
    collate,
    exchange,
    log_faults,
)
from holdout.flower.metrics import MetricsFunction, aggregate_metrics, median_metrics
from holdout.flower.open_round import DrawSizes, OpenRound, Verdict, make_record
from holdout.flower.pulling import Allowance
from holdout.flower.recording import Recorder, RoundReport, Seconds, recording
from holdout.flower.roster import Roster, wait_for_nodes
from holdout.flower.run_result import HISTORIES, RunResult
from holdout.flower.saved_runs import SavedRun, load, plain_arguments, to_checkpoint
from holdout.ids import RoundNumber
from holdout.rounds import AdmittedProposals
from holdout.seeds import stream
from holdout.shares import read_share, write_share
from holdout.voting import draw_committee

LOG = logging.getLogger("flwr")

SEED_BITS = 53
"""The size of a seed that nobody chose: unguessable, and exact in any JSON reader."""

CLOCK_ERROR_MAX = 86_400.0
"""Seconds by which a client's clock may be wrong: a message lives that much longer than anybody
waits for its answer. Nodes compare its age with their own clocks, and some of these are set to the
time of another zone."""
QUIET_BITS = 36
"""Random bits in the fraction of a message's lifetime, and so in its id: nobody can name a question
that another node was asked."""
NUM_ROUNDS = 3
"""As many rounds as Flower runs if nobody says how many."""

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
    grace_time: float | None = None
    connect_timeout: float = 300.0
    max_failed_rounds: int = 5
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
        self._init_only = {
            "fraction_train": fraction_train,
            "min_train_nodes": min_train_nodes,
            "train_metrics_aggr_fn": train_metrics_aggr_fn,
            "evaluate_metrics_aggr_fn": evaluate_metrics_aggr_fn,
        }
        self._seed_is_known = self.seed is not None
        self._saved: SavedRun | None = None
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
        self._timeout = math.inf
        self._most_nodes = 0
        self._asked_for = DrawSizes(0, 0)
        self._complaints = Complaints(self.max_failed_rounds)
        self._ends: str | None = None

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

    @classmethod
    def resume(cls, run_folder: Path | str, **arguments: Any) -> Self:
        """The strategy of a run folder, ready to go on: `start` begins after the last round kept.

        Who is drawn for what is as if the run had never stopped, if the same nodes are connected.

        Args:
            run_folder: Where the run was written.
            arguments: Those of the strategy that are to change, such as time limits, and those
                that cannot be written down, such as functions.
        """
        saved = load(Path(run_folder))
        problems = [
            f"{name}: was given to the run and cannot be read from its folder; give it again"
            for name in saved.objects
            if name not in arguments
        ]
        if saved.strategy != cls.__name__:
            problems.append(f"the run is one of {saved.strategy}, not of {cls.__name__}")
        if problems:
            raise ConfigError(problems, where=f"resuming {run_folder}")
        strategy = cls(**{**saved.arguments, **arguments, "run_folder": Path(run_folder)})
        strategy._saved = saved
        return strategy

    def start(  # noqa: PLR0917  (The interface is Flower's.)
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int | None = None,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFunction | None = None,
    ) -> RunResult:
        """Run the federation as `FedAvg` does, but keep what was reached, whatever happens.

        Args:
            grid: Where the nodes are.
            initial_arrays: The model to begin with; not needed by a strategy that resumes.
            num_rounds: The last round, 3 by default; if resumed, as many as the run was to have.
            timeout: Seconds after which each phase ends: waiting for nodes, training, voting,
                evaluation.
            train_config: What nodes get with the model to train.
            evaluate_config: The same for evaluation and votes.
            evaluate_fn: Evaluates the model on the server, before the first and after each round.

        Returns:
            Flower's `Result`, with the last round done and, if there were to be more, a reason. An
            error is raised only as long as there is nothing to lose: before the first round is
            decided.
        """
        saved, self._saved = self._saved, None
        if saved is None and initial_arrays is None:
            raise ConfigError(
                ["initial_arrays: needed, since this strategy resumes no run"], where="start()"
            )
        if timeout_problems("timeout", timeout):
            raise ConfigError(timeout_problems("timeout", timeout), where="start()")
        self._begin()
        self._timeout = timeout
        self._evaluate_config = evaluate_config or ConfigRecord()
        result = RunResult(initial_arrays or ArrayRecord())
        if saved is not None:
            self._go_on_from(saved, result)
        planned = saved.num_rounds if saved is not None else NUM_ROUNDS
        rounds = planned if num_rounds is None else num_rounds
        config = self._config(max(rounds, planned) if saved is not None else rounds)
        with recording(
            self.run_folder, config, self._roster.numbers, resumed=saved is not None
        ) as self._recorder:
            log_strategy_start_info(rounds, result.arrays, train_config, evaluate_config)
            self.summary()
            self._run(
                self._polling(grid, result.arrays),
                result,
                rounds,
                train_config or ConfigRecord(),
                evaluate_fn and self._watched(evaluate_fn),
            )
        # From now on the same draws would come again.
        self._seed_is_known = True
        for line in str(result).splitlines():
            LOG.info("\t%s", line)
        return result

    def _polling(self, grid: Grid, arrays: ArrayRecord) -> PollingGrid:
        timeouts = {
            MessageType.TRAIN: min(self.propose_timeout, self._timeout),
            MessageType.EVALUATE: min(self._evaluate_timeout, self._timeout),
        }
        return PollingGrid(
            grid,
            timeouts,
            f=self._exact_fraction(),
            grace=self.grace_time,
            allowance=Allowance.for_model(arrays),
        )

    def _run(
        self,
        grid: Grid,
        result: RunResult,
        rounds: int,
        train_config: ConfigRecord,
        evaluate_fn: EvaluateFunction | None,
    ) -> None:
        """All rounds that are left, into `result`; a run that fails ends with what it reached."""
        if evaluate_fn is not None and not result.rounds:
            metrics = evaluate_fn(0, result.arrays)
            LOG.info("Initial global evaluation results: %s", metrics)
            if metrics is not None:
                result.evaluate_metrics_serverapp[0] = metrics
        while result.rounds < rounds and not result.reason:
            number = result.rounds + 1
            LOG.info("")
            LOG.info("[ROUND %s/%s]", number, rounds)
            try:
                self._run_round(number, grid, result, train_config, evaluate_fn)
                self._keep(result, rounds)
                result.reason = self._ends or ""
            except Exception as error:
                if not result.rounds:
                    raise
                result.reason = f"{type(error).__name__}: {error}"
                expected = isinstance(error, InfeasibleError)
                LOG.debug("what was raised", exc_info=not expected)
                if result.rounds == number:
                    # It was decided, and failed after that.
                    with suppress(Exception):
                        self._keep(result, rounds)
        if result.reason:
            LOG.error("the run ends after round %d: %s", result.rounds, result.reason)

    def _run_round(
        self,
        number: int,
        grid: Grid,
        result: RunResult,
        train_config: ConfigRecord,
        evaluate_fn: EvaluateFunction | None,
    ) -> None:
        """One round as Flower runs it: training, evaluation by nodes, evaluation by the server."""
        asked = self.configure_train(number, result.arrays, train_config, grid)
        arrays, metrics = self.aggregate_train(
            number, grid.send_and_receive(asked, timeout=self._timeout)
        )
        result.rounds = number
        if arrays is not None:
            result.arrays = arrays
        if metrics is not None:
            LOG.info("\t└──> Aggregated MetricRecord: %s", metrics)
            result.train_metrics_clientapp[number] = metrics
        asked = self.configure_evaluate(number, result.arrays, self._evaluate_config, grid)
        metrics = self.aggregate_evaluate(
            number, grid.send_and_receive(asked, timeout=self._timeout)
        )
        if metrics is not None:
            LOG.info("\t└──> Aggregated MetricRecord: %s", metrics)
            result.evaluate_metrics_clientapp[number] = metrics
        if evaluate_fn is not None:
            metrics = evaluate_fn(number, result.arrays)
            LOG.info("\t└──> MetricRecord: %s", metrics)
            if metrics is not None:
                result.evaluate_metrics_serverapp[number] = metrics

    def _keep(self, result: RunResult, rounds: int) -> None:
        """Write the round's line and, with it, all that the next round depends on."""
        self._recorder.flush()
        folder = self._recorder.folder
        if folder is None:
            return
        names = [field.name for field in fields(self) if field.name != "run_folder"]
        arguments, objects = plain_arguments(
            {**{name: getattr(self, name) for name in names}, **self._init_only}
        )
        saved = SavedRun(
            strategy=type(self).__name__,
            arguments=arguments,
            objects=objects,
            round=result.rounds,
            num_rounds=rounds,
            arrays=result.arrays,
            radius=self._radius,
            rule_state=self._rule_state,
            roster=self._roster.as_dict(),
            most_nodes=self._most_nodes,
            failed_rounds=self._complaints.counts,
            metrics={name: getattr(result, name) for name in HISTORIES},
        )
        folder.save(to_checkpoint(saved), folder.mark())

    def _go_on_from(self, saved: SavedRun, result: RunResult) -> None:
        """Take over what a run folder holds."""
        self._roster = Roster.from_dict(saved.roster)
        self._radius, self._rule_state = saved.radius, saved.rule_state
        self._most_nodes = saved.most_nodes
        self._complaints.counts.update(saved.failed_rounds)
        result.arrays, result.rounds = saved.arrays, saved.round
        for name in HISTORIES:
            getattr(result, name).update(saved.metrics.get(name, {}))
        LOG.info("resuming after round %d", saved.round)

    def summary(self) -> None:
        """Log the rule, the committee and the keys of the records."""
        number = self.num_proposers
        proposers = f"{self.fraction_train:g} of the nodes" if number is None else str(number)
        LOG.info("\t├──> Rule: %s", self.rule)
        LOG.info("\t│\t├── Byzantine share withstood: %s", self.byzantine_fraction)
        LOG.info("\t│\t├── Proposers: %s%s", proposers, self._voters_in_words())
        LOG.info("\t│\t└── Federated evaluation: %g of the nodes", self.fraction_evaluate)
        if self._seed_is_known:
            LOG.info(
                "\t├──> Seed: %d, given: each run with it draws the same committees", self._seed
            )
        LOG.info("\t└──> Keys in records:")
        LOG.info("\t\t├── ArrayRecord key: '%s'", self.arrayrecord_key)
        LOG.info("\t\t└── ConfigRecord key: '%s'", self.configrecord_key)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Draw the committee and ask the proposers, with the plain `train` message."""
        self._recorder.flush()
        self._open = None
        self._ends = None
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
        came = describe(answers.contents)
        use_only_arrays(answers.contents.values(), self.arrayrecord_key)
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
            asked_for=sum(self._asked_for),
        )
        self._recorder.add(report)
        report.log()
        self._complain(open_round, faults, verdict, report, came)
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

        connected = sorted(set(grid.get_node_ids()))
        size = needed(len(connected))
        # Evaluation changes nothing: whoever is there is enough.
        pool = self._roster.eligible(connected, round_number=server_round, needed=size)
        drawn = stream(self._seed, "evaluate", server_round).sample(pool, min(size, len(pool)))
        LOG.info("configure_evaluate: drew %d out of %d nodes", len(drawn), len(connected))
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
            *count_problems("max_failed_rounds", self.max_failed_rounds),
            *timeout_problems("propose_timeout", self.propose_timeout),
            *timeout_problems("connect_timeout", self.connect_timeout),
            *([] if self.grace_time is None else timeout_problems("grace_time", self.grace_time)),
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
        connected = self._gather(grid, server_round)
        pool = self._roster.eligible(connected, round_number=server_round, needed=0)
        sizes = self._sizes_among(len(pool))
        if sizes is None:
            # Only with some of those who were silent.
            pool = self._roster.eligible(
                connected, round_number=server_round, needed=len(connected)
            )
            sizes = self._sizes_among(len(pool))
        if sizes is None:
            raise InfeasibleError(f"round {server_round}: {len(pool)} nodes are too few")
        if sum(sizes) < sum(self._asked_for):
            LOG.warning(
                "round %d: %d proposers and %d voters in place of %d and %d, since %d nodes are "
                "there",
                server_round,
                *sizes,
                *self._asked_for,
                len(pool),
            )
        return pool, sizes

    def _gather(self, grid: Grid, server_round: int) -> Sequence[int]:
        """The connected nodes, once there are enough: all at first, later as many as must be."""
        timeout = min(self.connect_timeout, self._timeout)

        def needed(connected: int) -> int:
            return max(sum(self._sizes(connected)), self.min_available_nodes)

        def least(connected: int) -> int:
            if self._sizes_among(connected) is not None:
                return self.min_available_nodes
            return connected + 1

        what = f"round {server_round}"
        if not self._most_nodes:
            with suppress(InfeasibleError):
                wait_for_nodes(grid.get_node_ids, needed, timeout=timeout, what=what)
                timeout = 0.0
            nodes = list(grid.get_node_ids())
            if least(len(nodes)) <= len(nodes):
                timeout = 0.0
        connected = wait_for_nodes(grid.get_node_ids, least, timeout=timeout, what=what)
        self._most_nodes = max(self._most_nodes, len(connected))
        return connected

    def _sizes_among(self, nodes: int) -> DrawSizes | None:
        """How many propose and vote if so many nodes can be drawn; None if they are too few."""
        asked = self._sizes(max(nodes, self._most_nodes))
        if sum(asked) <= nodes:
            # As many as the strategy wants of those who are there.
            asked = self._sizes(nodes)
        self._asked_for = asked
        sizes = shrink(
            asked,
            nodes=nodes,
            most=self._most_nodes,
            f=self._exact_fraction(),
            least=self._least_sizes(asked),
        )
        if sizes is None or sizes == asked or self._can_work(sizes):
            return sizes
        return None

    def _least_sizes(self, asked: DrawSizes) -> DrawSizes:
        """The smallest committee to which a round may shrink."""
        return DrawSizes(min(asked.proposers, self.min_train_nodes), min(asked.voters, 1))

    def _can_work(self, sizes: DrawSizes) -> bool:  # noqa: ARG002  (Subclasses look.)
        """Whether the rule can work with a committee of this size."""
        return True

    def _exchange(
        self,
        grid: Grid,
        messages: Iterable[Message],
        *,
        count: int,
        timeout: float,
        again: Again | None = None,
    ) -> list[Message]:
        """Ask so many nodes, and wait no longer than `start` allows."""
        limit = min(timeout, self._timeout)
        if isinstance(grid, PollingGrid):
            return grid.exchange(messages, count=count, timeout=limit, again=again)
        return exchange(grid, messages, timeout=limit, again=again)

    def _complain(
        self,
        open_round: OpenRound,
        faults: Sequence[RejectedReply],
        verdict: Verdict,
        report: RoundReport,
        came: Mapping[int, str],
    ) -> None:
        """Say so if nothing could be used, again; `_ends` tells why the run must end, if so."""
        model = describe_arrays(open_round.arrays)
        ends = self._complaints.note(
            "proposal",
            faults,
            accepted=report.accepted,
            expected=f"one ArrayRecord, such as {self.arrayrecord_key!r}, with {model}",
            came=came,
        )
        if report.accepted:
            ends = self._complaints.note(
                "ballot",
                verdict.ballot_faults,
                accepted=report.ballots,
                expected=self._expected_ballot(),
                came={},
            )
        self._ends = ends

    def _expected_ballot(self) -> str:
        """What a voter should have sent."""
        return "a ballot"

    def _proposers_among(self, connected: int) -> int:
        """How many nodes propose, by `num_proposers` or in `FedAvg`'s way."""
        if self.num_proposers is not None:
            return self.num_proposers
        return max(int(connected * self.fraction_train), self.min_train_nodes)

    def _ask(self, record: RecordDict, node: int, message_type: str, server_round: int) -> Message:
        training = message_type == MessageType.TRAIN
        timeout = self.propose_timeout if training else self._evaluate_timeout
        return Message(
            record,
            dst_node_id=node,
            message_type=message_type,
            group_id=str(server_round),
            ttl=timeout + CLOCK_ERROR_MAX + secrets.randbits(QUIET_BITS) / 2**QUIET_BITS,
        )

    def _collate(
        self, asked: Sequence[Metadata], replies: Iterable[object], server_round: int
    ) -> Answers:
        """Match the replies to what was asked, and note who was silent."""
        answers = collate(asked, replies)
        for question in asked:
            node, kind = question.dst_node_id, question.message_type
            if node in answers.silent:
                self._roster.silent(node, kind, round_number=server_round)
            else:
                self._roster.heard(node, kind)
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


def use_only_arrays(contents: Iterable[RecordDict], key: str) -> None:
    """Give an ArrayRecord of another name the usual one, where it is the only one of a reply."""
    for content in contents:
        names = list(content.array_records)
        if len(names) == 1 and key not in content:
            content[key] = content.array_records[names[0]]
            del content[names[0]]


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
