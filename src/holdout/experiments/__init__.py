"""Experiments: a config in; curves, tables and figures out.

From a config and custom code to what will be run:

    plugins, resolve_names, rule_parameters   what the config names, and custom code as objects
    sizes_fit, memory, plan, rule_trial       what fits the data and the machine; the plan, tried

Running it, resumable after any round:

    runner, parallel                          one curve after the other, or several at once
    opened_run, code_record, checkpoints, curve_files   the run folder: what it holds, what is kept
    watchers, trackers, first_error           who is told of each round, and of what went wrong

What came out, for people:

    curves, run_notes, headlines              the final table, reasons to doubt it, the sentence
    report, report_charts, charts, figures    the page and the pictures
    vote_map, holders, judges, heterogeneity_report, agreement_table   parts of the page
    results_csv                               the rounds as a table

Commands of their own:

    reproduce, simulate                       `holdout reproduce`, `holdout simulate`
    sizes, coverage_plan, catalogue           `holdout plan`, with `--coverage`; `holdout list`

This file imports nothing, so that `holdout plan` needs no torch.
"""
