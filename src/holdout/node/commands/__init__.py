"""The commands `holdout node ...`, `holdout network ...` and `holdout localnet`.

Parsing and printing only. What is slow to import is imported by the command that needs it.
"""

import argparse

from holdout.node.commands import localnet_command, network_commands, node_commands


def add_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the parsers; each sets `run` to the function that does the work."""
    node_commands.add_node(commands)
    network_commands.add_network(commands)
    localnet_command.add_localnet(commands)
