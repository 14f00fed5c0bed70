"""The memory that requests and responses hold, of all connections and APIs, within one budget."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

from cohort.errors import InvalidInput, Overloaded
from cohort.tensors import Array, held_bytes

SMALL_BYTES = 16 * 1024
"""Bodies and outputs up to this size are not counted: the concurrency limit bounds them."""


def count_bytes(arrays: Iterable[Array]) -> int:
    """The bytes of arrays; of many strings an estimate."""
    return sum([held_bytes(array) if array.dtype.hasobject else array.nbytes for array in arrays])


def count_values(arrays: Iterable[Array]) -> int:
    """The elements of arrays."""
    return sum([array.size for array in arrays])


class MemoryBudget:
    """Counts the bytes that requests hold: received, unpacked, queued, computed and not yet sent.

    Used on the event loop only.

    maximum: Bytes from which requests with more of them are refused, and answers that would be
        sent. What waits to be sent counts, though it may exceed it: then nothing more is received.
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
                f"requests hold {self.used / 2**20:.0f} MiB of the {self.maximum / 2**20:.0f} MiB "
                "that this server gives them"
            )

    def check_answer(self, count: int) -> None:
        """Raise Overloaded unless there is room for an answer of `count` bytes.

        One that is larger than half of the budget counts as half: it is sent where others leave
        that much. One that is larger than all of it raises InvalidInput.
        """
        if count > self.maximum:
            raise InvalidInput(
                f"the answer would take {count / 2**20:.0f} MiB to write, and all requests "
                f"together may hold {self.maximum / 2**20:.0f} MiB (COHORT_MEMORY_MB): "
                "send fewer rows, or ask for binary outputs"
            )
        self.check(min(count, self.maximum // 2))

    def hold(self) -> MemoryHold:
        """A hold of nothing yet."""
        return MemoryHold(self)

    def take_peak(self) -> int:
        """The most that was held at once since the last call."""
        peak, self.peak = self.peak, self.used
        return peak


class MemoryHold:
    """What one request, or one connection's unread responses, hold of the budget."""

    __slots__ = ("_budget", "size")

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self.size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.set(0)

    def add(self, count: int) -> None:
        """Hold `count` more bytes. Raises Overloaded, holding what it did before."""
        self._budget.check(count)
        self.set(self.size + count)

    def copy(self) -> MemoryHold:
        """Another hold, of as much."""
        hold = MemoryHold(self._budget)
        hold.set(self.size)
        return hold

    def add_up_to(self, size: int) -> None:
        """Hold `size` bytes, more than now. Raises Overloaded, holding what it did before."""
        self.add(size - self.size)

    def set(self, size: int) -> None:
        """Hold `size` bytes, whether there is room or not; 0 gives all of them back."""
        budget = self._budget
        budget.used += size - self.size
        self.size = size
        budget.peak = max(budget.peak, budget.used)
