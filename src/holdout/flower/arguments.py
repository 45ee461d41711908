"""What is wrong with a strategy's arguments, in words that name them."""

import math


def count_problems(argument: str, value: int | None, *, least: int = 1) -> list[str]:
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


def timeout_problems(argument: str, seconds: float) -> list[str]:
    """What is wrong with an argument that must be a time limit."""
    if 0 < seconds < math.inf:
        return []
    return [f"{argument} = {seconds!r}: must be a positive number of seconds"]
