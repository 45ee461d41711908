"""Data sets by name (`load`) and who holds which rows (`partition`).

Importing anything here reads no file and opens no connection.
"""

from typing import TYPE_CHECKING

from holdout import lazy

__all__ = ["Dataset", "Shard", "load", "partition"]

if TYPE_CHECKING:
    from holdout.data.datasets import Dataset, Shard, load
    from holdout.data.partitions import partition
else:
    __getattr__, __dir__ = lazy.attributes(
        __name__,
        {
            "holdout.data.datasets": ("Dataset", "Shard", "load"),
            "holdout.data.partitions": ("partition",),
        },
    )
