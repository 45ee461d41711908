"""Data sets by name (`datasets.load`) and who holds which rows (`partition.partition`).

Importing anything here reads no file and opens no connection.
"""
