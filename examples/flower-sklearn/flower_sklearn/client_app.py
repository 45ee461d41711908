"""The client: logistic regression by scikit-learn. It knows nothing of HoldOut, torch or votes."""

from functools import cache

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier

app = ClientApp()
CLASSES = np.arange(10)
TEST_ROWS = 300
FLIP = 10.0


@cache
def digits() -> tuple[np.ndarray, np.ndarray]:
    """1,797 digits of 64 pixels that come with scikit-learn, always in the same order."""
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    return x[order] / 16.0, y[order]


def own_digits(context: Context) -> tuple[np.ndarray, np.ndarray]:
    """The digits of the client's partition."""
    number, count = (int(context.node_config[k]) for k in ("partition-id", "num-partitions"))
    x, y = digits()
    return x[TEST_ROWS:][number::count], y[TEST_ROWS:][number::count]


def model_of(arrays: ArrayRecord) -> SGDClassifier:
    """A classifier with these weights."""
    model = SGDClassifier(loss="log_loss", alpha=1e-4, eta0=0.05, learning_rate="constant")
    model.classes_ = CLASSES
    model.coef_, model.intercept_ = (array.copy() for array in arrays.to_numpy_ndarrays())
    return model


@app.train()
def train(message: Message, context: Context) -> Message:
    """Three passes over the client's own digits."""
    x, y = own_digits(context)
    arrays = message.content["arrays"]
    model = model_of(arrays)
    for _ in range(3):
        model.partial_fit(x, y, classes=CLASSES)
    trained = [model.coef_, model.intercept_]
    if int(context.node_config["partition-id"]) < int(context.run_config["byzantine-nodes"]):
        pairs = zip(arrays.to_numpy_ndarrays(), trained, strict=True)
        trained = [w - FLIP * (t - w) for w, t in pairs]
    metrics = MetricRecord({"num-examples": len(x)})
    content = RecordDict({"arrays": ArrayRecord(trained), "metrics": metrics})
    return Message(content, reply_to=message)
