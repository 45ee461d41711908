"""Sweeps: one config with lists in place of values; heat maps of the worst attack out.

    grid, sweep_file   axes, contenders and what to do with them; reading them from a file
    curve_keys      which curve is which: the hash of all that decides its bytes
    planning, estimates   every curve of a sweep, which combinations do not fit, how long it takes
    curve_store     curves that are done, shared by all sweeps; those that are under way
    worker, workforce   curves run in processes of their own
    choosing        hyper-parameters, by the worst attack on seeds of their own
    cells           what came out: the worst attack of each cell, the best rule, the spread
    heatmap, page, tables   the same as pictures, as a page, as tables
    byzfl_config, byzfl_names, byzfl_reading, byzfl_models   a config of ByzFL's as a sweep
    runner          all of it in order: `holdout.sweep`

This file imports nothing, so that `holdout --help` needs no torch.
"""
