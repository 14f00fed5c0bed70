"""Commands that prepare a model; `cohort.cli` adds them to `cohort`."""
