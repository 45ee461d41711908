"""HoldOut SGD: federated learning in which a committee of voters throws poisoned updates out.

This file stays bare, so that the voting core can be imported without torch. Start at
`holdout.experiments` (run an experiment) or `holdout.voting` (the algorithm's heart).
"""

__version__ = "0.1.0"
