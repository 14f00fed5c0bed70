"""Run many simulated lives of a server, each drawn from a seed: `make simulate`."""
