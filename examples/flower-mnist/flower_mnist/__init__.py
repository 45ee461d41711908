"""HoldOut SGD on Flower: handwritten digits, with clients that lie if you want them to."""

import os

# Nothing here needs the internet; Flower and Ray are told so before they are imported.
for name, value in (
    ("FLWR_TELEMETRY_ENABLED", "0"),
    ("FLWR_DISABLE_UPDATE_CHECK", "1"),
    ("FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION", "1"),
    ("RAY_USAGE_STATS_ENABLED", "0"),
):
    os.environ.setdefault(name, value)
