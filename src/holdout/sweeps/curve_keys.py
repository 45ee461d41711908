"""Which curve is which: the SHA-256 of all that decides its bytes.

That is its config without what it does not heed (what other rules are called, how a vote goes that
is not held, what would be lied if somebody lied), the content of its data, the versions, and the
source of custom code. So two cells, or two sweeps, that need the same curve find the same hash.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdout import device
from holdout.config import Config
from holdout.config.sections import VoteSection
from holdout.data.datasets import Dataset
from holdout.dotted import resolve
from holdout.experiments.code_record import source_of, sources_of
from holdout.experiments.plan import ExperimentPlan
from holdout.experiments.resolve_names import PLUS, is_decentralized, terms_of
from holdout.experiments.runner import environment
from holdout.federation.round_setup import Curve
from holdout.rules import RULES, Rule
from holdout.voting import VOTES

SCHEMA = 1
THREADS = 1
"""Torch's threads for one curve."""
NAME = "curve"


def heeded_config(config: Config, curve: Curve) -> dict[str, Any]:
    """The config of one curve, with all that it does not heed at one fixed value.

    A run of it has this curve alone, and the same rounds as the run of the whole config.
    """
    values = config.as_dict()
    values.pop("track", None)
    values["experiment"] |= {
        "name": NAME,
        "rules": [curve.rule],
        "baseline": False,
        "threads": THREADS,
        "save_every": 0,
    }
    parts = {curve.rule, *curve.rule.split(PLUS)}
    tables = {name: table for name, table in values.pop("rules", {}).items() if name in parts}
    if tables:
        values["rules"] = tables
    if curve.act is None:
        values["attack"] = {"name": "none"}
        values["federation"]["byzantine"] = 0
    if not is_decentralized(config, curve.rule):
        _drop_vote(values, config, curve)
    if isinstance(curve.method, Rule) and _is_built_in(curve.rule):
        if not curve.method.needs_root:
            values["data"]["root_samples"] = 0
        if curve.rule == "mean" and curve.act is None:
            values["federation"]["assumed_byzantine"] = 0
    return values


def _drop_vote(values: dict[str, Any], config: Config, curve: Curve) -> None:
    """Set each key of `[vote]` that is not heeded, and how liars vote, to its default."""
    method, usual = curve.method, VoteSection().model_dump()
    for key in usual:
        # How many samples a voter judges by also decides what honest work on them is.
        if key != "samples" and not (_is_vote(curve.rule) and _heeds(config, curve.rule, key)):
            values["vote"][key] = usual[key]
    asks_nobody = isinstance(method, Rule) and not method.needs_voters and _is_built_in(curve.rule)
    if asks_nobody and values["attack"].get("name") != "jointly":
        values["attack"].pop("voters", None)


def _heeds(config: Config, rule: str, key: str) -> bool:
    usual = config.vote.model_copy(update={key: getattr(VoteSection(), key)})
    return terms_of(config, rule) != terms_of(config.model_copy(update={"vote": usual}), rule)


def _is_vote(rule: str) -> bool:
    return rule in VOTES


def _is_built_in(rule: str) -> bool:
    return rule.rpartition(PLUS)[2] in RULES and ":" not in rule


def curve_key(
    config: Mapping[str, Any], *, data: str, code: Mapping[str, Any], versions: Mapping[str, Any]
) -> str:
    """The name of a curve in the store.

    Args:
        config: What `heeded_config` gave, with the curve's seed.
        data: The hash of the data's content.
        code: The hashes of custom code.
        versions: What else decides the bytes of a result.
    """
    parts = {"schema": SCHEMA, "config": config, "data": data, "code": code, "versions": versions}
    text = json.dumps(parts, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def versions_of(config: Config) -> dict[str, Any]:
    """What decides the bytes of a curve besides its config, data and code."""
    return environment(config, threads=THREADS)


def code_of(plan: ExperimentPlan) -> dict[str, Any]:
    """The hashes of all custom code and of a file that says who holds which rows."""
    config = plan.config
    found = dict(sources_of(plan))
    for key, name in (
        ("data.partition", config.data.partition),
        ("data.augment", config.data.augment),
        ("training.loss", config.training.loss),
        ("training.schedule", config.training.schedule),
    ):
        if name is not None and ":" in name:
            found[key] = source_of(resolve(name))
    if config.data.partition == "file" and config.data.partition_file:
        content = Path(config.data.partition_file).read_bytes()
        found["data.partition_file"] = {"sha256": hashlib.sha256(content).hexdigest()}
    return found


def content_of(dataset: Dataset) -> str:
    """The hash of all rows and labels."""
    digest = hashlib.sha256()
    for tensor in (dataset.x_train, dataset.y_train, dataset.x_test, dataset.y_test):
        array = device.to_numpy(tensor)
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
