"""Retries of failed loads."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from time import monotonic

from cohort.errors import InferenceFailed, LoadFailed
from cohort.registry.loading import LoadTimedOut
from cohort.registry.source import Source
from cohort.session import lacks_resources, sentence

FIRST_WAIT_SECONDS = 1.0
"""Maximum wait before the second attempt; it doubles for each later attempt."""

MAX_WAIT_SECONDS = 60.0

TRANSIENT_ERRNOS = frozenset(
    {
        *(errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EHOSTDOWN),
        *(errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EBUSY, errno.EINTR),
        *(errno.ENOSPC, errno.EDQUOT, errno.ENXIO, errno.ENODEV, errno.ENOTCONN),
        *(errno.ENOENT, errno.ENOTDIR),  # it existed when the folder was scanned
    }
)
"""Errors of files and processes that may pass."""

_random = Random()  # noqa: S311 - spreads the tries of many processes


def is_transient(error: BaseException) -> bool:
    """Return True if the same files may load later, according to an error and its causes.

    Examples are a lack of memory, descriptors, threads or processes, and a failed disk or device.
    Errors in a model or its config are not transient: those wait for other files.
    """
    seen: BaseException | None = error
    while seen is not None:
        match seen:
            case LoadFailed(transient=True) | MemoryError():
                return True
            case InferenceFailed():
                return not seen.blames_input
            case OSError():
                return seen.errno in TRANSIENT_ERRNOS
        if not isinstance(seen, LoadFailed) and lacks_resources(seen):
            return True
        seen = seen.__cause__
    return False


def next_try(error: BaseException, failures: int, luck: float) -> float | None:
    """Return seconds until a failed load is tried again; None: not at all.

    error: The last failure.
    failures: The number of failures, at least 1. A load that timed out has only a second attempt,
        after the maximum wait: the machine was too busy, or the load never ends.
    luck: Between 0 and 1; spreads the attempts of many processes over half of the wait.
    """
    if isinstance(error, LoadTimedOut):
        again, longest = failures == 1, MAX_WAIT_SECONDS
    else:
        again = is_transient(error)
        longest = min(FIRST_WAIT_SECONDS * 2.0 ** min(failures - 1, 10), MAX_WAIT_SECONDS)
    return longest * (1 + luck) / 2 if again else None


@dataclass(slots=True)
class Failures:
    """The number of failed loads of a version from one source, and the timer of the next."""

    source: Source
    count: int
    timer: asyncio.TimerHandle | None = None


class Retries:
    """Reloads versions whose failure is transient.

    again: Called with the model and the number when it is time.
    """

    def __init__(self, again: Callable[[str, int], None]) -> None:
        self._again = again
        self._failures: dict[tuple[str, int], Failures] = {}

    def plan(self, model: str, number: int, source: Source, error: BaseException) -> float | None:
        """Plan the next attempt to load a failed version, if there is one.

        Returns its time, in seconds on the monotonic clock; None if the version waits for other
        files.
        """
        before = self._failures.get((model, number))
        count = before.count + 1 if before is not None and before.source == source else 1
        self.forget(model, number)
        failures = self._failures[model, number] = Failures(source, count)
        seconds = next_try(error, count, _random.random())
        if seconds is None:
            return None
        loop = asyncio.get_running_loop()
        failures.timer = loop.call_later(seconds, self._again, model, number)
        return monotonic() + seconds

    def forget(self, model: str, number: int) -> None:
        """Forget the failures of a version, and cancel its next attempt."""
        failures = self._failures.pop((model, number), None)
        if failures is not None and failures.timer is not None:
            failures.timer.cancel()


def why_failed(error: Exception) -> str:
    """Return why a load failed. Paths of this machine in other errors' texts are removed."""
    if isinstance(error, LoadFailed):
        return str(error)
    return f"{type(error).__name__}: {sentence(str(error))}"
