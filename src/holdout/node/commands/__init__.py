"""The commands `holdout node ...`, `holdout network ...` and `holdout localnet`.

Parsing and printing only. What is slow to import is imported by the command that needs it.
"""

import argparse

from holdout.node.commands.localnet_command import add_localnet
from holdout.node.commands.network_commands import add_network
from holdout.node.commands.node_commands import add_node


def add_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the parsers; each sets `run` to the function that does the work."""
    add_node(commands)
    add_network(commands)
    add_localnet(commands)
