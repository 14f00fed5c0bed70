"""Run mutated model files in a child process, and count the outcomes: `make fuzz-models`."""
