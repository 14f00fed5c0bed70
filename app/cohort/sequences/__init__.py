"""Models with state: a sequence of requests, each of which begins where the one before ended.

A model gives its state as an output and takes it as an input. Callers leave both out, and name
their sequence; `SequencedEngine` keeps its state between requests. Requests of one sequence run in
their order, and those of several share runs as any requests do.
"""

from cohort.sequences.counts import SequenceCounts
from cohort.sequences.engine import SequencedEngine
from cohort.sequences.factory import SequencedEngines
from cohort.sequences.state import StatePlan, make_state_plan

__all__ = ["SequenceCounts", "SequencedEngine", "SequencedEngines", "StatePlan", "make_state_plan"]
