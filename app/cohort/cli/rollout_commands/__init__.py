"""`cohort rollout`: how traffic is split between versions of a model."""

from cohort.cli.rollout_commands.commands import rollout

__all__ = ["rollout"]
