"""The server: `HoldOut` in place of `FedAvg`, with another strategy inside it if you like."""

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAdam, FedAvgM

from flower_batchnorm import task
from holdout.flower import HoldOut

app = ServerApp()
INNERS = {
    "none": lambda: None,
    "fedadam": lambda: FedAdam(eta=0.02, beta_1=0.9, beta_2=0.99),
    "fedavgm": lambda: FedAvgM(server_momentum=0.5),
}


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds and print the accuracy after each."""
    config = context.run_config
    strategy = HoldOut(
        num_proposers=int(config["num-proposers"]),
        num_voters=int(config["num-voters"]),
        inner=INNERS[str(config["inner"])](),
        fraction_evaluate=0.0,
        seed=int(config["seed"]),
    )
    model = task.make_model(seed=int(config["seed"]))
    result = strategy.start(
        grid,
        ArrayRecord(model.state_dict()),
        num_rounds=int(config["num-server-rounds"]),
        evaluate_fn=evaluate,
    )
    for number, metrics in result.evaluate_metrics_serverapp.items():
        print(f"  round {number:2}: accuracy {metrics['accuracy']:.3f}")


def evaluate(_server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Accuracy on images that no client holds."""
    model = task.make_model()
    model.load_state_dict(arrays.to_torch_state_dict())
    return MetricRecord({"accuracy": task.accuracy(model)})
