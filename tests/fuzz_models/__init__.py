"""Mutated model files, opened and run by the process that inspects models."""
