"""What may change in the config of a run that goes on: rounds, rules, seeds and trackers."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

ADDED_TO = ("experiment.rounds", "experiment.rules", "experiment.seeds")
"""Keys whose values a run that goes on may extend."""
FREE = "track."
"""The section that says where the run is tracked, which changes no result."""


def differences(stored: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The keys in which two configs differ, each with its value in both.

    >>> differences({"data": {"name": "mnist"}}, {"data": {"name": "idx"}})
    {'data.name': ('mnist', 'idx')}
    """
    old, new = _flat(stored), _flat(given)
    return {
        key: (old.get(key), new.get(key))
        for key in sorted({*old, *new})
        if old.get(key) != new.get(key)
    }


def is_same_run(stored: Mapping[str, Any], given: Mapping[str, Any]) -> bool:
    """Whether two configs differ at most in where the run is tracked."""
    return all(key.startswith(FREE) for key in differences(stored, given))


def is_extension(stored: Mapping[str, Any], given: Mapping[str, Any]) -> bool:
    """Whether a run of the first config can go on as one of the second.

    >>> shorter, longer = {"experiment": {"rounds": 3}}, {"experiment": {"rounds": 5}}
    >>> is_extension(shorter, longer), is_extension(longer, shorter)
    (True, False)
    """
    return all(
        key.startswith(FREE) or (key in ADDED_TO and _has_more(*values))
        for key, values in differences(stored, given).items()
    )


def _has_more(old: Any, new: Any) -> bool:
    match old, new:
        case list(), list():
            return all(item in new for item in old)
        case int(), int():
            return bool(new >= old)
    return False


def curve_config_sha256(config: Mapping[str, Any]) -> str:
    """The hash of the keys of a config that never change when a run goes on."""
    flat = _flat(config)
    kept = {k: v for k, v in flat.items() if k not in ADDED_TO and not k.startswith(FREE)}
    text = json.dumps(kept, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """The values by "section.key"."""
    flat: dict[str, Any] = {}
    for section, values in config.items():
        if isinstance(values, Mapping):
            flat |= {f"{section}.{key}": value for key, value in values.items()}
        else:
            flat[section] = values
    return flat
