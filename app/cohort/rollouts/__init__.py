"""Rollouts: the choice of a version for each caller, evidence from responses, and decisions.

`rollout`, `choosing`, `sequential_test`, `units`, `latency` and `evidence` are pure. `config` reads
the operator's file, and `decisions` keeps the server's decisions. `live` is one model's rollout in
use: `observed` requests report their outcomes to it. `checks` runs failed requests on the other
side, and `shadow` has copies run and compared, both through `side_queue`. `rollouts` holds all
rollouts of a process. `watcher` follows the file and the state folder, and runs the guard about
once a second.
"""

from cohort.rollouts.config import RolloutConfig, find_misnamed, load_rollouts, parse_rollouts
from cohort.rollouts.decision_store import Decision, Decisions, DecisionStore, Recorded
from cohort.rollouts.events import (
    Compared,
    Dropped,
    RampMoved,
    Restored,
    RolledBack,
    RolloutEvent,
    RolloutObserver,
)
from cohort.rollouts.judgement import Guard
from cohort.rollouts.live import LiveRollout
from cohort.rollouts.observed import CallerOutcome, ObservedRequest
from cohort.rollouts.rollout import Rollout, Shadow, Sticky, Variant
from cohort.rollouts.rollouts import OPERATOR, LimitEvidence, Rollouts
from cohort.rollouts.side_queue import CatalogSource
from cohort.rollouts.watcher import RolloutWatcher, log_event

__all__ = [
    "OPERATOR",
    "CallerOutcome",
    "CatalogSource",
    "Compared",
    "Decision",
    "DecisionStore",
    "Decisions",
    "Dropped",
    "Guard",
    "LimitEvidence",
    "LiveRollout",
    "ObservedRequest",
    "RampMoved",
    "Recorded",
    "Restored",
    "RolledBack",
    "Rollout",
    "RolloutConfig",
    "RolloutEvent",
    "RolloutObserver",
    "RolloutWatcher",
    "Rollouts",
    "Shadow",
    "Sticky",
    "Variant",
    "find_misnamed",
    "load_rollouts",
    "log_event",
    "parse_rollouts",
]
