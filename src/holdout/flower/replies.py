"""Replies -> at most one content for each node that was asked; everything else is a fault."""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from flwr.app import Message, Metadata, RecordDict

from holdout.flower.exchange import error_fault
from holdout.flower.records import ReplyFault

LOG = logging.getLogger("flwr")

SUPERLINK_NODE = 1
"""Replies that the SuperLink writes in place of a node that is gone come from here."""
DETAIL_MAX = 200


@dataclass(frozen=True, slots=True)
class RejectedReply:
    """A reply that does not count."""

    node: int
    reason: str
    detail: str = ""


@dataclass(slots=True)
class Answers:
    """What came back from the nodes that were asked."""

    contents: dict[int, RecordDict] = field(default_factory=dict)
    """By node, in the order in which they were asked."""
    faults: list[RejectedReply] = field(default_factory=list)
    silent: list[int] = field(default_factory=list)
    """Nodes of which nothing was heard, or which the SuperLink knows to be gone."""


def collate(asked: Sequence[Metadata], replies: Iterable[object]) -> Answers:
    """Match replies to what was asked, by the id of the question.

    (Not by their sender: where a node is gone, the SuperLink answers in its place.)
    """
    questions = {question.message_id: question for question in asked}
    found: dict[int, RecordDict | RejectedReply] = {}
    strays: list[RejectedReply] = []
    for reply in replies:
        if not isinstance(reply, Message):
            strays.append(RejectedReply(0, ReplyFault.MALFORMED))
            continue
        sender = reply.metadata.src_node_id
        question = questions.get(reply.metadata.reply_to_message_id)
        if question is None:
            strays.append(RejectedReply(sender, ReplyFault.NOT_DRAWN))
        elif not _may_answer(reply, question):
            detail = f"answers in the place of node {question.dst_node_id}"
            strays.append(RejectedReply(sender, ReplyFault.NOT_DRAWN, detail))
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


def _may_answer(reply: Message, question: Metadata) -> bool:
    sender = reply.metadata.src_node_id
    return sender == question.dst_node_id or (reply.has_error() and sender == SUPERLINK_NODE)


def _read(reply: Message, question: Metadata) -> RecordDict | RejectedReply:
    node = question.dst_node_id
    if reply.has_error():
        return RejectedReply(node, error_fault(reply), brief(reply.error.reason))
    if not reply.has_content() or reply.metadata.message_type != question.message_type:
        return RejectedReply(node, ReplyFault.MALFORMED)
    return reply.content


def brief(text: object) -> str:
    """What somebody else wrote, fit for a line of our log."""
    words = " ".join(str(text).split())
    return ascii(words if len(words) <= DETAIL_MAX else words[:DETAIL_MAX] + "...")[1:-1]


def log_faults(what: str, faults: Iterable[RejectedReply]) -> None:
    """Each with node and reason."""
    for fault in faults:
        detail = f" ({fault.detail})" if fault.detail else ""
        LOG.warning("%s of node %d rejected: %s%s", what, fault.node, fault.reason, detail)
