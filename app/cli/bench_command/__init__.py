"""`cohort bench`."""

from app.cli.bench_command.command import bench

__all__ = ["bench"]
