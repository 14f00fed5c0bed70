"""The four dashboards."""

from deploy.grafana.boards.capacity import CAPACITY
from deploy.grafana.boards.model import MODEL
from deploy.grafana.boards.rollout import ROLLOUT
from deploy.grafana.boards.service import SERVICE

__all__ = ["BOARDS"]

BOARDS = (SERVICE, MODEL, ROLLOUT, CAPACITY)
