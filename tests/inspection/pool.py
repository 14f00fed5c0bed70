"""Processes that open models, shared by tests."""

from __future__ import annotations

from pathlib import Path

from cohort.system.jobs import JobProcess, bare_environment


class Pool:
    """Keeps processes that have nothing to do for the next test: one starts for half a second.

    keeps: Whether a process that is closed is kept.
    """

    def __init__(self) -> None:
        self.idle: list[JobProcess] = []
        self.keeps = False

    def take(self) -> JobProcess:
        """A process: one that is kept, or a new one."""
        return self.idle.pop() if self.idle else PooledProcess(self)

    def close(self) -> None:
        """End all processes."""
        self.keeps = False
        for process in self.idle:
            process.close()


class PooledProcess(JobProcess):
    """A process that `pool` keeps instead of ending it, while it keeps any."""

    def __init__(self, pool: Pool) -> None:
        super().__init__("tests", environment=bare_environment(), cwd=Path("/"))
        self._pool = pool

    def close(self) -> None:
        if self._pool.keeps:
            self._pool.idle.append(self)
        else:
            super().close()
