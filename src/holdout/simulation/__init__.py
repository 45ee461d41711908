"""The central variant in one process: many simulated workers, some of them liars, one server."""
