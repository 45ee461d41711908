"""Models as flat vectors of weights: building, training, scoring."""
