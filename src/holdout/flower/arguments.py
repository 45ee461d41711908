"""What is wrong with a strategy's arguments, in words that name them."""

import math
from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from typing_extensions import TypeIs


def count_problems(argument: str, value: object, *, least: int = 1) -> list[str]:
    """What is wrong with an argument that must be a whole number of at least `least`, or None."""
    if value is None or (type(value) is int and value >= least):
        return []
    return [f"{argument} = {value!r}: must be a whole number, {least} or more"]


def pattern_problems(argument: str, patterns: object) -> list[str]:
    """What is wrong with an argument that must be a list of names, in which `*` may stand."""
    right = isinstance(patterns, list | tuple) and all(isinstance(p, str) for p in patterns)
    return (
        [] if right else [f'{argument} = {patterns!r}: must be a list of names, such as ["*bn*"]']
    )


def timeout_problems(argument: str, seconds: object) -> list[str]:
    """What is wrong with an argument that must be a time limit."""
    if _is_number(seconds) and 0 < seconds < math.inf:
        return []
    return [f"{argument} = {seconds!r}: must be a positive number of seconds"]


def text_problems(argument: str, text: object) -> list[str]:
    """What is wrong with an argument that must be a text that says something."""
    if isinstance(text, str) and text:
        return []
    return [f"{argument} = {text!r}: must be a text that is not empty"]


def folder_problems(argument: str, folder: object) -> list[str]:
    """What is wrong with an argument that must be a path, or None."""
    if folder is None or isinstance(folder, Path):
        return []
    return text_problems(argument, folder)


def function_problems(argument: str, function: object) -> list[str]:
    """What is wrong with an argument that must be a function, or None."""
    if function is None or callable(function):
        return []
    return [f"{argument} = {function!r}: must be a function"]


def fedavg_problems(strategy: FedAvg) -> list[str]:
    """What is wrong with the arguments that Flower's `FedAvg` takes and does not look at."""
    problems: list[str] = []
    for argument in ("fraction_train", "fraction_evaluate"):
        share = getattr(strategy, argument)
        if not (_is_number(share) and 0 <= share <= 1):
            problems.append(f"{argument} = {share!r}: must be a number from 0 to 1")
    for argument in ("min_train_nodes", "min_evaluate_nodes", "min_available_nodes"):
        value = getattr(strategy, argument)
        # Whoever trains nobody may say so twice, as `FedAvg` itself does.
        least = 0 if argument != "min_train_nodes" or strategy.fraction_train == 0.0 else 1
        if type(value) is not int or value < least:
            problems.append(f"{argument} = {value!r}: must be a whole number, {least} or more")
    for argument in ("weighted_by_key", "arrayrecord_key", "configrecord_key"):
        problems += text_problems(argument, getattr(strategy, argument))
    if strategy.arrayrecord_key == strategy.configrecord_key:
        problems.append(
            f"arrayrecord_key and configrecord_key = {strategy.arrayrecord_key!r}: must differ, "
            "since one message holds both"
        )
    for argument in ("train_metrics_aggr_fn", "evaluate_metrics_aggr_fn"):
        problems += function_problems(argument, getattr(strategy, argument))
    return problems


def start_problems(
    *,
    grid: object,
    initial_arrays: object,
    num_rounds: object,
    timeout: object,
    configs: dict[str, object],
    evaluate_fn: object,
) -> list[str]:
    """What is wrong with what `start` was given."""
    problems: list[str] = []
    if not isinstance(grid, Grid):
        problems.append(f"grid = {_kind(grid)}: must be the Grid that Flower gives to @app.main()")
    if not isinstance(initial_arrays, ArrayRecord | None):
        problems.append(
            f"initial_arrays = {_kind(initial_arrays)}: must be an ArrayRecord, such as "
            "ArrayRecord(model.state_dict())"
        )
    problems += count_problems("num_rounds", num_rounds, least=0)
    problems += timeout_problems("timeout", timeout)
    problems += [
        f"{argument} = {_kind(config)}: must be a ConfigRecord, such as ConfigRecord({{...}})"
        for argument, config in configs.items()
        if not isinstance(config, ConfigRecord | None)
    ]
    return problems + function_problems("evaluate_fn", evaluate_fn)


def _is_number(value: object) -> TypeIs[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _kind(value: object) -> str:
    return "None" if value is None else f"<{type(value).__name__}>"
