"""Experiments: a config in; curves, tables and figures out.

    plugins, resolve_names, plan   from a config and custom code to what will be run
    runner, parallel, checkpoints  running it, resumable after any round
    curves, headlines, figures, report, agreement_table   what came out, for people
    reproduce                      the paper's figures
    sizes, simulate                `holdout plan` and `holdout simulate`

This file imports nothing, so that `holdout plan` needs no torch.
"""
