"""Run a server under load, changes and faults drawn from a seed: `make soak`."""
