"""`cohort top`."""

from app.cli.top_command.command import top

__all__ = ["top"]
