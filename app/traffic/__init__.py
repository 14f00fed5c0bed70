"""Live rollouts: who gets which version, what becomes of it, and what is decided.

The operator's file says what is wanted (`apply`), the state folder what was decided (`follow`), and
a tick about every second weighs what came in (`tick`). A request asks its model's LiveRollout for a
variant and tells it, in its reply, how that went.
"""

from app.traffic.describing import shares_of
from app.traffic.events import Compared, Dropped, Observer, Restored, RolledBack, TrafficEvent
from app.traffic.live import LiveRollout
from app.traffic.traffic import OPERATOR, Traffic

__all__ = [
    "OPERATOR",
    "Compared",
    "Dropped",
    "LiveRollout",
    "Observer",
    "Restored",
    "RolledBack",
    "Traffic",
    "TrafficEvent",
    "shares_of",
]
