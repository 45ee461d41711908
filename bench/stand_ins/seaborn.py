"""Stands in for seaborn, which ByzFL imports for figures that the benchmark does not draw."""
