"""A real network: one process for each member, Zenoh between them, and a store for what must last.

commands    the command line: `holdout node`, `holdout network`, `holdout localnet`
localnet    a whole network on one machine, for rehearsals, with nodes that lie
runtime     one node that runs: the agreement core, driven, and the member's worker beside it
network     how messages and blobs travel between members
storage     what outlives a crash, and how it is verified
membership  keys, certificates, the genesis file, node.toml
demo        workers on the bundled digits
logs        the node's log

Each knows only those below it; `network` and `storage` do not know each other.
"""
