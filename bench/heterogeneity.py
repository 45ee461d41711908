"""What measuring heterogeneity costs: `python -m bench.heterogeneity`, in the paper's MNIST sizes.

G^2 and B^2 are measured in evaluated rounds alone; who can judge which class is counted once a run.
What is told is processor time on one thread, so it does not depend on what else the machine does.
"""

import time
from collections.abc import Sequence
from statistics import median
from typing import Any

from torch import Tensor

from bench.rounds import WARM_UP, as_large_as_mnist
from bench.simulated import rounds
from holdout.experiments.judges import judges_fields
from holdout.experiments.plan import make_plan
from holdout.experiments.plugins import Plugins
from holdout.federation import central
from holdout.rounds import RoundRecord

MEASURED = 5
STEP = "with_dissimilarity"


def main() -> None:
    """Print a row for each rule, and what the count takes."""
    data = as_large_as_mnist()
    measure, spent = getattr(central, STEP), list[float]()

    def timed(record: RoundRecord, honest: Sequence[Tensor]) -> RoundRecord:
        started = time.process_time()
        found: RoundRecord = measure(record, honest)
        spent.append(time.process_time() - started)
        return found

    setattr(central, STEP, timed)
    experiment: dict[str, Any] = {"baseline": False, "evaluate_every": 1, "threads": 1}
    for rule in ("mean", "trimmed-mean", "krum", "holdout"):
        config = {"experiment": {**experiment, "rules": [rule]}}
        next_round = rounds(config, Plugins(data=data))
        for _ in range(WARM_UP):
            next_round()
        spent.clear()
        whole = []
        for _ in range(MEASURED):
            started = time.process_time()
            next_round()
            whole.append(time.process_time() - started)
        took, of = median(spent), median(whole)
        print(
            f"{rule}: {1e3 * took:.1f} ms of {1e3 * of:.0f} ms in an evaluated round, "
            f"{took / of:.1%}"
        )
    for partition in ("iid", "dirichlet"):
        values = {"experiment": experiment | {"rules": ["mean"]}, "data": {"partition": partition}}
        plan = make_plan(values, Plugins(data=data))
        started = time.process_time()
        judges_fields(plan.config, plan.dataset)
        print(f"who can judge, {partition}: {time.process_time() - started:.2f} s a seed")


if __name__ == "__main__":
    main()
