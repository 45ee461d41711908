"""What came back from the nodes asked: one answer of each at most, all else is a fault."""

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from flwr.app import Error, Metadata, RecordDict

from holdout.flower.plain_replies import plain_error, take_content

LOG = logging.getLogger("flwr")

LOST_CODE, UNREADABLE_CODE, TOO_LARGE_CODE, FORGED_CODE, MALFORMED_CODE = -1, -2, -3, -4, -5
"""Codes of the error replies that are made here; Flower's codes are not negative."""
_UNAVAILABLE_CODES = (LOST_CODE, 3, 4, 5)
"""Ours, and Flower's codes for a message, a reply or a node that is unavailable."""
_SUPERLINK_NODE = 1
"""The sender of the replies that the SuperLink writes in place of a node that is gone."""
_DETAIL_MAX = 200


class ReplyFault(StrEnum):
    """Why a reply does not count, besides what the core finds wrong with proposals and ballots."""

    MISSING = "missing"
    """Nothing came within the time."""
    UNAVAILABLE = "unavailable"
    """The SuperLink says that the node, or its reply, is gone."""
    ERROR = "error"
    """The node's app failed."""
    NOT_DRAWN = "not-drawn"
    """It answers nothing that was asked, or comes from another node than the one asked."""
    SECOND = "second"
    """The node has answered already."""
    MALFORMED = "malformed"
    """Its records, or the names of its arrays, are not those of such a reply."""
    MISSHAPEN = "misshapen"
    WRONG_DTYPE = "wrong-dtype"
    NOT_FINITE = "not-finite"
    UNREADABLE = "unreadable"
    """Its bytes are not an array."""
    TOO_LARGE = "too-large"
    """It would have cost more memory than a reply may."""
    FORGED = "forged"
    """It says of itself that it answers another question, or comes from another node."""


_OUR_FAULTS = {
    UNREADABLE_CODE: ReplyFault.UNREADABLE,
    TOO_LARGE_CODE: ReplyFault.TOO_LARGE,
    FORGED_CODE: ReplyFault.FORGED,
    MALFORMED_CODE: ReplyFault.MALFORMED,
}


@dataclass(frozen=True, slots=True)
class RejectedReply:
    """A reply that does not count."""

    node: int
    """Whose it is; 0 where nobody who was asked sent it."""
    reason: str
    detail: str = ""


@dataclass(slots=True)
class Answers:
    """What came back from the nodes that were asked."""

    contents: dict[int, RecordDict] = field(default_factory=dict)
    """The content of each reply that counts, by node, in the order in which they were asked."""
    faults: list[RejectedReply] = field(default_factory=list)
    silent: list[int] = field(default_factory=list)
    """Nodes that sent nothing, or that the SuperLink knows to be gone."""

    def only(self, nodes: Collection[int]) -> "Answers":
        """The same, as far as it concerns these nodes."""
        return Answers(
            {node: content for node, content in self.contents.items() if node in nodes},
            [fault for fault in self.faults if fault.node in nodes],
            [node for node in self.silent if node in nodes],
        )

    def without(self, nodes: Collection[int]) -> "Answers":
        """The same, except for what concerns these nodes."""
        others = {*self.contents, *self.silent, *(fault.node for fault in self.faults)}
        return self.only(others.difference(nodes))


def collate(asked: Sequence[Metadata], replies: Iterable[object]) -> Answers:
    """Match replies to what was asked, by the id of the question.

    (Not by their sender: where a node is gone, the SuperLink answers in its place.) A question
    without an id was never sent, but put in other words by the user's `configure_train`: what came
    from its node answers it. Replies of `exchange` are bound to nodes; others say themselves whose
    they are.
    """
    questions = {question.message_id: question for question in asked if question.message_id}
    rebuilt = {question.dst_node_id: question for question in asked if not question.message_id}
    found: dict[int, RecordDict | RejectedReply] = {}
    strays: list[RejectedReply] = []
    for reply in replies:
        try:
            question = _question_of(reply, questions, rebuilt)
        except Exception:  # noqa: BLE001  (A Python object that only looks like a message.)
            strays.append(RejectedReply(0, ReplyFault.MALFORMED))
            continue
        if question is None:
            strays.append(RejectedReply(0, ReplyFault.NOT_DRAWN))
        elif question.dst_node_id in found:
            strays.append(RejectedReply(question.dst_node_id, ReplyFault.SECOND))
        else:
            found[question.dst_node_id] = _read(reply, question)
    answers = Answers(faults=strays)
    for question in asked:
        node = question.dst_node_id
        outcome = found.get(node, RejectedReply(node, ReplyFault.MISSING))
        if isinstance(outcome, RejectedReply):
            answers.faults.append(outcome)
            if outcome.reason in {ReplyFault.MISSING, ReplyFault.UNAVAILABLE}:
                answers.silent.append(node)
        else:
            answers.contents[node] = outcome
    return answers


def _question_of(
    reply: Any, questions: Mapping[str, Metadata], rebuilt: Mapping[int, Metadata]
) -> Metadata | None:
    """The question that a reply answers, if it was asked and if this node was asked it."""
    said = reply.metadata
    question = questions.get(said.reply_to_message_id)
    if question is None:
        return rebuilt.get(said.src_node_id)
    return question if may_answer(reply, question) else None


def error_fault(error: Error) -> ReplyFault:
    """What a reply's error stands for."""
    if error.code in _UNAVAILABLE_CODES:
        return ReplyFault.UNAVAILABLE
    return _OUR_FAULTS.get(error.code, ReplyFault.ERROR)


def log_faults(what: str, faults: Iterable[RejectedReply]) -> None:
    """Log each rejected reply with its node and the reason."""
    for fault in faults:
        detail = f" ({fault.detail})" if fault.detail else ""
        whose = f"node {fault.node}" if fault.node else "nobody known"
        LOG.warning("%s of %s rejected: %s%s", what, whose, fault.reason, detail)


def may_answer(reply: Any, question: Metadata) -> bool:
    """Whether the reply says that it comes from whom the question went to."""
    sender = reply.metadata.src_node_id
    return sender == question.dst_node_id or bool(reply.has_error() and sender == _SUPERLINK_NODE)


def _read(reply: Any, question: Metadata) -> RecordDict | RejectedReply:
    node = question.dst_node_id
    try:
        if reply.has_error():
            error = plain_error(reply)
            return RejectedReply(node, error_fault(error), _brief(error.reason))
        was_sent = bool(question.message_id)
        if was_sent and reply.metadata.message_type != question.message_type:
            return RejectedReply(node, ReplyFault.MALFORMED, "it is of another type")
        return take_content(reply)
    except Exception as error:  # noqa: BLE001  (A Python object that only looks like a message.)
        return RejectedReply(node, ReplyFault.MALFORMED, _brief(f"{type(error).__name__}: {error}"))


def _brief(text: object) -> str:
    """What somebody else wrote, made fit for one line of our log."""
    words = " ".join(str(text).split())
    return ascii(words if len(words) <= _DETAIL_MAX else words[:_DETAIL_MAX] + "...")[1:-1]
