"""Run each failed test once more, alone; `.ci/run` does it after `make test`."""
