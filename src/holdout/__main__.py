"""`python -m holdout` and the command `holdout`."""

import os
import sys

from holdout.commands import run_command

# Torch's threads, while they wait for each other, keep a core busy by default. Where another
# process wants that core, both then crawl, by a factor of ten and more; asleep they cost nothing.
# It must be said before torch is loaded, which commands do only when they need it.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# numpy's products run on threads of our own; OpenBLAS's beside them would spin in the same way.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def main() -> None:
    """Run the command line and exit with its code."""
    sys.exit(run_command(sys.argv[1:]))


if __name__ == "__main__":
    main()
