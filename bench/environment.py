"""Lets the benchmark's environment see ours: `python -m bench.environment FOLDER`, run by ours."""

import sys
import sysconfig
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main(environment: str) -> None:
    """Add our packages, our source and the stand-ins to what that environment imports from.

    And Flower's commands to its own: a deployment looks for them beside the interpreter.
    """
    (target,) = Path(environment).glob("lib/python*/site-packages")
    ours = [sysconfig.get_path("purelib"), HERE.parent / "src", HERE / "stand_ins"]
    (target / "holdout.pth").write_text("\n".join(map(str, ours)) + "\n", encoding="utf-8")
    for command in Path(sysconfig.get_path("scripts")).glob("fl*"):
        link = Path(environment) / "bin" / command.name
        link.unlink(missing_ok=True)
        link.symlink_to(command)


if __name__ == "__main__":
    main(*sys.argv[1:])
