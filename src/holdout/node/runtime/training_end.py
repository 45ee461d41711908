"""When a member stops training: at a round, an accuracy or a date of its own choice.

It then takes part in the round that is under way and in no later one. Its node goes on running, so
that others can still fetch what they lack. Rounds stop once fewer than a quorum take part.
"""

import asyncio
from datetime import UTC, datetime

from holdout.node.logs import Log
from holdout.node.membership.settings import NodeTrainingSection
from holdout.node.runtime.service import Service

LOOK_SECONDS = 0.5


def reason_to_stop(
    training: NodeTrainingSection, *, accuracy: float | None, now: datetime
) -> str | None:
    """Why the member stops now; None: it goes on.

    Example:
        >>> training = NodeTrainingSection(stop_accuracy=0.9)
        >>> now = datetime.now(UTC)
        >>> reason_to_stop(training, accuracy=0.91, now=now)
        'the accuracy is 0.91, and 0.9 was asked for'
        >>> reason_to_stop(training, accuracy=0.5, now=now) is None
        True
    """
    wanted = training.stop_accuracy
    if wanted is not None and accuracy is not None and accuracy >= wanted:
        return f"the accuracy is {accuracy:g}, and {wanted:g} was asked for"
    if training.stop_date is not None and now >= training.stop_date:
        return f"it was to stop on {training.stop_date.isoformat()}"
    return None


async def stop_when_done(training: NodeTrainingSection, service: Service, log: Log) -> None:
    """Have the node stop training when its member wants it to."""
    if training.stop_round is not None:
        service.take_part_until(training.stop_round)
    if training.stop_accuracy is None and training.stop_date is None:
        return
    while True:
        why = reason_to_stop(training, accuracy=service.accuracy, now=datetime.now(UTC))
        if why is not None:
            service.take_part_until(service.player.round)
            log.info("training-ended", why=why)
            return
        await asyncio.sleep(LOOK_SECONDS)
