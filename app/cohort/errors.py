"""Every error of Cohort, as one tree; each API maps them to its own statuses::

    CohortError
    ├── InvalidInput
    │   ├── RunRefused       callers see an InvalidInput
    │   ├── TooLarge
    │   └── UnsupportedMedia
    ├── Unauthorized
    ├── Forbidden
    ├── NotFound
    │   ├── ModelNotFound
    │   └── VersionNotFound
    ├── MethodNotAllowed
    ├── SequenceEnded        the state of a sequence is gone
    ├── AlreadyLoaded        SageMaker's routes: the name is taken
    ├── OutOfMemory          SageMaker's routes: the model does not fit
    ├── Overloaded
    ├── NotReady
    │   └── NotLoaded        the request waits until the model is loaded
    ├── DeadlineExceeded
    ├── InferenceFailed
    ├── Cancelled            the client disconnected or cancelled; not sent
    ├── ConfigInvalid        for operators, never sent to a caller
    ├── RemoteFailed         for operators: a remote repository failed
    └── LoadFailed           for operators; in NotReady and `/models`
        ├── MembersUnfit     a version does not fit the versions that it uses
        └── Untrusted        in cohort.repository: a version is not signed by a trusted key

Messages for callers contain no path, address or internal name of the machine.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from itertools import islice
from traceback import clear_frames

MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
"""The names that a model may have."""


class CohortError(Exception):
    """An error that Cohort reports; `str(error)` is a message for people.

    `log_context` holds the model, version and variant of the request, for the log. It is empty
    before they are chosen.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message
        self.log_context: Mapping[str, str] = {}

    @property
    def code(self) -> str:
        """The error's public name, the same in every API and in the metrics."""
        return type(self).__name__

    def __str__(self) -> str:
        return self.message

    @property
    def redacted(self) -> str:
        """The message without values that a caller sent, for a log."""
        return _GOT_VALUE.sub("got …", self.message)


_GOT_VALUE = re.compile(r"\bgot (?!shape).*", re.DOTALL)


class InvalidInput(CohortError):
    """The request is malformed or does not fit the model.

    parameter: The field of the request that is wrong; default "": not one field alone.
    reason: The kind of the fault, as a word for programs; default "": none.
    """

    def __init__(self, message: str, parameter: str = "", reason: str = "") -> None:
        super().__init__(message)
        self.parameter = parameter
        self.reason = reason


class RunRefused(InvalidInput):
    """The runtime rejected, in the run, an input that fits the model's specs.

    The fault may be the caller's or the model's, as with an index out of range. The caller gets an
    InvalidInput; rollouts and metrics count it apart from input that was rejected before the run.
    """

    @property
    def code(self) -> str:
        """The code of any other invalid input."""
        return InvalidInput.__name__


class TooLarge(InvalidInput):
    """The request is larger than the server accepts."""


class UnsupportedMedia(InvalidInput):
    """The server does not support the content type or encoding."""


class Unauthorized(CohortError):
    """A key is required, and it is missing, wrong, or sent several times with different values."""


class Forbidden(CohortError):
    """The key is not an operator's, the route is disabled, or the host is not the server's."""


class NotFound(CohortError):
    """The path does not exist, or the thing that it names."""


class ModelNotFound(NotFound):
    """The model does not exist. `known` are the names of those that do, for the message."""

    def __init__(self, model: str, known: Iterable[str] = ()) -> None:
        self.model = model
        hint = did_you_mean(model, known) if MODEL_NAME.fullmatch(model) else f"; {MODEL_NAME_RULE}"
        super().__init__(f"model {quoted(model)} not found{hint}")


MODEL_NAME_RULE = (
    "a name has at most 128 letters, digits, '.', '_' and '-', and starts with a letter or digit"
)


def check_model_name(name: str) -> None:
    """Raise ModelNotFound if `name` cannot be a model's name, before any look-up."""
    if not MODEL_NAME.fullmatch(name):
        raise ModelNotFound(name)


class VersionNotFound(NotFound):
    """The model exists, the version does not. `known` are its versions, for the message."""

    def __init__(self, model: str, version: str, known: Iterable[int] = ()) -> None:
        self.model, self.version = model, version
        super().__init__(
            f"version {quoted(version)} of model {quoted(model)} not found{available(known)}"
        )


class MethodNotAllowed(CohortError):
    """The path exists, but not with this method. `allow` lists its methods: `GET, HEAD`."""

    def __init__(self, message: str, *, allow: str) -> None:
        super().__init__(message)
        self.allow = allow


class SequenceEnded(CohortError):
    """The state of a sequence is gone, because the model's version changed."""


class AlreadyLoaded(CohortError):
    """A model of this name is loaded already."""


class OutOfMemory(CohortError):
    """A model cannot be loaded until another one is unloaded."""


class Overloaded(CohortError):
    """A queue or the process is full. Retry after `retry_after` seconds; default 1."""

    def __init__(self, message: str, *, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class NotReady(CohortError):
    """The model is loading, unavailable or draining. Retry after `retry_after` seconds; default 1.

    `retry_after` is None if a retry cannot help: the model waits for other files, or an operator.
    """

    def __init__(self, message: str, *, retry_after: float | None = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class NotLoaded(NotReady):
    """The model is loaded on demand, and is loading now."""

    def __init__(self, model: str) -> None:
        super().__init__(f"model {quoted(model)} is being loaded, because it was asked for")
        self.model = model


class DeadlineExceeded(CohortError):
    """The request took longer than `timeout` seconds, set by the caller or the model's config."""

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        milliseconds = timeout * 1000
        text = f"{milliseconds:g}" if milliseconds < 1e6 else f"{milliseconds:.0f}"
        super().__init__(f"no response within {text} ms")


class InferenceFailed(CohortError):
    """The run of the model failed.

    `blames_input` is True if the input may be the cause, so that retrying a failed batch in parts
    may help. It is False after a termination, out-of-memory or a device error. `device_lost` is
    True if this process cannot use the device again.
    """

    def __init__(
        self, message: str, *, blames_input: bool = True, device_lost: bool = False
    ) -> None:
        super().__init__(message)
        self.blames_input = blames_input
        self.device_lost = device_lost


class Cancelled(CohortError):
    """The client disconnected or cancelled before the response."""


class ConfigInvalid(CohortError):
    """A key of an operator's file is invalid: `file`, the path of the key, and the problem."""

    def __init__(self, file: str, key: str, problem: str) -> None:
        self.file, self.key, self.problem = file, key, problem
        super().__init__(": ".join(part for part in (file, key, problem) if part))


class RemoteFailed(CohortError):
    """A remote repository is unreachable, rejects the request, or has unexpected content."""


class LoadFailed(CohortError):
    """A version cannot be loaded; the message is for the operator.

    `transient` is True if the same files may load later.
    """

    def __init__(self, message: str, *, transient: bool = False) -> None:
        super().__init__(message)
        self.transient = transient


class MembersUnfit(LoadFailed):
    """A version that uses other versions does not fit them as they are now.

    `needs` has all of them: a model and a version, None for its default one. `missing` has the
    models that do not serve.
    """

    def __init__(
        self,
        message: str,
        *,
        needs: Collection[tuple[str, int | None]],
        missing: Collection[str] = (),
    ) -> None:
        super().__init__(message)
        self.needs = frozenset(needs)
        self.missing = missing


def forget_locals(error: BaseException | None) -> None:
    """Release the frames of an error that was reported.

    They hold messages that no memory budget counts, and often the error: a reference cycle.
    """
    while error is not None:
        clear_frames(error.__traceback__)
        error.__traceback__ = None
        error = error.__context__


def quoted(name: str, limit: int = 80) -> str:
    """Quote a name from a request on one line, and cut it after `limit` characters."""
    return repr(shortened(name, limit))


def shortened(text: str, limit: int = 80) -> str:
    """Cut `text` from a request after `limit` characters."""
    return text if len(text) <= limit else text[:limit] + "…"


def printable(text: str, limit: int = 80) -> str:
    """Prepare `text` from a request for the log: cut it at `limit` and escape controls."""
    cut = shortened(text, limit)
    return cut if cut.isprintable() else cut.encode("unicode_escape").decode()


MAX_LISTED = 8

MAX_COMPARED = 100_000
"""Maximum cost of a suggestion: the length squared times the known names, each unit 40 ns."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Suggest a close name, as `; did you mean 'iris'?`; else list the names if few.

    If a long name or many known ones make the comparison slow, there is no suggestion.
    """
    names = sorted(known)
    cheap = len(name) ** 2 * len(names) <= MAX_COMPARED
    if cheap and (close := get_close_matches(name, names, n=1)):
        return f"; did you mean {quoted(close[0])}?"
    return available(names) if len(names) <= MAX_LISTED else ""


def quoted_names(names: Iterable[str]) -> str:
    """Join names in their order, as `'x', 'y'`; only the first eight."""
    first = [quoted(name) for name in islice(names, MAX_LISTED + 1)]
    more = ", …" if len(first) > MAX_LISTED else ""
    return f"{', '.join(first[:MAX_LISTED])}{more}" or "none"


def available(names: Iterable[str] | Iterable[int]) -> str:
    """List names, sorted, as `; available: digits, iris`; only the first eight."""
    texts = [str(name) for name in sorted(names)]
    more = ", …" if len(texts) > MAX_LISTED else ""
    return f"; available: {', '.join(texts[:MAX_LISTED])}{more}" if texts else ""
