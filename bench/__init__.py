"""Speed as ratios within one process: `python -m bench.run`."""
