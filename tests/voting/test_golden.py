"""The vote, as scripts that a reader of the paper can check by eye."""

from pathlib import Path

import pytest
from tests import golden

from holdout.voting import Approvals, Gate, admit_approvals, cast_approvals, tally

TESTDATA = Path(__file__).parent / "testdata"


def names(ids) -> str:
    return "(" + " ".join(str(i) for i in ids) + ")"


def run(case: golden.Case) -> str:
    rows = [line.split() for line in case.lines]
    match case.command:
        case "tally":
            ballots = {
                int(v.removeprefix("v")): Approvals(tuple(map(int, ids))) for v, *ids in rows
            }
            return f"selected {names(tally(ballots, quorum=int(case.options['quorum'])))}"
        case "admit":
            sent = [(int(v), [int(i) if i.isdigit() else i for i in ids]) for v, *ids in rows]
            admitted = admit_approvals(
                sent,
                voters=[int(v) for v in case.options["voters"].split(",")],
                proposals={int(p) for p in case.options["proposals"].split(",")},
                approve_count=int(case.options["approve"]),
                full=case.options["full"] == "yes",
            )
            lines = [f"{v} valid {names(b.approved)}" for v, b in admitted.valid.items()]
            return "\n".join([*lines, *(f"{v} void: {fault}" for v, fault in admitted.void)])
        case "cast":
            gate = case.options["gate"]
            ballot = cast_approvals(
                {int(p): float(loss) for p, loss in rows},
                approve_count=int(case.options["approve"]),
                gate=None if gate == "paper" else Gate(gate),
                current_loss=float(case.options["current"]),
            )
            return f"approved {names(ballot.approved)}"
    raise AssertionError(case.command)


@pytest.mark.parametrize("script", sorted(TESTDATA.glob("*.txt")), ids=lambda path: path.stem)
def test_scripts_print_what_they_did(script, request):
    golden.check(script, run, rewrite=request.config.getoption("--rewrite"))
