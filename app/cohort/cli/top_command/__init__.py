"""`cohort top`."""

from cohort.cli.top_command.command import top

__all__ = ["top"]
