"""Learning rounds in one process: simulated workers, liars among them, with a server or without."""
