"""Plan the replicas that a rate of requests needs, from a model's profile.

A queueing model gives the answer; a simulation checks it, and covers shared runs.
"""

from cohort.planning.planner import Plan, Unreachable, Wanted, plan_replicas
from cohort.planning.queueing import Queue
from cohort.planning.server import ReplicaRuns, UnreadableProfile, read_profile
from cohort.planning.simulation import simulate

__all__ = [
    "Plan",
    "Queue",
    "ReplicaRuns",
    "Unreachable",
    "UnreadableProfile",
    "Wanted",
    "plan_replicas",
    "read_profile",
    "simulate",
]
