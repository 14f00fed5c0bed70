"""`cohort rollout`: the operator's hand on who gets which version."""

from app.cli.rollout_commands.commands import rollout

__all__ = ["rollout"]
