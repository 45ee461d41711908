"""The server, as `FedAvg` users write it, with a choice of strategies."""

import resource
from pathlib import Path

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Strategy

from flower_mnist import task
from flower_mnist.byzantine import KINDS
from holdout.flower import HoldOut, Robust

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds and print the accuracy after each."""
    config = context.run_config
    if config["byzantine"] not in KINDS:
        # Clients would be honest, and the run would pass for one under attack.
        raise ValueError(f"byzantine = {config['byzantine']!r}: must be one of {', '.join(KINDS)}")
    model = task.make_model(seed=int(config["seed"]))
    result = make_strategy(context).start(
        grid=grid,
        initial_arrays=ArrayRecord(model.state_dict()),
        num_rounds=int(config["num-server-rounds"]),
        timeout=float(config["timeout"]),
        evaluate_fn=evaluate,
    )
    print(f"strategy {config['strategy']}, byzantine {config['byzantine']}:")
    for number, metrics in result.evaluate_metrics_serverapp.items():
        print(f"  round {number:2}: accuracy {metrics['accuracy']:.3f}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"  the server's process held at most {peak:,.0f} MiB")


def make_strategy(context: Context) -> Strategy:
    """The strategy that the run's config names."""
    config = context.run_config
    name, proposers = str(config["strategy"]), int(config["num-proposers"])
    if name == "fedavg":
        return FedAvg(fraction_train=0.01, min_train_nodes=proposers, fraction_evaluate=0.0)
    settings = {
        "num_proposers": proposers,
        "byzantine_fraction": float(config["byzantine-fraction"]),
        "propose_timeout": float(config["timeout"]),
        "fraction_evaluate": 0.0,
        "seed": int(config["seed"]),
        "run_folder": Path(str(config["run-folder"])) if config["run-folder"] else None,
        "name": "flower-mnist",
        "attack": str(config["byzantine"]),
    }
    if name not in {"holdout", "holdout-1", "holdout-paper"}:
        return Robust(rule=name, **settings)
    settings["num_voters"] = int(config["num-voters"])
    if name == "holdout":  # Joint ballots: nothing else to say, on the server or on the client.
        return HoldOut(**settings)
    return HoldOut(
        rule=name,
        vote_timeout=float(config["timeout"]),
        holdout_samples=int(config["holdout-samples"]) or None,
        # Two of five voters may lie in this example: the three others must be enough.
        min_ballots=int(config["num-voters"]) // 2 + 1,
        **settings,
    )


def evaluate(_server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Accuracy on digits that no client holds."""
    model = task.make_model()
    model.load_state_dict(arrays.to_torch_state_dict())
    loss, accuracy = task.test(model, task.digits().x_test, task.digits().y_test)
    return MetricRecord({"loss": loss, "accuracy": accuracy})
