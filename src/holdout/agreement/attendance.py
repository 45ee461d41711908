"""Who is worth waiting for: members that have spoken lately.

A wait ends early when everybody expected has been heard. A member that is down, or silent on
purpose, would make every wait a full one; so whoever has not been heard in a role for some rounds
is not waited for, until it is heard again, however late. This decides how long a worker waits and
nothing else: what such a member sends in time still counts.
"""

from collections.abc import Iterable

from holdout.agreement.messages import Kind

PATIENCE = 3
"""Rounds without a word before nobody waits any more."""


class Attendance:
    """When each worker last spoke in each role."""

    def __init__(self, first_round: int) -> None:
        self._first = first_round
        self._heard: dict[tuple[Kind, int], int] = {}

    def note(self, kind: Kind, worker: int, round_number: int) -> None:
        """The worker has spoken in this role, in this round."""
        known = self._heard.get((kind, worker), 0)
        self._heard[kind, worker] = max(known, round_number)

    def present(self, kind: Kind, workers: Iterable[int], round_number: int) -> list[int]:
        """Those of the workers to wait for in this round."""
        since = round_number - PATIENCE
        if since < self._first:
            return list(workers)
        return [worker for worker in workers if self._heard.get((kind, worker), 0) >= since]
