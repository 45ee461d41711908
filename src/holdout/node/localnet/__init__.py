"""A whole network on one machine, liars included."""
