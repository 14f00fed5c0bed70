"""The commands that prepare a model; each is added to `cohort` in `cohort.cli`."""
