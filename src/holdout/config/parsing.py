"""From TOML, or values like it, to a config: every mistake is found before one is reported."""

import difflib
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from holdout.config.relations import relations
from holdout.config.sections import Config, Section
from holdout.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Parsed:
    """A config as far as it could be understood, and every mistake found so far.

    Keys with a mistake hold their default; `wrong` names them, so that later checks stay silent
    about what was complained of already.
    """

    config: Config
    problems: tuple[str, ...]
    wrong: frozenset[str]

    def checked(self) -> Config:
        """The config, or a ConfigError with all problems."""
        if self.problems:
            raise ConfigError(self.problems)
        return self.config


def parse(values: Mapping[str, Any]) -> Parsed:
    """Check nested plain values, as TOML gives them."""
    problems: list[str] = []
    wrong: set[str] = set()
    remaining = _with_defaults_of_mode(_deep_copy(values))
    try:
        config = Config.model_validate(remaining)
    except ValidationError as error:
        for detail in error.errors():
            # A union reports once for each alternative: the first two parts name the key.
            section, *names = (str(part) for part in detail["loc"][:2])
            key = ".".join([section, *names])
            if key not in wrong:
                problems.append(_describe(detail, section, names, remaining))
            wrong.add(key)
            if names and isinstance(remaining.get(section), dict):
                remaining[section].pop(names[0], None)
            else:
                remaining.pop(section, None)
        config = Config.model_validate(remaining)
    problems.extend(
        message
        for keys, holds, message in relations(config)
        if not wrong.intersection(keys) and not holds
    )
    return Parsed(config, tuple(problems), frozenset(wrong))


def _with_defaults_of_mode(values: dict[str, Any]) -> dict[str, Any]:
    """Two keys that are left out mean something else where there is no server."""
    federation = values.get("federation")
    if isinstance(federation, dict) and federation.get("mode") == "decentralized":
        federation.setdefault("disjoint", False)
        experiment = values.setdefault("experiment", {})
        if isinstance(experiment, dict):
            experiment.setdefault("rules", ["holdout"])
    return values


def read_file(path: Path) -> dict[str, Any]:
    """The values of a TOML file."""
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise ConfigError([f"{path}: cannot be read ({error.strerror})"]) from error
    except (ValueError, RecursionError) as error:
        raise ConfigError([f"{path}: not TOML ({error})"]) from error


def apply_settings(values: Mapping[str, Any], settings: list[str]) -> dict[str, Any]:
    """The values with each `section.key=value` put over them; values are TOML, or else text."""
    result = _deep_copy(values)
    problems = []
    for setting in settings:
        key, equals, text = setting.partition("=")
        parts = key.strip().split(".")
        if not equals or len(parts) != 2 or not all(parts):  # noqa: PLR2004
            problems.append(f"--set {setting}: must be section.key=value")
            continue
        section = result.setdefault(parts[0], {})
        if isinstance(section, dict):
            section[parts[1]] = _read_value(text.strip())
        else:
            problems.append(f"--set {setting}: {parts[0]} is no section")
    if problems:
        raise ConfigError([*problems, *parse(result).problems])
    return result


def _read_value(text: str) -> Any:
    try:
        values = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    # Text with a line break could smuggle in more than one value.
    return values["value"] if len(values) == 1 else text


def _describe(
    detail: ErrorDetails, section: str, names: Sequence[str], values: Mapping[str, Any]
) -> str:
    key = ".".join([section, *names])
    value = values.get(section, detail["input"])
    for name in names:
        value = value[name] if isinstance(value, Mapping) and name in value else detail["input"]
    message = detail["msg"].removeprefix("Value error, ").replace("Input should", "must")
    match detail["type"]:
        case "extra_forbidden":
            given = f" = {value!r}" if names else ""
            return f"{key}{given}: unknown key{_suggest(section, names)}"
        case "model_type" | "model_attributes_type":
            message = "must be a section"
        case "too_short" | "string_too_short":
            message = "must not be empty"
        case "string_pattern_mismatch":
            message = "must be letters, digits, '.', '_' and '-', starting with a letter or digit"
        case _ if key == "attack.gamma":
            message = (
                'must be a number that is not negative, "adaptive", "krum" or "krum-unsquared"'
            )
    return f"{key} = {value!r}: {message}"


def _suggest(section: str, names: Sequence[str]) -> str:
    fields: Mapping[str, Any] = Config.model_fields
    if names:
        owner = fields[section].annotation
        assert issubclass(owner, Section)  # noqa: S101
        fields = owner.model_fields
    close = difflib.get_close_matches(names[0] if names else section, list(fields), n=1)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; there are {', '.join(fields)}"


def _deep_copy(values: Mapping[str, Any]) -> dict[str, Any]:
    return {str(k): _deep_copy(v) if isinstance(v, Mapping) else v for k, v in values.items()}
