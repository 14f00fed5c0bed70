"""Checks of requests that failed or took long: their result on the other side of a rollout."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from time import monotonic

from cohort.codec import encode_tensor
from cohort.errors import CohortError, DeadlineExceeded, InferenceFailed, InvalidInput, TooLarge
from cohort.registry import Cancellable
from cohort.rollouts.observed import CallerOutcome
from cohort.rollouts.shadow import THREAD_FROM_BYTES
from cohort.rollouts.side_queue import CatalogSource, SideQueue
from cohort.tensors import Array, Arrays, by_name, held_bytes

MAX_PENDING_CHECKS = 16
"""Failed requests that may wait to be checked on a version; further ones are not checked."""

MIN_TRY_SECONDS = 1.0
"""Minimum time limit of a check for a request that took long, since it may wait for its turn."""

Timed = Callable[[float | None], None]
"""Called once with the seconds of the other version's run; None if they are not known."""

Checked = Callable[[bool | None], None]
"""Called once with True if the other version fails as well; None if that is not known."""


class FailureChecks:
    """Runs the inputs of failed requests on other versions of a model, after their callers' errors.

    model: The model's name.
    catalog: Returns the catalog of loaded versions.
    """

    def __init__(self, model: str, catalog: CatalogSource) -> None:
        self._model = model
        self._catalog = catalog
        self._side_queues: dict[int, SideQueue] = {}

    def check(self, outcome: CallerOutcome, version: int, checked: Checked) -> None:
        """Run a failed request on `version`, and report whether that also fails for its caller."""

        def replied(answer: Arrays | None, error: CohortError | None) -> None:
            if answer is not None:
                _compare(outcome, answer, checked)
            elif isinstance(error, DeadlineExceeded):
                checked(True if isinstance(outcome.error, DeadlineExceeded) else None)
            else:
                checked(True if isinstance(error, InferenceFailed | InvalidInput) else None)

        try:
            self._side_queue(version).submit(outcome.arrays, replied)
        except InvalidInput as error:
            replied(None, error)
        except CohortError:
            checked(None)  # no room, or the other version is not ready

    def time(self, outcome: CallerOutcome, version: int, timed: Timed) -> None:
        """Run a request that took long on `version`, and report its time there."""
        began, queued = monotonic(), list[Cancellable]()

        def replied(answer: Arrays | None, error: CohortError | None) -> None:
            del error
            times = queued[0].times if queued else None
            run = monotonic() - began if times is None else times[1]
            timed(None if answer is None else run)

        try:
            seconds = max(outcome.seconds, MIN_TRY_SECONDS)
            queue = self._side_queue(version)
            queued.append(queue.submit(outcome.arrays, replied, seconds=seconds))
        except CohortError:
            timed(None)

    def keep(self, versions: Collection[int]) -> None:
        """Cancel waiting checks of versions that are not in `versions`."""
        for version in self._side_queues.keys() - set(versions):
            self._side_queues.pop(version).close()

    def _side_queue(self, version: int) -> SideQueue:
        if version not in self._side_queues:
            self._side_queues[version] = SideQueue(
                self._catalog, self._model, version, max_requests=MAX_PENDING_CHECKS, shadow=False
            )
        return self._side_queues[version]


def _compare(outcome: CallerOutcome, answer: Arrays, checked: Checked) -> None:
    """Report whether an answer could not be sent either; large answers are checked on a thread."""
    if outcome.outputs is None:
        checked(False)
        return
    failed = by_name(outcome.specs, outcome.outputs)
    size = sum(map(held_bytes, answer.values()))
    if isinstance(outcome.error, TooLarge):
        checked(size >= sum(map(held_bytes, failed.values())))
        return
    if size < THREAD_FROM_BYTES:
        checked(_share_unwritable(failed, answer))
        return
    looking = asyncio.get_running_loop().run_in_executor(None, _share_unwritable, failed, answer)

    def done(found: asyncio.Future[bool]) -> None:
        checked(None if found.cancelled() or found.exception() is not None else found.result())

    looking.add_done_callback(done)


def _share_unwritable(failed: Mapping[str, Array], answer: Mapping[str, Array]) -> bool:
    """Return True if JSON can write an output neither of `failed` nor of `answer`."""
    return any(
        name in answer and not _is_writable(array) and not _is_writable(answer[name])
        for name, array in failed.items()
    )


def _is_writable(array: Array) -> bool:
    try:
        encode_tensor("", array)
    except InferenceFailed:
        return False
    return True
