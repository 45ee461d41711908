"""A real network: one process a worker, Zenoh between them, everything that must last on disk.

`service` drives the agreement core; `transport` and `gossip` carry its messages; `store` keeps what
must not be forgotten; `learner` runs the member's own `Worker` in a process of its own. Nothing
here is imported by the rest of the package.
"""
