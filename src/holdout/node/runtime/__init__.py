"""A running node: the driver around the player, its learner, its logs and its status."""
