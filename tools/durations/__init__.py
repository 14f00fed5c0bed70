"""Measure where the time of the tests goes, by test and by fixture: `make durations`."""
