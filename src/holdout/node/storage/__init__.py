"""What outlives a crash, and how it is checked.

store           the store: one SQLite file, and blobs as files named by their digest
folder_lock     one process at a time in a node's folder
retention       how long it keeps things, and what it takes
store_recovery  opening it when the node starts, or noticing that it was lost
succession      a network that goes on where another ended
audit           reading it from outside, also while the node runs: verify and export
"""
