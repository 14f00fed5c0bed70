"""The dashboards, as code: `python -m deploy.grafana` writes dashboards/*.json again."""

from deploy.grafana.board import Board, Panel, Query
from deploy.grafana.boards import BOARDS

__all__ = ["BOARDS", "Board", "Panel", "Query"]
