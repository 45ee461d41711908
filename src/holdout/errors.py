"""Every exception that `holdout` raises on purpose.

The tree says whose fault it is:

    HoldoutError
    ├── UserError           the user can mend it; the command line exits 2 with the message
    │   ├── ConfigError         mistakes in a config, all of them at once
    │   ├── InfeasibleError     the rule cannot work with this n and f
    │   ├── DataError           a data file is missing, damaged or of the wrong kind
    │   ├── DottedNameError     a "package.module:name" that leads nowhere
    │   ├── PluginError         an own rule, attack or model failed while it ran
    │   ├── ModelError          a model that does not fit the data, or that we cannot train
    │   ├── RunFolderError      the run folder is taken, damaged, locked or of another config
    │   └── StoreError          a node cannot write what it must remember, or has no room to
    ├── AuditError          the chain in a node's store does not hold; exit code 1
    ├── LearnerFailed       a member's own code failed: it misses a role, its node goes on
    ├── LocalnetFailed      a rehearsed network did not do what it must; exit code 1
    ├── InvalidMessage      bytes of a peer that hold no message; never leaves the agreement core
    └── MisuseError         a caller inside our own code broke a contract

What a liar sends (a bad proposal, a bad ballot) is not an exception: it is a counted rejection.
"""

from collections.abc import Sequence


class HoldoutError(Exception):
    """The root of all of them."""


class UserError(HoldoutError):
    """Something that the user can mend; the message says what."""


class ConfigError(UserError):
    """Mistakes in a config: each names the key, the value and the rule it breaks."""

    def __init__(self, problems: Sequence[str], *, where: str = "the config") -> None:
        self.problems = tuple(problems)
        count = len(self.problems)
        head = f"1 mistake in {where}:" if count == 1 else f"{count} mistakes in {where}:"
        super().__init__("\n".join([head, *(f"  {problem}" for problem in self.problems)]))


class InfeasibleError(UserError):
    """The rule's guarantee asks for more updates than there are: names n and f."""


class DataError(UserError):
    """A data file is missing, damaged or of the wrong kind: names the file."""


class DottedNameError(UserError):
    """A "package.module:name" in a config leads nowhere: names the step that failed."""


class PluginError(UserError):
    """An own rule or attack raised, or returned what it must not: names it and what happened."""


class ModelError(UserError):
    """A model does not fit the data, or holds state that a flat vector cannot carry."""


class RunFolderError(UserError):
    """A run folder cannot be used: taken, damaged, locked, or of another config."""


class StoreError(UserError):
    """A node's write failed, or there is no room for one: it stops where it is."""


class AuditError(HoldoutError):
    """The chain in a node's store does not hold: names the round and what is wrong."""


class LearnerFailed(HoldoutError):  # noqa: N818  # Expected: the worker misses a role, no more.
    """A member's own code raised, took too long or ended."""


class LocalnetFailed(HoldoutError):  # noqa: N818  # Said in the closing line; exit code 1.
    """A network on this machine did not do what it must."""


class InvalidMessage(HoldoutError):  # noqa: N818  # Named for what it is; nobody sees it raised.
    """Bytes that hold no message: a codec raises it, the core turns it into a counted rejection."""


class MisuseError(HoldoutError):
    """A caller inside our own code broke a contract: a bug."""
