"""What a run does not show: each note is a reason to doubt that a curve proves what it seems to."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from holdout.attacks import ATTACKS
from holdout.attacks.schedule import Schedule
from holdout.curve_rows import MOVED, NO_ATTACK
from holdout.data.datasets import Dataset
from holdout.experiments.curves import MISSING_MAX, CurveResult, Round
from holdout.learning.models import channels_remedy
from holdout.metrics import metric_of
from holdout.rules import LEAVES_NOBODY_OUT, find_rule
from holdout.voting import VOTES


class Notes(list[str]):
    """What the user is told: a list of notes, each said as soon as it is known."""

    def __init__(self, say: Callable[[str], None] | None = None) -> None:
        super().__init__()
        self._say = say
        self.kept: list[str] = []
        """Those that belong to the result wherever it is made again; `summary.json` has them."""

    def add(self, note: str) -> None:
        """Say a note of this time alone; another time it is something else."""
        self.append(note)
        if self._say is not None:
            self._say(note)

    def keep(self, note: str) -> None:
        """Say a note, and keep it with the results."""
        self.kept.append(note)
        self.add(note)

    def keep_unsaid(self, note: str) -> None:
        """Keep a note with the results, for the end of the run."""
        self.kept.append(note)
        self.append(note)


ADAPTIVE = ("alie", "ipm")
"""Attacks that search against the deployed rule if gamma is "adaptive"."""
SEARCHING = ("opt-alie", "opt-ipm", "greedy", "jointly")
"""Attacks that always do."""
CAPPED = (*ADAPTIVE, "opt-alie", "opt-ipm")
"""Attacks whose gamma ends at gamma_max."""


def notes_on_data(dataset: Dataset) -> list[str]:
    """Images the wrong way round; classes that nobody can learn, or that nobody is tested on."""
    notes: list[str] = []
    if remedy := channels_remedy(dataset.shape):
        notes.append(f"the samples of {dataset.name}, of shape {dataset.shape}, {remedy}")
    if dataset.classes is None:
        return notes
    for labels, rows in ((dataset.y_train, "training"), (dataset.y_test, "test")):
        absent = _absent(labels, dataset.classes)
        if absent:
            which = f"class {absent}" if "," not in absent else f"classes {absent}"
            notes.append(f"{dataset.name} has no {rows} rows of {which}: no curve shows them")
    return notes


def _absent(labels: Tensor, classes: int) -> str:
    counts = labels.bincount(minlength=classes).tolist()
    absent = [str(label) for label, count in enumerate(counts) if not count]
    shown = absent if len(absent) <= 10 else [*absent[:10], "..."]  # noqa: PLR2004
    return ", ".join(shown)


def notes_on_curves(curves: Sequence[CurveResult], config: Mapping[str, Any]) -> list[str]:
    """What the rounds themselves tell: from a run folder alone, complete or not."""
    attack = config.get("attack")
    settings: Mapping[str, Any] = attack if isinstance(attack, Mapping) else {}
    attacked = [curve for curve in curves if curve.attack != NO_ATTACK]

    def those(wrong: Callable[[CurveResult], bool], among: Sequence[CurveResult]) -> str:
        return ", ".join(curve.label for curve in among if wrong(curve))

    told = {
        "no step in any round: {}": those(_never_moved, curves),
        "more than a tenth of the honest proposals are missing, since custom code failed: {}": (
            those(lambda curve: curve.honest_missing > MISSING_MAX, curves)
        ),
        "more than a tenth of the honest votes are missing, since custom code failed: {}": those(
            lambda curve: _votes_missing(curve) > MISSING_MAX, curves
        ),
        "custom code raised when the model was evaluated, so the last accuracy may be that of an "
        "earlier round: {}": those(lambda curve: bool(_raised(curve, "evaluate")), curves),
        "custom code raised while the rule was applied, so some rounds made no step: {}": those(
            lambda curve: bool(_raised(curve, "aggregate")), curves
        ),
        "the attack raised in some rounds, in which the liars were silent: {}": those(
            lambda curve: bool(_raised(curve, "lie")), attacked
        ),
        "the attack on ballots raised in some rounds, in which its liars did not vote: {}": those(
            lambda curve: bool(_raised(curve, "ballot")), attacked
        ),
        "no liar was drawn in any round, so nothing was attacked: {}": those(_no_liars, attacked),
        "no lie was told in any round, since the attack's schedule has none: {}": those(
            lambda curve: not _no_liars(curve) and not _lying(curve, settings), attacked
        ),
        "every lie was refused before the rule saw it, so nothing was attacked: {}": those(
            lambda curve: _all_refused(_lying(curve, settings)), attacked
        ),
        "every ballot that liars sent was void, so none of their votes counted: {}": those(
            lambda curve: _all_void(_lying(curve, settings)), attacked
        ),
        f"gamma stood at its cap, gamma_max = {settings.get('gamma_max')}, in most rounds, so a "
        "stronger lie might do more harm: {}": those(
            lambda curve: _is_capped(curve, settings), attacked
        ),
        f"attacked by {settings.get('name')}, which does not search for what the rule lets "
        "through, so a custom rule may be weaker than it seems: {}": those(
            lambda curve: _is_custom(curve.rule) and _searches_not(settings), attacked
        ),
    }
    return [note.format(which) for note, which in told.items() if which]


def broken_curves(curves: Sequence[CurveResult], config: Mapping[str, Any]) -> dict[str, str]:
    """Curves that measured nothing since custom code failed in all their rounds: what, and which.

    In a run with several seeds one is enough.
    """
    settings = config.get("attack")
    found: dict[str, list[str]] = {}
    for curve in curves:
        for seed in curve.seeds:
            if what := _broken(replace(curve, seeds={seed: curve.seeds[seed]}), settings or {}):
                found.setdefault(what, [])
                found[what] += [curve.label] * (curve.label not in found[what])
    return {what: ", ".join(labels) for what, labels in found.items()}


def _broken(curve: CurveResult, settings: Mapping[str, Any]) -> str | None:
    """Why one seed of a curve measured nothing; None if it did."""
    if curve.honest_missing == 1:
        return "no honest proposal arrived in any round"
    if _votes_missing(curve) == 1:
        return "no honest vote arrived in any round"
    if len(_raised(curve, "aggregate")) == len(curve.rounds):
        return "custom code raised, while the rule was applied, in every round"
    asked = [line for line in _lying(curve, settings) if line.get("byzantine_proposers")]
    if asked and len(_raised(curve, "lie")) == len(asked):
        return "the attack raised in every round"
    asked = [line for line in _lying(curve, settings) if line.get("byzantine_voters")]
    raised = [(line.get("custom_errors") or {}).get("ballot", 0) for line in asked]
    pairs = zip(asked, raised, strict=True)
    if asked and all(number >= line["byzantine_voters"] for line, number in pairs):
        return "the attack on ballots raised in every round"
    measured = any(line.get(metric_of(curve.rounds).key) is not None for line in curve.rounds)
    if _raised(curve, "evaluate") and not measured:
        return "custom code raised in every evaluation"
    return None


def _votes_missing(curve: CurveResult) -> float:
    """The share of the honest votes that are missing, since custom code raised."""
    raised = sum(line["custom_errors"]["vote"] for line in _raised(curve, "vote"))
    drawn = sum(len(line["voters"]) - (line.get("byzantine_voters") or 0) for line in curve.rounds)
    return raised / drawn if drawn else 0.0


def _raised(curve: CurveResult, kind: str) -> list[Round]:
    """The rounds in which custom code raised when this was asked of it."""
    return [line for line in curve.rounds if (line.get("custom_errors") or {}).get(kind)]


def _never_moved(curve: CurveResult) -> bool:
    return all(line.get("outcome") not in MOVED for line in curve.rounds)


def _no_liars(curve: CurveResult) -> bool:
    return not any(line.get("byzantine_workers") for line in curve.rounds) and all(
        line.get("byzantine_proposers") is not None for line in curve.rounds
    )


def _lying(curve: CurveResult, settings: Mapping[str, Any]) -> list[Round]:
    """The rounds in which liars were drawn and due to lie."""
    keys = {key: settings.get(key) for key in ("onset", "ramp", "every", "dormant")}
    schedule = Schedule(**{key: value for key, value in keys.items() if isinstance(value, int)})
    drawn = [line for line in curve.rounds if line.get("byzantine_workers")]
    return [line for line in drawn if schedule.share(line["round"])]


def _all_refused(lying: Sequence[Round]) -> bool:
    """Whether every lie that was proposed was rejected."""

    def refused(line: Round) -> bool:
        rejected = sum((line.get("rejected_proposals") or {}).values())
        return bool(rejected - (line.get("honest_missing") or 0) == line["byzantine_proposers"])

    # Where the attack raised there was no lie to refuse, and another note says so.
    told = [line for line in lying if not (line.get("custom_errors") or {}).get("lie")]
    proposed = [line for line in told if line.get("byzantine_proposers")]
    return bool(proposed) and all(map(refused, proposed))


def _all_void(lying: Sequence[Round]) -> bool:
    """Whether liars voted, and nothing that they sent was a ballot; who is silent sends nothing."""

    def void(line: Round) -> bool:
        reasons = dict(line.get("rejected_ballots") or {})
        silent = reasons.pop("missing", 0)
        honest = (line.get("custom_errors") or {}).get("vote", 0)
        silent_liars = max(silent - honest, 0)
        return bool(sum(reasons.values()) + silent_liars >= line["byzantine_voters"] > silent_liars)

    voted = [line for line in lying if line.get("byzantine_voters")]
    return bool(voted) and all(map(void, voted))


def _is_capped(curve: CurveResult, settings: Mapping[str, Any]) -> bool:
    cap, gamma = settings.get("gamma_max"), settings.get("gamma")
    searched = curve.attack in CAPPED and (isinstance(gamma, str) or curve.attack not in ADAPTIVE)
    known = find_rule(curve.rule)
    # Of a rule that leaves nobody out no strength is too much: the cap is all there is.
    open_to_all = known is not None and known.rehearse is LEAVES_NOBODY_OUT
    if not searched or open_to_all or not isinstance(cap, int | float):
        return False
    chosen = [abs(line["gamma"]) for line in curve.rounds if line.get("gamma") is not None]
    return bool(2 * sum(gamma >= cap for gamma in chosen) > len(chosen))


def _is_custom(rule: str) -> bool:
    return rule not in VOTES and find_rule(rule) is None


def _searches_not(settings: Mapping[str, Any]) -> bool:
    """Whether the attack is known not to try the rule; of a custom one nobody can tell."""
    name = str(settings.get("name"))
    if name in ADAPTIVE:
        return settings.get("gamma") != "adaptive"
    return name not in SEARCHING and name in ATTACKS
