"""A run from its first round to its last: it keeps what was reached, and can stop and go on.

`LongRun` is the part of our strategies that has nothing to do with votes: Flower's `start`, written
so that no error takes a trained model away, with a checkpoint after each round.
"""

import logging
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import Any, Self

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from flwr.serverapp.strategy.strategy_utils import log_strategy_start_info

from holdout.custom_code import Kept
from holdout.errors import ConfigError, InfeasibleError, MisuseError
from holdout.flower.arguments import start_problems
from holdout.flower.complaints import Complaints
from holdout.flower.drawing import NodeDraws
from holdout.flower.exchange import Again, PollingGrid, exchange
from holdout.flower.pulling import ReplyAllowance
from holdout.flower.recording import Recorder, recording
from holdout.flower.roster import Roster
from holdout.flower.run_result import HISTORIES, RunResult
from holdout.flower.saved_runs import SavedRun, load, plain_arguments, to_checkpoint
from holdout.shares import write_share

LOG = logging.getLogger("flwr")

NUM_ROUNDS = 3
"""As many rounds as Flower runs if nobody says how many."""

EvaluateFunction = Callable[[int, ArrayRecord], MetricRecord | None]


class LongRun(FedAvg):
    """`FedAvg` whose runs end with what they reached, and go on from a run folder."""

    rule: str
    num_proposers: int | None
    propose_timeout: float
    grace_time: float | None
    nodes_at_once: int | None
    run_folder: Path | str | None
    name: str
    attack: str
    _saved: SavedRun | None
    """Where to go on from."""
    _seed: int
    _seed_is_known: bool
    _timeout: float
    _planned: int
    """How many rounds the run is to have in the end."""
    _evaluate_config: ConfigRecord
    _ends: str | None
    """Why the run must end after this round."""
    # What one round leaves for the next.
    _recorder: Recorder
    _roster: Roster
    _draws: NodeDraws
    _radius: float | None
    _rule_state: Kept
    _complaints: Complaints

    @abstractmethod
    def _begin(self) -> None:
        """Forget what an earlier run left."""

    @property
    @abstractmethod
    def _evaluate_timeout(self) -> float:
        """Seconds that nodes have to evaluate or to vote."""

    @abstractmethod
    def _arguments(self) -> dict[str, Any]:
        """The arguments of the strategy, by name, except for the run folder."""

    @abstractmethod
    def _exact_fraction(self) -> Fraction:
        """The assumed Byzantine share f."""

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
        problems = start_problems(
            grid=grid,
            initial_arrays=initial_arrays,
            num_rounds=num_rounds,
            timeout=timeout,
            configs={"train_config": train_config, "evaluate_config": evaluate_config},
            evaluate_fn=evaluate_fn,
        )
        if self._saved is None and initial_arrays is None:
            problems.append("initial_arrays: needed, since this strategy resumes no run")
        if problems:
            raise ConfigError(problems, where="start()")
        saved, self._saved = self._saved, None
        self._begin()
        self._timeout = timeout
        self._evaluate_config = evaluate_config or ConfigRecord()
        result = RunResult(initial_arrays or ArrayRecord())
        if saved is not None:
            if initial_arrays is not None:
                LOG.warning("initial_arrays are not used: the run goes on with its own model")
            self._go_on_from(saved, result)
        usual = saved.num_rounds if saved is not None else NUM_ROUNDS
        rounds = usual if num_rounds is None else num_rounds
        # A run that stops earlier than planned can still be resumed to its planned end.
        self._planned = max(rounds, saved.num_rounds) if saved is not None else rounds
        config = self._config(self._planned)
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
            at_once=self.nodes_at_once,
            allowance=ReplyAllowance.for_model(arrays),
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
                self._keep(result)
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
                        self._keep(result)
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

    def _keep(self, result: RunResult) -> None:
        """Write the round's line and, with it, all that the next round depends on."""
        self._recorder.flush()
        folder = self._recorder.folder
        if folder is None:
            return
        arguments, objects = plain_arguments(self._arguments())
        saved = SavedRun(
            strategy=type(self).__name__,
            arguments=arguments,
            objects=objects,
            round=result.rounds,
            num_rounds=self._planned,
            arrays=result.arrays,
            radius=self._radius,
            rule_state=self._rule_state,
            roster=self._roster.as_dict(),
            most_nodes=self._draws.most_nodes,
            failed_rounds=self._complaints.counts,
            metrics={name: getattr(result, name) for name in HISTORIES},
        )
        folder.save(to_checkpoint(saved), folder.mark())

    def _go_on_from(self, saved: SavedRun, result: RunResult) -> None:
        """Take over what a run folder holds."""
        self._roster = Roster.from_dict(saved.roster)
        self._radius, self._rule_state = saved.radius, saved.rule_state
        self._draws.roster = self._roster
        self._draws.most_nodes = saved.most_nodes
        self._complaints.counts.update(saved.failed_rounds)
        result.arrays, result.rounds = saved.arrays, saved.round
        for name in HISTORIES:
            getattr(result, name).update(saved.metrics.get(name, {}))
        LOG.info("resuming after round %d", saved.round)

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
        return exchange(grid, messages, timeout=limit, at_once=self.nodes_at_once, again=again)

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
            if not isinstance(metrics, Mapping | None):
                raise MisuseError(
                    "evaluate_fn (the server's evaluation) must return a MetricRecord or None; "
                    f"got <{type(metrics).__name__}>"
                )
            self._recorder.evaluated(metrics, central=True)
            return metrics

        return evaluate
