"""Every exception that `holdout` raises on purpose.

The tree says whose fault it is:

    HoldoutError
    ├── UserError           the user can put it right; the command line exits 2 with the message
    │   ├── ConfigError         mistakes in a config, all of them at once
    │   ├── InfeasibleError     the rule cannot work with this n and f
    │   ├── DataError           a data file is missing, damaged or of the wrong kind
    │   ├── DottedNameError     a "package.module:name" that leads nowhere
    │   ├── PluginError         custom code raised, or returned what it must not
    │   ├── ModelError          a model that does not fit the data, or that we cannot train
    │   ├── RunFolderError      the run folder is taken, damaged, locked or of a different config
    │   │   └── WriteError          a file of it could not be written, such as on a full disk
    │   └── StoreError          a node cannot write what it must remember, or has no room to
    ├── RunFailed           a run ended, and a curve of it measured nothing; exit code 1
    ├── AuditError          the chain in a node's store does not hold; exit code 1
    ├── LearnerFailed       a member's code failed: it misses a role, its node continues
    ├── LocalnetFailed      a rehearsed network did not do what it must; exit code 1
    ├── InvalidMessage      a peer's bytes hold no message; never leaves the agreement core
    └── MisuseError         code of this package broke a contract: a bug

What a liar sends (a bad proposal, a bad ballot) is not an exception: it is a counted rejection.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # Only its type: experiments are layers above this one.
    from holdout.experiments.runner import Result


class HoldoutError(Exception):
    """Everything that `holdout` raises on purpose is one of these."""


class UserError(HoldoutError):
    """Something the user can put right; the message says what."""


class ConfigError(UserError):
    r"""Mistakes in a config, all of them at once: each names the key, its value and what is wrong.

    >>> from holdout import ConfigError, run
    >>> try:
    ...     run({"experiment": {"rounds": 0, "seedz": [1]}})
    ... except ConfigError as error:
    ...     print(*error.problems, sep="\n")
    experiment.rounds = 0: must be greater than or equal to 1
    experiment.seedz = [1]: unknown key; did you mean 'seeds'?

    `misfits` are the problems that lie in a combination of values, each of which would be valid
    beside others.
    """

    def __init__(
        self,
        problems: Sequence[str],
        *,
        where: str = "the config",
        misfits: Sequence[str] = (),
    ) -> None:
        self.problems = tuple(problems)
        self.misfits = tuple(misfits)
        count = len(self.problems)
        head = f"1 mistake in {where}:" if count == 1 else f"{count} mistakes in {where}:"
        super().__init__("\n".join([head, *(f"  {problem}" for problem in self.problems)]))


class InfeasibleError(UserError):
    """A rule cannot work with this few updates or this many liars; the message names n and f.

    A custom rule may raise it too: the round then makes no step, and is counted.
    """


class DataError(UserError):
    """A data file is missing, damaged or of the wrong kind; the message names it."""


class DottedNameError(UserError):
    """A "package.module:name" in a config leads nowhere; the message names the step that failed."""


class PluginError(UserError):
    """Custom code raised, or returned what it must not; the message says whose, what and where.

    `traceback` is what it raised, from its own first line on; None if it raised nothing.
    """

    def __init__(self, message: str, traceback: str | None = None) -> None:
        super().__init__(message)
        self.traceback = traceback


class ModelError(UserError):
    """A model does not fit the data, or holds state that a flat vector cannot carry."""


CUSTOM_CODE_ERRORS = (PluginError, ModelError, DataError)
"""What ends a run whose custom code fails outside any round in which it could be counted."""


class RunFolderError(UserError):
    """A run folder cannot be used: taken, damaged, locked, or of a different config."""


class WriteError(RunFolderError):
    """A file of a run could not be written; the message names it and says why."""


class StoreError(UserError):
    """A node could not write, has no room left, or holds the store of another network."""


class RunFailed(HoldoutError):  # noqa: N818  # What was run is there: it is a result, if a bad one.
    """A run has ended, but custom code failed in every round of a curve, which shows nothing.

    What was run is on the disk if there is a run folder, and in `result`.
    """

    def __init__(self, message: str, result: "Result") -> None:
        super().__init__(message)
        self.result = result


class AuditError(HoldoutError):
    """The chain in a node's store does not hold; the message names the round and what is wrong."""


class LearnerFailed(HoldoutError):  # noqa: N818  # Expected: the worker misses a role, no more.
    """A member's code raised, took too long or ended."""


class LocalnetFailed(HoldoutError):  # noqa: N818  # Reported in the closing line; exit code 1.
    """A network on this machine did not do what it must."""


class InvalidMessage(HoldoutError):  # noqa: N818  # Named for what it is; nobody sees it raised.
    """Bytes that hold no message: a codec raises it, the core turns it into a counted rejection."""


class MisuseError(HoldoutError):
    """Code of this package broke a contract: a bug."""
