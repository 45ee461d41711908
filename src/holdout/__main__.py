"""`python -m holdout` and the command `holdout`."""

import os
import sys
from contextlib import suppress
from pathlib import Path

from holdout import interrupts

# By default torch's threads keep a core busy while they wait for each other. If another process
# wants that core, both slow down tenfold and more; sleeping threads cost nothing. This must be set
# before torch is loaded, and commands load it only when they need it.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# numpy's products run on our threads; OpenBLAS's threads beside them would spin in the same way.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def main() -> None:
    """Run the command line and exit with its code."""
    interrupts.take_over()
    # Custom code may import its neighbours when it is called. Last: no file there hides a module.
    with suppress(FileNotFoundError):
        sys.path.append(str(Path.cwd()))
    try:
        # Only now, since importing takes a while, and Ctrl-C may come meanwhile.
        from holdout.commands import run_command

        code = run_command(sys.argv[1:])
        interrupts.ignore()
    except KeyboardInterrupt:
        interrupts.ignore()
        code = 130
        sys.stderr.write("holdout: stopped\n")
    sys.exit(code)


if __name__ == "__main__":
    main()
