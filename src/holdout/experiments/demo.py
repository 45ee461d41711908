"""The built-in demo: what `holdout run` without a config runs."""

import tomllib
from importlib.resources import files
from typing import Any


def demo_values() -> dict[str, Any]:
    """The demo's config, as TOML gives it."""
    return tomllib.loads(files("holdout.experiments").joinpath("demo.toml").read_text("utf-8"))
