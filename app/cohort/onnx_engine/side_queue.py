"""An additional queue on the session of a version, next to the queue of callers' requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cohort.batching import Batcher, Reply, Ticket
from cohort.tensors import Arrays


class EngineSideQueue:
    """A side queue that uses the newest measurement of the version.

    own: Returns the batcher of callers' requests; each measurement replaces it.
    make: Makes a batcher of this queue; `single`: for requests that set optional inputs.
    required: The number of inputs of a request without optional ones.
    """

    def __init__(
        self, own: Callable[[], Batcher], make: Callable[..., Batcher], required: int
    ) -> None:
        self._own, self._make, self._required = own, make, required
        self._beside = own()
        self._batcher = make(single=False)
        self._single: Batcher | None = None

    def submit(self, inputs: Arrays, reply: Reply, **wanted: Any) -> Ticket:
        """See `RequestQueue`."""
        own = self._own()
        unbatched = self._batcher.policy.batches and not own.policy.batches
        if self._beside is not own or unbatched:  # the former one still runs its queue
            self._beside, self._batcher = own, self._make(single=False)
        batcher = self._batcher
        if len(inputs) > self._required:
            batcher = self._single = self._single or self._make(single=True)
        return batcher.submit(inputs, reply, **wanted)

    def close(self) -> None:
        """See `RequestQueue`."""
        self._batcher.close()
        if self._single is not None:
            self._single.close()
