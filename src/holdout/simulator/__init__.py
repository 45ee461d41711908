"""The protocol's simulator: whole networks in virtual time, with faults and lies from a seed.

Start with `trial`, which founds a network, runs one seed and judges it; its parts are

- `faults`: the plan of what goes wrong, drawn from the seed
- `network`: the virtual clock, and the links that delay, lose and duplicate messages
- `cluster`: all workers on that network, and what they share to save time
- `nodes`, `storage`: one worker, that is a player and its driver; its disk, memory and fetching
- `toy_learners`: what a worker learns with, and a stand-in that needs no data
- `adversaries`, `adversaries_agreement`: what Byzantine workers do
- `checkers`, `checkers_blocks`: the invariants, and a second opinion on every committed block
- `trace`: what happened, line by line

`docs/simulation.md` explains runs, faults, behaviours and invariants. `holdout simulate` is
`holdout.experiments.simulate`; `holdout.federation` runs real learning on the same cluster.
"""
