"""Make faults in the code one at a time, and report which no test notices: `make mutants`."""
