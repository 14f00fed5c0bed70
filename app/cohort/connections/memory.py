"""The memory of requests and responses, of all connections and APIs, in one budget."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

from cohort.errors import InvalidInput, Overloaded
from cohort.tensors import Array, held_bytes

SMALL_BYTES = 16 * 1024
"""Size up to which bodies and outputs are not counted. The concurrency limit bounds them."""


def count_bytes(arrays: Iterable[Array]) -> int:
    """Return the bytes of arrays; an estimate for many strings."""
    return sum([held_bytes(array) if array.dtype.hasobject else array.nbytes for array in arrays])


def count_values(arrays: Iterable[Array]) -> int:
    """Return the number of elements in arrays."""
    return sum([array.size for array in arrays])


class MemoryBudget:
    """The bytes that requests hold: received, decompressed, queued, computed or not yet sent.

    It is used on the event loop only.

    maximum: Limit in bytes. Requests and answers that would exceed it are refused. Unsent data
        counts even if it exceeds the limit; nothing more is received then.
    """

    __slots__ = ("maximum", "peak", "used")

    def __init__(self, maximum: int) -> None:
        self.maximum = maximum
        self.used = 0
        self.peak = 0  # since `take_peak`

    def check(self, count: int) -> None:
        """Raise Overloaded unless there is room for `count` more bytes."""
        if self.used + count > self.maximum:
            raise Overloaded(
                f"requests use {self.used / 2**20:.0f} MiB of the {self.maximum / 2**20:.0f} MiB "
                "allowed for them (COHORT_MEMORY_MB)"
            )

    def check_answer(self, count: int) -> None:
        """Raise Overloaded unless there is room for an answer of `count` bytes.

        An answer of more than half the budget counts as half of it, so it is sent if other requests
        leave that much. An answer larger than the whole budget raises InvalidInput.
        """
        if count > self.maximum:
            raise InvalidInput(
                f"the answer would take {count / 2**20:.0f} MiB to write, but all requests "
                f"together may use {self.maximum / 2**20:.0f} MiB (COHORT_MEMORY_MB): "
                "send fewer rows, or request binary outputs"
            )
        self.check(min(count, self.maximum // 2))

    def hold(self) -> MemoryHold:
        """Return an empty hold."""
        return MemoryHold(self)

    def take_peak(self) -> int:
        """Return the maximum that was held at once since the last call."""
        peak, self.peak = self.peak, self.used
        return peak


class MemoryHold:
    """The part of the budget that one request, or one connection's unread responses, holds."""

    __slots__ = ("_budget", "size")

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self.size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.set(0)

    def add(self, count: int) -> None:
        """Hold `count` more bytes. Raises Overloaded and then keeps its old size."""
        self._budget.check(count)
        self.set(self.size + count)

    def copy(self) -> MemoryHold:
        """Return another hold of the same size."""
        hold = MemoryHold(self._budget)
        hold.set(self.size)
        return hold

    def add_up_to(self, size: int) -> None:
        """Grow to `size` bytes. Raises Overloaded and then keeps its old size."""
        self.add(size - self.size)

    def set(self, size: int) -> None:
        """Hold `size` bytes, even without room. 0 releases all."""
        budget = self._budget
        budget.used += size - self.size
        self.size = size
        budget.peak = max(budget.peak, budget.used)
