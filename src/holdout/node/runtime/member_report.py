"""What a node knows of each member: whether it is heard, how slow it is, what it was caught at."""

from collections.abc import Mapping
from typing import Any

from holdout.node.membership.genesis import Network
from holdout.node.network.blobs import Fetcher
from holdout.node.network.transport import ZenohTransport
from holdout.node.network.versions import FIRST, NEWEST
from holdout.node.runtime.service import Service

WAITS = ("gradient", "ballot", "lead", "vote")
"""What a member is waited for."""


def slow(service: Service) -> tuple[int, ...]:
    """The members that are named slow now, ascending."""
    waits = getattr(service.player, "waits", None)
    return () if waits is None else tuple(waits.slow())


def members(
    network: Network, service: Service, *, transport: ZenohTransport, fetcher: Fetcher
) -> list[dict[str, Any]]:
    """One entry for each member, in the order of the roster; times are in seconds."""
    connected, heard = set(transport.peers()), set(service.gossip.heard_lately())
    late = set(slow(service))
    waits = _waits(service)
    floods: Mapping[int, Any] = getattr(transport, "floods", dict)()
    failed: Mapping[int, int] = getattr(fetcher, "failed", {})
    rejected = _by_sender(getattr(service.counters, "rejected_by", {}))
    dropped = _by_sender(transport.dropped)
    found = []
    for place, member in enumerate(network.members):
        times = waits.get(place)
        flood = floods.get(place)
        found.append(
            {
                "name": member.name,
                "own": place == service.worker,
                "connected": place in connected,
                "heard": place in heard or place == service.worker,
                "left": place in service.gossip.left,
                "slow": place in late,
                "caught": service.evidence.get(place, 0),
                "seconds": {
                    name: None if times is None else _seconds(getattr(times, name))
                    for name in WAITS
                },
                "missed": 0 if times is None else times.missed,
                "excused_until": 0 if times is None else times.excused_until,
                "floods": 0 if flood is None else flood.times,
                "version": NEWEST
                if place == service.worker
                else service.gossip.spoken.get(place, FIRST).newest,
                "foreign": None if place == service.worker else service.gossip.foreign(place),
                "unserved": failed.get(place, 0),
                "rejected": rejected.get(place, {}),
                "dropped": dropped.get(place, {}),
            }
        )
    return found


def _waits(service: Service) -> Mapping[int, Any]:
    waits = getattr(service.player, "waits", None)
    return {} if waits is None else waits.members()


def _seconds(microseconds: int | None) -> float | None:
    return None if microseconds is None else microseconds / 1e6


def _by_sender(counts: Mapping[tuple[int, Any], int]) -> dict[int, dict[str, int]]:
    found: dict[int, dict[str, int]] = {}
    for (sender, reason), count in sorted(counts.items()):
        found.setdefault(sender, {})[str(reason)] = count
    return found
