"""What Byzantine workers do, given a view of what they may know.

`ATTACKS` lists what proposers send, `BALLOT_ATTACKS` how voters vote. A custom attack is any
callable that takes a `View` (for voters, a `BallotView`, a `MessageView` where ballots are joint, a
`ReportView` where a rule asks for reports); in a config it is named "package.module:name".
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from holdout.attacks import (
    backdoor,
    ballots,
    camouflaged,
    messages,
    persistent,
    reports,
    searched,
    updates,
)
from holdout.attacks.backdoor import Triggering
from holdout.attacks.ballots import BallotAttack, BallotView
from holdout.attacks.messages import CoalitionView, MessageAttack, MessageView
from holdout.attacks.reports import ReportAttack, ReportView
from holdout.attacks.search import DeployedRule
from holdout.attacks.view import Attack, Deployed, Lie, MixedLie, View

ATTACKS: Mapping[str, Callable[..., Attack]] = MappingProxyType(
    {
        "alie": updates.Alie,
        "sign-flip": updates.SignFlip,
        "ipm": updates.InnerProduct,
        "bomb": updates.Bomb,
        "rescale": updates.Rescale,
        "permute": updates.Permute,
        "gaussian": updates.Gaussian,
        "label-flip": updates.LabelFlip,
        "mimic": updates.Mimic,
        "zero": updates.Zero,
        "nan": updates.NotANumber,
        "greedy": searched.Greedy,
        "jointly": searched.Jointly,
        "opt-alie": searched.OptAlie,
        "opt-ipm": searched.OptIpm,
        "min-max": camouflaged.MinMax,
        "min-sum": camouflaged.MinSum,
        "shift-back": persistent.ShiftBack,
        "poisoned": persistent.Poisoned,
        "backdoor": backdoor.Backdoor,
    }
)
"""What Byzantine proposers send, by its name in a config: called with parameters, gives an attack.

>>> sign_flip = ATTACKS["sign-flip"]
>>> sign_flip(scale=2.0)
SignFlip(scale=2.0)
"""

BALLOT_ATTACKS: Mapping[str, BallotAttack] = MappingProxyType(
    {
        "honest": ballots.honest,
        "coalition": ballots.coalition,
        "starve": ballots.starve,
        "short": ballots.short,
        "blank": ballots.blank,
        "random": ballots.random,
        "inverted": ballots.inverted,
    }
)
"""How Byzantine voters vote, by its name in a config."""

MESSAGE_ATTACKS: Mapping[str, MessageAttack] = MappingProxyType(
    {
        "honest": messages.honest,
        "coalition": messages.coalition,
        "starve": messages.starve,
        "short": messages.short,
        "blank": messages.blank,
        "random": messages.random,
        "inverted": messages.inverted,
    }
)
"""The same where ballots are joint, by the same names: what a Byzantine voter sends."""

REPORT_ATTACKS: Mapping[str, ReportAttack] = MappingProxyType(
    {
        "honest": reports.honest,
        "coalition": reports.coalition,
        "starve": reports.starve,
        "short": reports.short,
        "blank": reports.blank,
        "random": reports.random,
        "inverted": reports.inverted,
    }
)
"""The same where a rule asks what updates do to each class: what a Byzantine voter reports."""

__all__ = [
    "ATTACKS",
    "BALLOT_ATTACKS",
    "MESSAGE_ATTACKS",
    "REPORT_ATTACKS",
    "Attack",
    "BallotAttack",
    "BallotView",
    "CoalitionView",
    "Deployed",
    "DeployedRule",
    "Lie",
    "MessageAttack",
    "MessageView",
    "MixedLie",
    "ReportAttack",
    "ReportView",
    "Triggering",
    "View",
]
