"""`cohort rollout`: how traffic is split between versions of a model."""

from app.cli.rollout_commands.commands import rollout

__all__ = ["rollout"]
