"""What an operator should look at now, from a node's report."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from holdout.node.membership.identity import WARN_BEFORE


@dataclass(frozen=True, slots=True)
class Trouble:
    """One thing to look at."""

    level: Literal["error", "warning"]
    text: str


def alarms_of(report: Mapping[str, Any]) -> list[Trouble]:
    """Everything that is not as it should be, the worst first.

    Args:
        report: What a node says of itself (`holdout node status --json`).
    """
    return [*_errors(report), *_warnings(report)]


def _errors(report: Mapping[str, Any]) -> list[Trouble]:
    found = []
    if report["halted"]:
        found.append(f"the node has halted and signs nothing: {report['halted']}")
    present = 1 + len(report["heard"])
    if present < report["quorum"]:
        heard = "only this member is" if present == 1 else f"{present} members are"
        found.append(f"{heard} heard; a decision needs {report['quorum']}")
    if report["worker_failed"]:
        found.append(f"the worker fails: {report['worker_failed']}")
    found += [
        f"nothing is exchanged with {member['name']}: {member['foreign']}"
        for member in report["members"]
        if member["foreign"]
    ]
    if _days_left(report) < 0:
        found.append("the node's certificate has ended: nobody talks to it")
    return [Trouble("error", text) for text in found]


def _warnings(report: Mapping[str, Any]) -> list[Trouble]:
    found = []
    if report["observer"]:
        found.append("the node only watches: it has lost its memory, or may not vote yet")
    others = [member for member in report["members"] if not member["own"]]
    unheard = [m["name"] for m in others if not m["heard"] and not m["left"]]
    if unheard:
        found.append(f"not heard: {', '.join(unheard)}")
    slow = [name for name in report["slow"] if name not in unheard]
    if slow:
        found.append(f"slow: {', '.join(slow)}")
    if report["evidence"]:
        found.append(f"caught lying: {', '.join(report['evidence'])}")
    flooding = [member["name"] for member in report["members"] if member["floods"]]
    if flooding:
        found.append(f"caught flooding: {', '.join(flooding)}")
    failures = report["worker_failures"]
    if failures and not report["worker_failed"]:
        found.append(f"failures of the worker since the start: {failures}")
    days = _days_left(report)
    if 0 <= days <= WARN_BEFORE.days:
        found.append(f"the node's certificate ends at {report['certificate_expires']}")
    found += [f"round {alarm['round']}: {alarm['why']}" for alarm in report["alarms"]]
    return [Trouble("warning", text) for text in found]


def _days_left(report: Mapping[str, Any]) -> int:
    left = datetime.fromisoformat(report["certificate_expires"]) - datetime.now(UTC)
    return left.days
