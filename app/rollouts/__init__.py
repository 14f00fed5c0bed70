"""Rollouts: which version answers a caller, what becomes of it, and what is decided from that.

The operator's file says what is wanted (`apply`), the state folder what was decided (`follow`), and
a tick about every second weighs what came in (`tick`). A request asks its model's LiveRollout for a
variant and tells it, in its reply, how that went.
"""

from app.rollouts.choosing import choose, is_sampled, share
from app.rollouts.config import RolloutConfig, load_rollouts, parse_rollouts
from app.rollouts.decisions import Decision, Decisions, DecisionStore
from app.rollouts.description import shares_of
from app.rollouts.events import Compared, Dropped, Observer, Restored, RolledBack, RolloutEvent
from app.rollouts.live import LiveRollout
from app.rollouts.rollout import Rollout, Shadow, Sticky, Variant
from app.rollouts.rollouts import OPERATOR, Rollouts
from app.rollouts.sequential_test import Guard
from app.rollouts.watcher import RolloutWatcher, log_event

__all__ = [
    "OPERATOR",
    "Compared",
    "Decision",
    "DecisionStore",
    "Decisions",
    "Dropped",
    "Guard",
    "LiveRollout",
    "Observer",
    "Restored",
    "RolledBack",
    "Rollout",
    "RolloutConfig",
    "RolloutEvent",
    "RolloutWatcher",
    "Rollouts",
    "Shadow",
    "Sticky",
    "Variant",
    "choose",
    "is_sampled",
    "load_rollouts",
    "log_event",
    "parse_rollouts",
    "share",
    "shares_of",
]
