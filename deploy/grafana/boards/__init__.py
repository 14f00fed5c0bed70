"""The five dashboards."""

from deploy.grafana.boards.capacity import CAPACITY
from deploy.grafana.boards.language_models import LANGUAGE_MODELS
from deploy.grafana.boards.model import MODEL
from deploy.grafana.boards.rollout import ROLLOUT
from deploy.grafana.boards.service import SERVICE

__all__ = ["BOARDS"]

BOARDS = (SERVICE, MODEL, LANGUAGE_MODELS, ROLLOUT, CAPACITY)
