"""The protocol's simulator: many players on one simulated network, faults and lies from a seed."""
