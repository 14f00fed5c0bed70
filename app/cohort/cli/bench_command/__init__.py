"""`cohort bench`."""

from cohort.cli.bench_command.command import bench

__all__ = ["bench"]
