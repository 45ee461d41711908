"""HoldOut SGD without a server: one round of training over a simulated network (Algorithm 3).

`run_round` does what its namesake in `central` does, on a cluster in which every worker is a full
player with its own keys. A round is played in a cluster of its own: every worker goes on from what
is on its disk (the chain so far and the newest model), and the round is over when all honest
workers have committed it. So a state holds all that the next round needs, and a run can stop and go
on after any round.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any

import numpy.typing as npt

from holdout.agreement import aggregate
from holdout.agreement.blocks import read_block
from holdout.agreement.draws import Draws
from holdout.agreement.events import BlobKind, Commit
from holdout.agreement.headers import Ledger, Tip, read_header
from holdout.agreement.keys import SimulatedKeys
from holdout.agreement.messages import Finished
from holdout.agreement.params import MILLISECOND, Genesis, Params, Timing
from holdout.agreement.safety import Safety
from holdout.agreement.sortition import Role
from holdout.custom_code import ask_each, attempt, guard, takes, untouched
from holdout.errors import MisuseError
from holdout.federation.central import evaluate_round, last_honest
from holdout.federation.chain_record import (
    CHAIN,
    ChainState,
    Played,
    chain_fault,
    read_chain,
    record_of,
)
from holdout.federation.cluster_learning import RoundLearning, from_payload, to_payload
from holdout.federation.network_sizes import params_of
from holdout.federation.round_setup import PROPOSE, Curve, Federation, RoundSetup, State
from holdout.ids import Digest, RoundNumber, WorkerId
from holdout.learning.vector import norm
from holdout.rounds import RoundRecord, admit_proposals, with_dissimilarity
from holdout.seeds import stream
from holdout.simulator.adversaries import Liar
from holdout.simulator.adversaries_agreement import corrupt
from holdout.simulator.cluster import Cluster, Durations, Watcher, found
from holdout.simulator.network import BYTES_PER_MICROSECOND
from holdout.simulator.nodes import SimulatedNode
from holdout.tracebacks import Failure
from holdout.voting import Committee
from holdout.workers import Worker, is_plain, propose_together

HOUR = 3_600_000 * MILLISECOND
"""An hour of virtual time: more than enough for any round, however many periods fail."""

EQUIVOCATION = ("Z2", "Z3", "Z4", "Z13")
"""Two updates, two ballots, votes for everything, two blocks."""


def run_round(federation: Federation, curve: Curve, state: State) -> tuple[RoundRecord, State]:
    """One round: draw lots, propose, vote, agree on a block, record."""
    started = time.perf_counter()
    network = network_of(federation, curve.rule)
    chain = state.chain if isinstance(state, ChainState) else ()
    model = to_payload(state.weights)
    ledger = Ledger(network.genesis)
    for item in chain:
        ledger.append(read_header(item.header))
    tip = ledger.tip()
    setup = _draw_lots(federation, curve, state, network, tip)
    learning = RoundLearning(setup, network.params)
    # What was raised before round 1 is told with it.
    learning.failures.extend(() if chain else network.failures)
    played = _play(network, setup, learning, chain, model)
    next_state = _next_state(setup, learning, played, chain, network.params)
    record, ended = evaluate_round(
        federation, record_of(setup, learning, played, network.params), next_state
    )
    record = with_dissimilarity(record, list(learning.honest.values()))
    return replace(record, seconds=round(time.perf_counter() - started, 6)), ended


# ------------------------------------------------------------------------------------ the founding


@dataclass(frozen=True, slots=True, eq=False)
class FoundedNetwork:
    """The network of a federation: the same in every round."""

    params: Params
    genesis: Genesis
    first_model: bytes
    seed: int
    failures: Sequence[Failure] = ()
    """What custom code raised when workers were asked for the first radius."""

    def keys(self) -> SimulatedKeys:
        """The workers' keys, with a verifier that remembers nothing yet."""
        return SimulatedKeys(self.seed, self.params.workers)

    @property
    def timing(self) -> Timing:
        """Waits long enough for gradients of this size."""
        blob = self.params.payload_bytes // BYTES_PER_MICROSECOND
        usual = Timing()
        return replace(
            usual,
            propose=usual.propose + 2 * blob,
            fetch=usual.fetch + blob,
            validate=usual.validate + blob,
        )


@lru_cache(maxsize=1)
def network_of(federation: Federation, rule: str) -> FoundedNetwork:
    """Found the network: roster, constants, first model, first radius."""
    config, seed = federation.config, federation.seed
    shapes = [tuple(parameter.shape) for parameter in federation.model.parameters()]
    first = to_payload(federation.initial_weights)
    failures: list[Failure] = []
    params = params_of(
        config,
        rule,
        shapes=shapes,
        model_first=aggregate.model_digest(shapes, first),
        radius_first=_first_radius(federation, failures),
    )
    genesis = found(params, SimulatedKeys(seed, params.workers), seed)
    return FoundedNetwork(params, genesis, first, seed, failures)


def _first_radius(federation: Federation, failures: list[Failure]) -> float:
    """r_1: the median norm of what workers would send on w_1, as they report it before round 1.

    Without it the first round would have no bound, and one function-preserving rescaling accepted
    there ruins the model. Liars are assumed to report the largest norm there is.
    """
    everybody = enumerate(federation.workers)
    honest = [worker for place, worker in everybody if place not in federation.byzantine]
    weights = federation.initial_weights
    config, before = federation.config, RoundNumber(0)
    rate = federation.rate(1)
    together = ask_each(
        lambda some: guard(
            "a worker's model or data",
            lambda: propose_together(some, weights, round_number=before, learning_rate=rate),
        ),
        [worker for worker in honest if is_plain(worker)],
        kind=PROPOSE,
        who=lambda worker: (
            f"worker {worker.worker_id}, asked for the length of its update before round 1: "
        ),
        failures=failures,
    )

    def ask(worker: Worker) -> object:
        asked = partial(worker.propose, weights.clone(), round_number=before, learning_rate=rate)
        with untouched("a custom worker", federation.pool, worker):
            return attempt(
                partial(asked, state={}) if takes(asked, "state") else asked,
                kind=PROPOSE,
                owner="a worker, asked for the length of its update before round 1,",
                failures=failures,
                code=asked,
            )

    alone = [ask(worker) for worker in honest if not is_plain(worker)]
    gradients = admit_proposals([*together, *alone], dimension=len(weights)).valid
    sent = 1 - config.training.worker_momentum
    reported = sorted(sent * norm(gradient) for gradient in gradients.values())
    middle = (len(federation.workers) + 1) // 2 - 1
    return reported[middle] if middle < len(reported) else 0.0


# ---------------------------------------------------------------------------------------- the round


def _draw_lots(
    federation: Federation, curve: Curve, state: State, network: FoundedNetwork, tip: Tip
) -> RoundSetup:
    """This round with the lots that workers draw; the radius and the rate are the chain's."""
    keys = network.keys()
    draws = Draws(network.genesis, keys.verifier(), round_number=tip.round, seed=tip.seed_in)
    proposers, voters = (
        tuple(
            WorkerId(worker)
            for worker in range(network.params.workers)
            if draws.own_proof(keys.signer(worker), role, worker) is not None
        )
        for role in (Role.PROPOSER, Role.VOTER)
    )
    agreed = State(
        round=state.round,
        weights=from_payload(to_payload(state.weights)),
        radius=tip.radius or None,
        last_honest=state.last_honest,
        worker_states=state.worker_states,
    )
    setup = RoundSetup(
        federation,
        curve,
        agreed,
        Committee(proposers, voters),
        learning_rate=network.params.rate(tip.steps + 1),
    )
    # In a round without a lie nobody signs two versions either.
    return replace(setup, apart=_equivocating(federation, tip.round)) if setup.lie_share else setup


def _equivocating(federation: Federation, number: int) -> frozenset[WorkerId]:
    """The liars that sign two versions in this round: half of them, drawn afresh.

    Not all of them: whoever is caught is out of the round, and somebody must be left to lie.
    """
    if not federation.config.attack.equivocate:
        return frozenset()
    liars = sorted(federation.byzantine)
    return frozenset(stream(federation.seed, "equivocate", number).sample(liars, len(liars) // 2))


@dataclass(slots=True)
class _Committed(Watcher):
    """Counts the honest workers that have decided the round."""

    number: int
    workers: dict[int, None] = field(default_factory=dict)

    def committed(self, node: SimulatedNode, commit: Commit) -> None:
        """Note that a worker has decided the round."""
        if commit.round == self.number:
            self.workers[node.index] = None


def _play(
    network: FoundedNetwork,
    setup: RoundSetup,
    learning: RoundLearning,
    chain: Sequence[Finished],
    model: bytes,
) -> Played:
    """Let the workers agree on this round."""
    number, genesis = learning.number, network.genesis
    watcher = _Committed(number)
    cluster = Cluster(
        genesis,
        network.keys(),
        stream(setup.federation.seed, "round", number).generator_seed(),
        learners=learning,
        first_model=network.first_model,
        timing=network.timing,
        # Long enough that nobody begins the next round before all have finished this one.
        durations=Durations(propose=1_000 * MILLISECOND),
        watcher=watcher,
    )
    safety = Safety(round=number).encode(genesis.chain)
    digest = _digest(network.params, model)
    for node in cluster.nodes:
        node.disk.safety = safety
        node.disk.finished = list(chain)
        node.disk.blobs = {digest: (BlobKind.MODEL, model)}
    liars = sorted(setup.byzantine)
    for liar in liars:
        cluster.nodes[liar].behaviour = Liar(cluster.nodes[liar], liars)
    corrupt(cluster, [(liar, EQUIVOCATION) for liar in sorted(setup.apart)])
    honest = cluster.honest()
    cluster.start()
    if not cluster.run(until=HOUR, done=lambda _: len(watcher.workers) == len(honest)):
        raise MisuseError(f"round {number} was not decided within an hour of virtual time")
    return _outcome(cluster, honest, number)


def _outcome(cluster: Cluster, honest: Sequence[SimulatedNode], number: int) -> Played:
    """The decision, once it is known to be the same everywhere."""
    commits = [node.commits[number] for node in honest]
    models = {node.memory.get(commit.model) for node, commit in zip(honest, commits, strict=True)}
    if len({(commit.value, commit.model) for commit in commits}) > 1 or len(models) > 1:
        raise MisuseError(f"honest workers ended round {number} with different models")
    commit, model = commits[0], models.pop()
    if model is None or _digest(cluster.genesis.params, model) != commit.model:
        raise MisuseError(f"the model of round {number} is not the one agreed on")
    # Whoever caught up by the certificate alone need not hold the block's body.
    body = next(data for node in honest if (data := node.memory.get(commit.value)) is not None)
    finished = next(
        item for item in honest[0].disk.finished if read_header(item.header).round == number
    )
    return Played(cluster, honest, finished, read_block(body), model)


def _digest(params: Params, model: bytes) -> Digest:
    return aggregate.model_digest(params.shapes, model)


def _next_state(
    setup: RoundSetup,
    learning: RoundLearning,
    played: Played,
    chain: Sequence[Finished],
    params: Params,
) -> ChainState:
    # What `Player` asks for: the seeds look back, and old blocks refresh them.
    kept = 2 * params.lookback * params.refresh
    return ChainState(
        round=setup.number,
        weights=from_payload(played.model),
        radius=played.block.header.radius or None,
        last_honest=last_honest(setup, learning.honest),
        worker_states={**setup.state.worker_states, **learning.worker_states},
        chain=(*chain, played.finished)[-kept:],
    )


# --------------------------------------------------------------------------------------- resuming


def resumed(arrays: Mapping[str, npt.NDArray[Any]], state: State) -> State:
    """The state of a checkpoint, with its chain if it has one; ValueError if that is damaged."""
    if CHAIN not in arrays:
        return state
    fields = {name: getattr(state, name) for name in State.__dataclass_fields__}
    return ChainState(**fields, chain=read_chain(arrays))


def misfit(federation: Federation, rule: str, state: State) -> str | None:
    """Why a round cannot go on from this state; None if it can."""
    if not isinstance(state, ChainState):
        return "the chain is missing"
    network = network_of(federation, rule)
    model = _digest(network.params, to_payload(state.weights))
    return chain_fault(state, chain=network.genesis.chain, model=model)
