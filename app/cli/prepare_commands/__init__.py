"""The commands that prepare a model; each is added to `cohort` in `app.cli`."""
