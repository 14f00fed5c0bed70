"""The port for processing around a model: before its inputs are queued and after its run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Protocol

from cohort.batching import Outputs
from cohort.errors import Cancelled, DeadlineExceeded
from cohort.tensors import Arrays, TensorSpec


class Watch:
    """A check that long work calls: it raises if the request was cancelled or is late.

    It may be called on any thread.

    deadline: Seconds on the monotonic clock.
    timeout: The time limit of the request in seconds, for the message; None: unknown.
    left: True if the client disconnected.
    """

    __slots__ = ("deadline", "left", "timeout")

    def __init__(self, deadline: float, timeout: float | None) -> None:
        self.deadline = deadline
        self.timeout = timeout
        self.left = False

    def __call__(self) -> None:
        """Raise Cancelled if the client disconnected, or DeadlineExceeded after the deadline."""
        if self.left:
            raise Cancelled("the client disconnected or cancelled")
        if monotonic() >= self.deadline:
            raise self.late()

    @property
    def seconds(self) -> float:
        """The seconds until the deadline; infinite without one."""
        return max(self.deadline - monotonic(), 0.0)

    def late(self) -> DeadlineExceeded:
        """Return the error for a caller whose deadline has passed."""
        return DeadlineExceeded(self.timeout or 0.0)


class Around(Protocol):
    """Processing around a model. All methods except `close` may be called on any thread.

    inputs, optional, outputs: The specs for callers.
    prepares: True if `prepare` changes inputs.
    finishes: True if `finish` changes outputs.
    by_request: True if the result of a row may depend on other rows. Each request is then
        finished alone.
    description: The conversion of each input in sentences, by input name.
    count_tokens: Counts the ids of a request's inputs, as `TokenCounter` does; None if the
        only input is not texts [N].
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

    @property
    def count_tokens(self) -> Callable[[Arrays, Callable[[], None]], int] | None: ...

    def is_short(self, inputs: Arrays) -> bool:
        """Return True if `prepare` takes less than 0.1 ms."""

    def prepared_bytes(self, inputs: Arrays, watch: Watch) -> int:
        """Return the maximum bytes that `prepare` needs. Raises InvalidInput."""

    def prepare(self, inputs: Arrays, watch: Watch) -> Arrays:
        """Convert the inputs from a caller to inputs of the model. Raises a CohortError."""

    def finishes_at_once(self, outputs: Outputs) -> bool:
        """Return True if `finish` takes less than 0.1 ms."""

    def finish(self, outputs: Outputs, watch: Watch) -> Outputs:
        """Convert the model's outputs to outputs for callers. Raises a CohortError."""

    def answer(self, inputs: Arrays | None, outputs: Outputs | None) -> Outputs | None:
        """Return the outputs for `example`, made from the model's outputs for `inputs`.

        Returns None if they are unknown.
        """

    def example(self, inputs: Arrays | None) -> Arrays | None:
        """Return inputs that a caller may send, made from an example of the model's inputs.

        Returns None if no example is known.
        """

    def close(self) -> None:
        """Free all resources."""
