"""The port of what is done around a model: before its inputs are queued, and with its outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Protocol

from cohort.batching import Outputs
from cohort.errors import Cancelled, DeadlineExceeded
from cohort.tensors import Arrays, TensorSpec


class Watch:
    """Called in long work, it raises where nobody waits for that any more. From any thread.

    deadline: Seconds on the monotonic clock.
    timeout: The limit behind the deadline in seconds, for the message; None: not known.
    left: Whether the caller left.
    """

    __slots__ = ("deadline", "left", "timeout")

    def __init__(self, deadline: float, timeout: float | None) -> None:
        self.deadline = deadline
        self.timeout = timeout
        self.left = False

    def __call__(self) -> None:
        """Raise Cancelled or DeadlineExceeded where it is over."""
        if self.left:
            raise Cancelled("the caller left")
        if monotonic() >= self.deadline:
            raise self.late()

    @property
    def seconds(self) -> float:
        """How long is left; infinite without a deadline."""
        return max(self.deadline - monotonic(), 0.0)

    def late(self) -> DeadlineExceeded:
        """What the caller gets who has waited long enough."""
        return DeadlineExceeded(self.timeout or 0.0)


class Around(Protocol):
    """What is done around a model. All but `close` may be called on any thread.

    inputs, optional, outputs: The specs as callers know them.
    prepares, finishes: Whether `prepare`, and `finish`, do anything.
    by_request: Whether a row may become another beside other rows, so that no request is finished
        together with others.
    description: What becomes of inputs, by their names, in sentences.
    """

    @property
    def inputs(self) -> Sequence[TensorSpec]: ...

    @property
    def optional(self) -> Sequence[TensorSpec]: ...

    @property
    def outputs(self) -> Sequence[TensorSpec]: ...

    @property
    def prepares(self) -> bool: ...

    @property
    def finishes(self) -> bool: ...

    @property
    def by_request(self) -> bool: ...

    @property
    def description(self) -> Mapping[str, str]: ...

    def is_short(self, inputs: Arrays) -> bool:
        """Whether `prepare` takes less than a tenth of a millisecond."""

    def prepared_bytes(self, inputs: Arrays, watch: Watch) -> int:
        """The bytes that `prepare` takes at most. Raises InvalidInput."""

    def prepare(self, inputs: Arrays, watch: Watch) -> Arrays:
        """Make the model's inputs of those that a caller sent. Raises a CohortError."""

    def finishes_at_once(self, outputs: Outputs) -> bool:
        """Whether `finish` takes less than a tenth of a millisecond."""

    def finish(self, outputs: Outputs, watch: Watch) -> Outputs:
        """Make what callers get of the model's outputs. Raises a CohortError."""

    def answer(self, inputs: Arrays | None, outputs: Outputs | None) -> Outputs | None:
        """What a caller gets for `example`, of the outputs for `inputs`; None: not known."""

    def example(self, inputs: Arrays | None) -> Arrays | None:
        """What a caller may send, by an example of the model's inputs; None: nothing is known."""

    def close(self) -> None:
        """Free what it holds."""
