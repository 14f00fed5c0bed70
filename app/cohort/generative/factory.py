"""Makes the engines of versions that are language models."""

from __future__ import annotations

from collections.abc import Callable

from cohort.errors import LoadFailed
from cohort.generative.config import GENAI_FILE
from cohort.generative.events import GenerationEvent, GenerationState, MakeObserver
from cohort.onnx_engine import VersionOpener
from cohort.registry import OpenedVersion, Source
from cohort.scheduling import RunQueue
from cohort.session import CancellationToken

EXTRA = "cohort[generative]"


def uncounted(
    model: str, version: str, state: Callable[[], GenerationState]
) -> Callable[[GenerationEvent], None]:
    """Make an observer that ignores all events."""
    del model, version, state
    return lambda event: None


class GenerativeEngines:
    """Opens `genai_config.json` beside a decoder. Implements `EngineFactory`.

    wake: Called with a queue that has work: `Scheduler.wake`.
    opener: Opens the decoders.
    count: Makes the observer of a version's events; default: they are not counted.
    """

    file = GENAI_FILE

    def __init__(
        self,
        *,
        wake: Callable[[RunQueue], None],
        opener: VersionOpener,
        count: MakeObserver = uncounted,
    ) -> None:
        self._wake, self._opener, self._count = wake, opener, count

    def open(self, source: Source, token: CancellationToken) -> OpenedVersion:
        """See `EngineFactory`. Raises LoadFailed if the extra's packages are missing."""
        try:
            from cohort.generative.opening import open_language_model  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise LoadFailed(
                f"language models need packages that are not installed ({error.name}): "
                f"pip install '{EXTRA}'"
            ) from error
        return open_language_model(source, self._opener, token, self._wake, self._count)

    def check_engines(self) -> None:
        """Do nothing: steps are not profiled."""

    def rest(self) -> None:
        """Do nothing: the ONNX engines end the inspector's processes."""

    def close(self) -> None:
        """Do nothing: there is no background work."""
