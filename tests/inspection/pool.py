"""Processes that open models, shared by tests."""

from __future__ import annotations

from cohort.inspection.child import Child


class Pool:
    """Keeps children that have nothing to do for the next test: one starts for half a second.

    keeps: Whether a child that is closed is kept.
    """

    def __init__(self) -> None:
        self.idle: list[Child] = []
        self.keeps = False

    def take(self) -> Child:
        """A child: one that is kept, or a new one."""
        return self.idle.pop() if self.idle else PooledChild(self)

    def close(self) -> None:
        """End all children."""
        self.keeps = False
        for child in self.idle:
            child.close()


class PooledChild(Child):
    """A child that `pool` keeps instead of ending it, while it keeps any."""

    def __init__(self, pool: Pool) -> None:
        super().__init__()
        self._pool = pool

    def close(self) -> None:
        if self._pool.keeps:
            self._pool.idle.append(self)
        else:
            super().close()
