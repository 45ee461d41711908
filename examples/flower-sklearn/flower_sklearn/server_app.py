"""The server: `HoldOut` in place of `FedAvg` is the whole change."""

import numpy as np
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from flower_sklearn.client_app import CLASSES, TEST_ROWS, digits, model_of
from holdout.flower import HoldOut

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds and print the accuracy after each."""
    config = context.run_config
    strategy = HoldOut(
        num_proposers=int(config["num-proposers"]),
        num_voters=int(config["num-voters"]),
        fraction_evaluate=0.0,
        seed=int(config["seed"]),
    )
    start = ArrayRecord([np.zeros((len(CLASSES), 64)), np.zeros(len(CLASSES))])
    result = strategy.start(
        grid, start, num_rounds=int(config["num-server-rounds"]), evaluate_fn=evaluate
    )
    for number, metrics in result.evaluate_metrics_serverapp.items():
        print(f"  round {number:2}: accuracy {metrics['accuracy']:.3f}")


def evaluate(_server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Accuracy on digits that no client holds."""
    x, y = digits()
    return MetricRecord({"accuracy": model_of(arrays).score(x[:TEST_ROWS], y[:TEST_ROWS])})
