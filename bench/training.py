"""One round of training with a baseline rule, against ByzFL's Client, Server and RobustAggregator.

The same data, model, batch size and number of proposers on both sides; nobody lies, nobody votes.
"""

import importlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from bench import memory, peers
from bench.measure import Row, seconds
from bench.simulated import rounds
from holdout.data.datasets import Dataset, load
from holdout.experiments.plugins import Plugins
from holdout.learning.models import lenet5

PROPOSERS = 30
RULES = {"mean": "Average", "trimmed-mean": "TrMean", "krum": "Krum", "median": "Median"}
SIZES = {"mlp": (83, 2000), "lenet5": (256, 1000)}
"""The paper's batches, and samples of a worker."""
TARGET = 5.0


def rows() -> list[Row]:
    """MNIST's and CIFAR-10's networks, in the paper's batch sizes."""
    found = []
    for model, (batch, _) in SIZES.items():
        for rule in RULES:
            times = seconds({who: prepare(who, model, rule) for who in WAYS}, repetitions=5)
            ours, byzfl = (memory.of(__name__, w, model, rule) for w in WAYS)
            name = f"training round, {PROPOSERS} x {batch} {model}, {rule} / ByzFL"
            note = f"memory: {ours}, ByzFL {byzfl}"
            found.append(Row(name, times["ByzFL"] / times["ours"], TARGET, note))
    return found


def prepare(who: str, model: str, rule: str) -> Callable[[], object]:
    """One round, in the simulation or in ByzFL."""
    return WAYS[who](model, _data(model), rule, *SIZES[model])


def _data(model: str) -> Dataset:
    if model == "mlp":
        return load("mnist-5k")
    generator = torch.Generator().manual_seed(0)
    return Dataset(
        "images",
        torch.randn(4000, 3, 32, 32, generator=generator),
        torch.randint(0, 10, (4000,), generator=generator),
        torch.randn(100, 3, 32, 32, generator=generator),
        torch.randint(0, 10, (100,), generator=generator),
        10,
    )


def _ours(model: str, data: Dataset, rule: str, batch: int, samples: int) -> Callable[[], object]:
    config = {
        "experiment": {
            "rules": [rule],
            "baseline": False,
            "rounds": 10**6,
            "evaluate_every": 10**6,
        },
        "data": {"normalise": False, "samples_per_worker": samples},
        "model": {"name": model},
        "training": {"batch_size": batch},
        "federation": {
            "workers": PROPOSERS + 1,
            "proposers": PROPOSERS,
            "voters": 1,
            "byzantine": 0,
        },
        "vote": {"samples": samples},
        "attack": {"name": "none"},
    }
    return rounds(config, Plugins(data=data))


def _byzfl(model: str, data: Dataset, rule: str, batch: int, samples: int) -> Callable[[], object]:
    byzfl = importlib.import_module("byzfl")
    models = importlib.import_module("byzfl.fed_framework.models")
    # ByzFL looks its models up in a module of its own; its network for MNIST is the paper's.
    vars(models)["lenet5"] = lambda: lenet5((3, 32, 32), 10)
    common: dict[str, Any] = {
        "model_name": {"mlp": "fc_mnist"}.get(model, model),
        "device": "cpu",
        "optimizer_name": "SGD",
        "learning_rate": 0.1,
        "weight_decay": 0.0,
        "milestones": [],
        "learning_rate_decay": 1.0,
    }
    loss = "NLLLoss" if model == "mlp" else "CrossEntropyLoss"
    generator = torch.Generator().manual_seed(0)

    def loader(x: Tensor, y: Tensor) -> DataLoader[Any]:
        return DataLoader(TensorDataset(x, y), batch_size=batch, shuffle=True)

    clients = []
    for _ in range(PROPOSERS):
        held = torch.randperm(len(data.y_train), generator=generator)[:samples]
        settings = {
            "loss_name": loss,
            "LabelFlipping": False,
            "training_dataloader": loader(data.x_train[held], data.y_train[held]),
            "momentum": 0.0,
            "nb_labels": 10,
            "store_per_client_metrics": False,
        }
        clients.append(byzfl.Client(common | settings))
    told = {"f": peers.F} if rule in {"krum", "trimmed-mean"} else {}
    server = byzfl.Server(
        common
        | {
            "test_loader": loader(data.x_test, data.y_test),
            "aggregator_info": {"name": RULES[rule], "parameters": told},
            "pre_agg_list": [],
        }
    )

    def round_() -> None:
        for client in clients:
            client.compute_gradients()
        server.update_model_with_gradients(
            [client.get_flat_gradients_with_momentum() for client in clients]
        )
        now = server.get_dict_parameters()
        for client in clients:
            client.set_model_state(now)

    return round_


WAYS: Mapping[str, Callable[[str, Dataset, str, int, int], Callable[[], object]]] = (
    MappingProxyType({"ours": _ours, "ByzFL": _byzfl})
)
