"""Experiments: a config in, curves, tables and figures out.

    from holdout.experiments.runner import run

    result = run({"data": {"name": "mnist-5k", "samples_per_worker": 400}, ...})
    print(result.accuracy("holdout"))

This file imports nothing, so that `holdout plan` needs no torch.
"""
