"""What outlives a crash, and how it is checked.

store           the store: one SQLite file, and blobs as files named by their digest
database        opening and copying its database, and telling a copy from the original
folder_lock     one process at a time in a node's folder
retention       how long it keeps things, and what it takes
store_recovery  opening it when the node starts, or noticing that it was lost
backup          a copy of a node's folder, made while it runs
succession      a network that goes on where another ended
audit           reading it from outside, also while the node runs: verify and export
"""
