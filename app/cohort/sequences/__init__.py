"""Models with state: each request of a sequence continues from the state of the previous one.

A model returns its state as an output and accepts it as an input. Clients omit both and name their
sequence; `SequencedEngine` keeps the state between requests. Requests of one sequence run in order.
Requests of different sequences can share a batch.
"""

from cohort.sequences.counts import SequenceCounts
from cohort.sequences.engine import SequencedEngine
from cohort.sequences.factory import SequencedEngines
from cohort.sequences.state import StatePlan, make_state_plan

__all__ = ["SequenceCounts", "SequencedEngine", "SequencedEngines", "StatePlan", "make_state_plan"]
