"""How Zenoh is set up: one TLS connection between any two members, and who may write what.

Keys are `holdout/NETWORK/SENDER/...`. Zenoh's access rules let a message in only under the prefix
of the member whose name is in the connection's certificate.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zenoh

CHUNK_BYTES = 1 << 20
"""Blobs travel in pieces of this size: a lost connection loses one, and nobody allocates more."""
RETRY_MILLISECONDS = (100, 1_000)


@dataclass(frozen=True, slots=True)
class Peer:
    """Another member, and where it is reached."""

    index: int
    name: str
    """The member's name, as in its certificate."""
    address: str
    """HOST:PORT."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """This member, where it listens, and the files with its certificate and keys."""

    index: int
    name: str
    listen: str
    """HOST:PORT."""
    certificate: Path
    key: Path
    authority: Path


def zenoh_config(prefix: str, endpoint: Endpoint, members: Sequence[Peer]) -> zenoh.Config:
    """The settings of this member's session; all its keys begin with the prefix."""
    # One connection for each pair: the member with the higher number opens it, and keeps trying.
    connect = [m.address for m in members if m.index < endpoint.index]
    tls = {
        "root_ca_certificate": str(endpoint.authority),
        "enable_mtls": True,
        "listen_private_key": str(endpoint.key),
        "listen_certificate": str(endpoint.certificate),
        "connect_private_key": str(endpoint.key),
        "connect_certificate": str(endpoint.certificate),
        # Members are known by the names in their certificates, not by their hosts' names.
        "verify_name_on_connect": False,
        "close_link_on_expiration": True,
    }
    first, last = RETRY_MILLISECONDS
    settings: dict[str, Any] = {
        "mode": "peer",
        "listen": {
            "endpoints": [f"tls/{endpoint.listen}"],
            "timeout_ms": 0,
            "exit_on_failure": True,
        },
        "connect": {
            "endpoints": [f"tls/{address}" for address in connect],
            "timeout_ms": -1,
            "exit_on_failure": False,
            "retry": {
                "period_init_ms": first,
                "period_max_ms": last,
                "period_increase_factor": 1.5,
            },
        },
        # All members are known: no discovery.
        "scouting": {"multicast": {"enabled": False}, "gossip": {"enabled": False}, "delay": 0},
        "transport": {
            "unicast": {"max_sessions": 2 * len(members) + 8, "max_links": 1},
            "link": {"protocols": ["tls"], "tls": tls, "rx": {"max_message_size": 2 * CHUNK_BYTES}},
            "shared_memory": {"enabled": False},
        },
        "adminspace": {"enabled": False},
        "qos": {"network": [_as_blobs(prefix)]},
        "access_control": _access(prefix, members),
    }
    return zenoh.Config.from_json5(json.dumps(settings))


def _as_blobs(prefix: str) -> dict[str, Any]:
    """Treat every question as one for a blob, however urgent its asker calls it.

    Zenoh sends an answer with the urgency of its question, and everything else of that urgency
    waits behind it: a peer that asks with a vote's urgency and does not read the answer would stop
    this node's votes.
    """
    return {
        "messages": ["query"],
        "key_exprs": [f"{prefix}/**"],
        "flows": ["ingress"],
        "overwrite": {"priority": "data_low", "congestion_control": "block", "express": False},
    }


def _access(prefix: str, members: Sequence[Peer]) -> dict[str, Any]:
    """Let in only what is under its sender's own prefix."""
    rules: list[dict[str, Any]] = [
        {
            "id": "out",
            "permission": "allow",
            "flows": ["egress"],
            "messages": ["put", "query", "reply", "declare_subscriber", "declare_queryable"],
            "key_exprs": [f"{prefix}/**"],
        }
    ]
    policies: list[dict[str, Any]] = [{"rules": ["out"], "subjects": ["anybody"]}]
    for member in members:
        own = f"{prefix}/{member.index}"
        allowed = {
            "put": [f"{own}/all", f"{own}/to/*"],
            "reply": [f"{own}/blob/**"],
            "declare_queryable": [f"{own}/blob/**"],
            "declare_subscriber": [f"{prefix}/*/all", f"{prefix}/*/to/{member.index}"],
            "query": [f"{prefix}/*/blob/{member.index}/**"],
        }
        rules += [
            {
                "id": f"{message} {member.index}",
                "permission": "allow",
                "flows": ["ingress"],
                "messages": [message],
                "key_exprs": keys,
            }
            for message, keys in allowed.items()
        ]
        policies.append(
            {
                "rules": [f"{message} {member.index}" for message in allowed],
                "subjects": [str(member.index)],
            }
        )
    subjects: list[dict[str, Any]] = [
        {"id": str(member.index), "cert_common_names": [member.name]} for member in members
    ]
    return {
        "enabled": True,
        "default_permission": "deny",
        "rules": rules,
        "subjects": [*subjects, {"id": "anybody"}],
        "policies": policies,
    }
