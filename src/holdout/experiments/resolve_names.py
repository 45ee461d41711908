"""What a config names, looked up: rules, attacks, models and data sets, built in or the user's."""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from fractions import Fraction
from functools import partial
from typing import Any, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from holdout import device
from holdout.attacks import (
    ATTACKS,
    BALLOT_ATTACKS,
    MESSAGE_ATTACKS,
    REPORT_ATTACKS,
    Attack,
    BallotAttack,
    MessageAttack,
    ReportAttack,
)
from holdout.config import Config, Parsed
from holdout.curve_rows import NO_ATTACK
from holdout.data.datasets import NAMES
from holdout.dotted import resolve
from holdout.errors import DottedNameError, InfeasibleError, PluginError, UserError
from holdout.experiments.plugins import Plugins
from holdout.experiments.rule_parameters import RuleParameters
from holdout.federation.round_setup import Curve
from holdout.learning.models import MODELS, ModelFactory
from holdout.learning.schedules import rates_of
from holdout.rules import PRE_AGGREGATIONS, RULES, PreAggregation, Rule, compose
from holdout.rules.rule import PreFunction, custom_rule
from holdout.shares import write_share
from holdout.tracebacks import RAISED, is_custom, summary_of, with_place
from holdout.voting import VOTES, Gate, Quorum, Terms, tolerated_count
from holdout.workers import HonestWorker, Worker

PLUS = "+"
"""Between the parts of a composed rule, as in "nnm+krum"."""
NEED_PATH = ("idx", "npz")
TRAINING_ROWS = {"mnist": 60_000, "cifar10": 50_000, "mnist-5k": 4_000}


def terms_of(config: Config, rule: str) -> Terms:
    """The terms of the vote that a rule's name stands for."""
    terms = VOTES[rule].terms(config.federation.f)
    if VOTES[rule].is_fixed:
        # Without a server the bound is part of the chain, whatever the ballots look like.
        return replace(terms, bound=terms.bound or is_decentralized(config, rule))
    first_order = config.vote.scoring == "first-order"
    if terms.is_joint:
        if config.federation.mode != "decentralized":
            vote = config.vote
            return replace(terms, screen=vote.screen, memory=vote.memory)
        # Without a server ballots are small signed messages, which name proposals. Judged to first
        # order they cost a voter one gradient, as joint ballots do.
        terms, first_order = Terms(terms.f), True
    return replace(
        terms,
        gate=Gate(config.vote.gate),
        quorum_kind=Quorum(config.vote.quorum),
        bound=config.vote.bound,
        first_order=first_order,
    )


def notes_on_vote(config: Config) -> list[str]:
    """What to say of each key of `[vote]` that was changed and does nothing with these rules."""
    # How many samples must fit the shards, so it is set whatever the rules are.
    keys = [key for key in type(config.vote).model_fields if key != "samples"]
    default = type(config.vote)()
    notes = []
    for key in keys:
        value = getattr(config.vote, key)
        if value == getattr(default, key):
            continue
        usual = config.vote.model_copy(update={key: getattr(default, key)})
        without = config.model_copy(update={"vote": usual})
        heeding = [rule for rule in VOTES if terms_of(config, rule) != terms_of(without, rule)]
        if not set(heeding).intersection(config.experiment.rules):
            rules = [rule for rule in heeding if not VOTES[rule].has_server]
            whom = f"it is for {', '.join(rules)}" if rules else "no vote of this mode has it"
            shown = str(value).lower() if isinstance(value, bool) else repr(value)
            notes.append(f"vote.{key} = {shown} does nothing here: {whom}")
    return notes


def is_decentralized(config: Config, rule: str) -> bool:
    """Whether the rule is run without a server; the unattacked mean never is."""
    serverless = rule in VOTES and not VOTES[rule].has_server
    return config.federation.mode == "decentralized" and serverless


class Lookups:
    """Look-ups that collect problems instead of raising them."""

    def __init__(self, parsed: Parsed, plugins: Plugins) -> None:
        self.config = parsed.config
        self.wrong = parsed.wrong
        self.plugins = plugins
        self.problems: list[str] = []
        self.rates: Sequence[float] = ()
        """The learning rates of the rounds, as far as they change."""
        self.misfits: list[str] = []
        """Those of the problems that lie in how values go together."""
        self.parameters = RuleParameters(self.config.rules.tables, self.problems)

    def check_custom_names(self) -> None:
        """Refuse names with which the results of two rules could not be told apart."""
        custom = self.plugins.rules
        self.problems.extend(
            f"custom rule {name!r}: the name is taken by a built-in rule"
            for name in custom
            if name in RULES or name in VOTES
        )
        self.problems.extend(
            f"custom rule {name!r}: a name must not contain {PLUS!r}, which composes rules"
            for name in custom
            if PLUS in name
        )
        listed = self.config.experiment.rules
        used = {rule.rpartition(PLUS)[2] for rule in listed}
        self.problems.extend(
            f"custom rule {name!r}: experiment.rules must list it; got {listed}"
            for name in custom
            if name not in used and "experiment.rules" not in self.wrong
        )
        if "experiment.rules" not in self.wrong:
            self.parameters.check_names(listed, list(VOTES))
        if self.plugins.attack is not None and self.config.attack.name == NO_ATTACK:
            self.problems.append(f"custom attack {NO_ATTACK!r}: the name means that nobody lies")

    def curves(self) -> list[tuple[Curve, int]]:
        """Each rule under the attack, and the upper bound, with its seed."""
        experiment = self.config.experiment
        act, ballot_attacks = self._attack(), self._ballot_attacks()
        lie = self.config.attack.name if act is not None else NO_ATTACK
        curves = [
            Curve(rule, method, lie, act, *ballot_attacks)
            for rule in experiment.rules
            if (method := self._method(rule)) is not None
        ]
        upper = Curve("mean", RULES["mean"], NO_ATTACK, None, BALLOT_ATTACKS["honest"])
        if experiment.baseline and not any(
            (c.rule, c.attack) == ("mean", lie) and act is None for c in curves
        ):
            curves.insert(0, upper)
        return [(curve, seed) for seed in experiment.seeds for curve in curves]

    def factory(self) -> ModelFactory:
        """What makes the model."""
        name = self.config.model.name
        if self.plugins.model is not None:
            return self.plugins.model
        return self._look_up("model.name", name, MODELS) or MODELS["mlp"]

    def worker(self) -> Callable[[HonestWorker], Worker] | None:
        """What makes the honest workers, if they are custom."""
        name = self.config.federation.worker
        if self.plugins.worker is not None or name is None:
            return self.plugins.worker
        found: Callable[[HonestWorker], Worker] | None = self._resolve("federation.worker", name)
        return found

    def data_name(self) -> None:
        """Check that the data set exists, and is large enough."""
        name, known = self.config.data.name, dict.fromkeys(NAMES)
        if self.plugins.data is None:
            if ":" in name:
                self._resolve("data.name", name)
            elif name not in known:
                self._unknown("data.name", name, known)
            elif name in NEED_PATH and not self.config.data.path and "data.path" not in self.wrong:
                self.problems.append(f"data.name = {name!r}: data.path must say where the data is")
        rows, limit = self.config.data.samples_per_worker, TRAINING_ROWS.get(name)
        given = "samples_per_worker" in self.config.data.model_fields_set
        if self.plugins.data is None and given and limit is not None and rows > limit:
            self.problems.append(
                f"data.samples_per_worker = {rows}: must be at most the {limit} training rows of "
                f"{name}"
            )

    def custom_settings(self) -> None:
        """Check the device, and what `data` and `training` name as "package.module:name"."""
        config = self.config
        for key, name in (
            ("data.partition", config.data.partition),
            ("data.augment", config.data.augment),
            ("training.loss", config.training.loss),
        ):
            if name is not None and ":" in name and key not in self.wrong:
                self._resolve(key, name)
        schedule = config.training.schedule
        if ":" not in schedule or self._resolve("training.schedule", schedule) is not None:
            self._check_rates()
        device_name = config.experiment.device
        if (fault := device.fault(device_name)) is not None:
            self.problems.append(f"experiment.device = {device_name!r}: {fault}")

    def _check_rates(self) -> None:
        """Every round's rate must be a step: what a schedule gives too late is found now."""
        training, rounds = self.config.training, self.config.experiment.rounds
        try:
            rates = rates_of(training, rounds=rounds)
        except PluginError as error:
            self.problems.append(f"training.schedule = {training.schedule!r}: {error}")
            return
        self.rates = rates
        # A factor to the power of many milestones may leave the range of floats.
        wrong = next((t for t, rate in enumerate(rates, start=1) if not 0 < rate < math.inf), None)
        if wrong is not None:
            self.problems.append(
                f"training.schedule = {training.schedule!r}: the rate must stay finite and above "
                f"0; it is {rates[wrong - 1]} in round {wrong}"
            )

    def _method(self, rule: str) -> Rule | Terms | None:
        decentralized = self.config.federation.mode == "decentralized"
        if rule in VOTES and (decentralized or not VOTES[rule].has_server):
            return terms_of(self.config, rule)
        if decentralized:
            self._no_server(rule)
            return None
        *front, last = rule.split(PLUS)
        found = self._rule(rule, last)
        for name in reversed(front):
            pre = None if found is None else self._pre_aggregation(rule, name)
            found = None if pre is None or found is None else compose(self._bind(name, pre), found)
        if found is not None and found.needs_root:
            self._check_root(rule)
        if found is not None and last in RULES:
            self._check_feasible(rule, found)
        return found

    def _rule(self, rule: str, name: str) -> Rule | None:
        """The rule at the end of a composed name."""
        if name in self.plugins.rules:
            return custom_rule(self._bind(name, self.plugins.rules[name]), name)
        key, votes = "experiment.rules", _votes(has_server=False)
        if name in VOTES and name != rule and key not in self.wrong:
            self.problems.append(
                f"{key} = {rule!r}: {name!r} is a vote, and only a rule can stand behind a "
                "pre-aggregation"
            )
            return None
        if name in PRE_AGGREGATIONS and key not in self.wrong:
            self.problems.append(
                f"{key} = {rule!r}: {name!r} is a pre-aggregation, and a rule must stand behind "
                f"it, as in '{name}{PLUS}krum'"
            )
            return None
        also = votes if name == rule else ()
        found = self._look_up(key, name, RULES, also=also, written=rule)
        if found is None:
            return None
        bound = self._bind(name, found)
        return bound if name in RULES else custom_rule(bound, name)

    def _bind(self, name: str, part: Any) -> Any:
        """A part of a rule with the parameters that the config gives it."""
        return self.parameters.bind(name, part)

    def _pre_aggregation(self, rule: str, name: str) -> PreAggregation | PreFunction | None:
        key, known = "experiment.rules", PRE_AGGREGATIONS
        if ":" not in name and name not in known and key not in self.wrong:
            self.problems.append(
                f"{key} = {rule!r}: {name!r} is not a pre-aggregation; there are "
                f"{', '.join(known)} "
                'or "package.module:name"'
            )
            return None
        found: PreAggregation | PreFunction | None = self._look_up(key, name, known, written=rule)
        return found

    def _no_server(self, rule: str) -> None:
        if "experiment.rules" not in self.wrong:
            self._misfit(
                f"experiment.rules = {rule!r}: must be a vote in federation.mode = "
                f"'decentralized'; there are {', '.join(_votes(has_server=False))} and, with a "
                f"server for comparison, {', '.join(_votes(has_server=True))}"
            )

    def _check_root(self, rule: str) -> None:
        if not self.config.data.root_samples and "data.root_samples" not in self.wrong:
            self.problems.append(
                f"experiment.rules = {rule!r}: asks the server's own rows; data.root_samples must "
                "say how many it has, such as 100"
            )

    def _check_feasible(self, rule: str, function: Rule) -> None:
        involved = ("proposers", "assumed_byzantine", "workers")
        if self.wrong.intersection({"federation", *(f"federation.{key}" for key in involved)}):
            return
        n, f = self.config.federation.proposers, self.config.federation.f
        if f >= Fraction(1, 2):  # Refused already, whatever the rule.
            return
        # Custom code is not run for this: nobody knows what it does with updates of one number.
        known = tuple(pre for pre in function.pre if not is_custom(pre.function))
        try:
            replace(function, pre=known).check_feasible(rule, n=n, f=tolerated_count(n, f))
        except InfeasibleError as error:
            self._misfit(
                f"experiment.rules = {rule!r}: infeasible with federation.proposers = {n} and "
                f"federation.assumed_byzantine = {write_share(f)}: {error}"
            )
        except UserError as error:
            self.problems.append(f"experiment.rules = {rule!r}: {error}")

    def _misfit(self, problem: str) -> None:
        self.problems.append(problem)
        self.misfits.append(problem)

    def _attack(self) -> Attack | None:
        settings = self.config.attack
        if self.plugins.attack is not None:
            self._no_parameters(settings.parameters)
            return self.plugins.attack
        if settings.name == NO_ATTACK:
            self._no_parameters(settings.parameters)
            return None
        kind = self._look_up("attack.name", settings.name, ATTACKS, also=(NO_ATTACK,))
        if kind is None:
            return None
        common = {
            "gamma": settings.gamma,
            "gamma_max": settings.gamma_max,
            "direction": settings.direction,
        }
        if settings.name in ATTACKS:
            return self._built_in_attack(kind, common, settings.parameters)
        return self._custom_attack(kind, common, settings.parameters)

    def _built_in_attack(
        self, kind: Callable[..., Attack], common: Mapping[str, Any], extra: Mapping[str, Any]
    ) -> Attack | None:
        fields = get_type_hints(kind)
        self._no_parameters({k: v for k, v in extra.items() if k not in fields}, known=fields)
        given = {k: v for k, v in {**common, **extra}.items() if k in fields}
        before = len(self.problems)
        for key, value in given.items():
            try:
                TypeAdapter(fields[key], config=ConfigDict(strict=True)).validate_python(value)
            except ValidationError as error:
                message = error.errors()[0]["msg"].replace("Input should", "must")
                self.problems.append(f"attack.{key} = {value!r}: {message}")
        return kind(**given) if len(self.problems) == before else None

    def _custom_attack(
        self, kind: Callable[..., Any], common: Mapping[str, Any], extra: Mapping[str, Any]
    ) -> Attack | None:
        """A class is called with its parameters now; a function with them and the view later."""
        try:
            fields = dict(inspect.signature(kind).parameters)
        except ValueError:  # Some built-in types have no signature.
            fields = {}
        if fields and not isinstance(kind, type):
            del fields[next(iter(fields))]  # The view, which the run hands over.
        self._no_parameters({k: v for k, v in extra.items() if k not in fields}, known=fields)
        given = {k: v for k, v in {**common, **extra}.items() if k in fields}
        if not isinstance(kind, type):
            return partial(kind, **given) if given else kind
        made: Attack | None = self._made("attack.name", self.config.attack.name, kind, given)
        return made

    def _made(self, key: str, name: str, kind: type, given: Mapping[str, Any]) -> Any:
        """An object of a custom class, which must be callable with a view."""
        try:
            made = kind(**given)
        except RAISED as error:
            self.problems.append(with_place(f"{key} = {name!r}: {summary_of(error)}", error, kind))
            return None
        if not callable(made):
            self.problems.append(f"{key} = {name!r}: an attack must be callable with a View")
            return None
        return made

    def _ballot_attacks(self) -> tuple[BallotAttack, MessageAttack, ReportAttack]:
        """How liars vote: by names, where ballots are joint, in reports. Custom ones do all."""
        if self.plugins.ballots is not None:
            custom: Any = self.plugins.ballots
            return custom, custom, custom
        name = self.config.attack.voters
        found = self._look_up("attack.voters", name, BALLOT_ATTACKS)
        if isinstance(found, type):
            found = self._made("attack.voters", name, found, {})
        if found is None or name in BALLOT_ATTACKS:
            known = name if found else "honest"
            return BALLOT_ATTACKS[known], MESSAGE_ATTACKS[known], REPORT_ATTACKS[known]
        return found, found, found

    def _no_parameters(
        self, unknown: Mapping[str, Any], known: Mapping[str, Any] | None = None
    ) -> None:
        name = self.config.attack.name
        has = f"it has {', '.join(known)}" if known else "it has none"
        self.problems.extend(
            f"attack.{key} = {value!r}: unknown key; not a parameter of {name!r} ({has})"
            for key, value in unknown.items()
        )

    def _look_up(
        self,
        key: str,
        name: str,
        known: Mapping[str, Any],
        *,
        also: Sequence[str] = (),
        written: str | None = None,
    ) -> Any:
        """What a name stands for; `written` is all that the config says, if that is more."""
        if key in self.wrong:
            return None
        if ":" in name:
            return self._resolve(key, name)
        if name not in known:
            self._unknown(key, written or name, {**known, **dict.fromkeys(also)})
            return None
        return known[name]

    def _unknown(self, key: str, name: str, known: Mapping[str, Any]) -> None:
        near = get_close_matches(name, known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        there = ", ".join(known)
        self.problems.append(
            f'{key} = {name!r}: unknown; there are {there} or "package.module:name"{hint}'
        )

    def _resolve(self, key: str, name: str) -> Any:
        try:
            found = resolve(name)
        except DottedNameError as error:
            self.problems.append(f"{key} = {name!r}: {error}")
            return None
        if not callable(found):
            self.problems.append(f"{key} = {name!r}: must be callable; got {type(found).__name__}")
            return None
        return found


def _votes(*, has_server: bool) -> list[str]:
    return [name for name, vote in VOTES.items() if vote.has_server is has_server]
