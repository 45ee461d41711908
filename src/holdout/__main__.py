"""`python -m holdout` and the command `holdout`."""

import sys

from holdout.cli import run_command


def main() -> None:
    """Run the command line and exit with its code."""
    sys.exit(run_command(sys.argv[1:]))


if __name__ == "__main__":
    main()
