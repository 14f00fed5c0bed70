"""What can go wrong, as one tree. Each face gives these its own statuses.

CohortError
├── InvalidInput
│   ├── TooLarge
│   └── UnsupportedMedia
├── Unauthorized
├── Forbidden
├── NotFound
│   ├── ModelNotFound
│   └── VersionNotFound
├── MethodNotAllowed
├── Overloaded
├── NotReady
├── DeadlineExceeded
├── InferenceFailed
├── Cancelled            the caller left: nobody is told
├── ConfigInvalid        told to the operator, never to a caller
└── LoadFailed           told to the operator, never to a caller

Sentences that reach a caller name no path, address or internal name of the machine.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches


class CohortError(Exception):
    """Anything Cohort refuses or fails at; `str(error)` is a sentence for a person."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message
        self.about: Mapping[str, str] = {}
        """The model, version and variant that were at it, for the log; empty where none was."""

    @property
    def code(self) -> str:
        """The error's public name, the same on every face and in the metrics."""
        return type(self).__name__

    def __str__(self) -> str:
        return self.message

    @property
    def redacted(self) -> str:
        """The sentence for a log: without the values that a caller sent."""
        return GOT.sub("got …", self.message)


GOT = re.compile(r"\bgot (?!shape).*", re.DOTALL)


class InvalidInput(CohortError):
    """What the caller sent cannot be understood or does not fit the model."""


class TooLarge(InvalidInput):
    """The request is larger than the server takes."""


class UnsupportedMedia(InvalidInput):
    """The content type or encoding is not one the server reads."""


class Unauthorized(CohortError):
    """The route needs a token, and none was sent."""


class Forbidden(CohortError):
    """The token is wrong, or the route is switched off."""


class NotFound(CohortError):
    """There is nothing at this address."""


class ModelNotFound(NotFound):
    """No such model; `known` helps the caller find the right name."""

    def __init__(self, model: str, known: Iterable[str] = ()) -> None:
        self.model = model
        super().__init__(f"model {quoted(model)} not found{did_you_mean(model, known)}")


class VersionNotFound(NotFound):
    """The model is here, the version is not."""

    def __init__(self, model: str, version: str, known: Iterable[int] = ()) -> None:
        self.model, self.version = model, version
        versions = ", ".join(str(known_version) for known_version in sorted(known))
        here = f"; it has {versions}" if versions else ""
        super().__init__(f"model {quoted(model)} has no version {quoted(version)}{here}")


class MethodNotAllowed(CohortError):
    """The address exists, the method does not."""


class Overloaded(CohortError):
    """A queue or the process is full; trying again after `retry_after` seconds makes sense."""

    def __init__(self, message: str, *, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class NotReady(CohortError):
    """Loading, unavailable, or closed for draining."""

    def __init__(self, message: str, *, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class DeadlineExceeded(CohortError):
    """The answer was not there in the time the caller or the model's config allows."""

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        super().__init__(f"no answer within {timeout * 1000:.0f} ms")


class InferenceFailed(CohortError):
    """The run raised.

    `blames_input` is true where another input might have passed, so that a failed batch is worth
    retrying in parts; false after a termination, out-of-memory or a device error.
    """

    def __init__(self, message: str, *, blames_input: bool = True) -> None:
        super().__init__(message)
        self.blames_input = blames_input


class Cancelled(CohortError):
    """The caller left before the answer."""


class ConfigInvalid(CohortError):
    """An operator's file is wrong: `file`, then the key's path, then what to do."""

    def __init__(self, file: str, key: str, problem: str) -> None:
        self.file, self.key, self.problem = file, key, problem
        super().__init__(": ".join(part for part in (file, key, problem) if part))


class LoadFailed(CohortError):
    """A version cannot be served; the sentence is for the operator."""


def quoted(name: str, limit: int = 80) -> str:
    """Show a caller's own word back to them: quoted, bounded, on one line."""
    return repr(name if len(name) <= limit else name[:limit] + "…")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Say `; did you mean 'iris'?`, or list what is available where nothing is close."""
    names = sorted(known)
    if close := get_close_matches(name, names, n=1):
        return f"; did you mean {quoted(close[0])}?"
    if 0 < len(names) <= 8:
        return f"; available: {', '.join(names)}"
    return ""
