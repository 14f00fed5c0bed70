"""Makes the engines of versions that are language models."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from cohort.errors import LoadFailed
from cohort.extras import how_to_install
from cohort.generative.config import is_decoder
from cohort.generative.events import GenerationEvent, GenerationState, MakeObserver
from cohort.onnx_engine import VersionOpener
from cohort.registry import EngineFactory, OpenedVersion, Source
from cohort.registry.wrapping import FactoryAround
from cohort.repository import GENAI_FILE
from cohort.scheduling import RunQueue
from cohort.session import CancellationToken, read_signature

if TYPE_CHECKING:
    from cohort.generative.opening import OpenedLanguageModel

PACKAGES = ("jinja2", "llguidance")
"""Packages of the extra `generative`."""


def uncounted(
    model: str, version: str, state: Callable[[], GenerationState]
) -> Callable[[GenerationEvent], None]:
    """Make an observer that ignores all events."""
    del model, version, state
    return lambda event: None


def is_plain_decoder(path: Path) -> bool:
    """Return True for an ONNX file that is a decoder with a cache, next to a tokenizer.json."""
    try:
        if not (path.parent / "tokenizer.json").is_file():
            return False
        found = read_signature(path)
    except OSError:
        return False
    if found is None:
        return False
    return is_decoder([one.name for one in found.inputs], [one.name for one in found.outputs])


def is_language_model(path: Path) -> bool:
    """Return True if a version with this file is a language model."""
    return path.name == GENAI_FILE or is_plain_decoder(path)


class GenerativeEngines:
    """Opens `genai_config.json` with a decoder. Implements `EngineFactory`.

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

    def open(self, source: Source, token: CancellationToken) -> OpenedLanguageModel:
        """See `EngineFactory`. Raises LoadFailed if the extra's packages are missing."""
        if missing := [name for name in PACKAGES if find_spec(name) is None]:
            raise LoadFailed(
                f"language models need packages that are not installed ({', '.join(missing)}): "
                f"{how_to_install('generative')}"
            )
        try:
            from cohort.generative.opening import open_language_model  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise LoadFailed(f"a package of language models cannot be imported: {error}") from error
        return open_language_model(source, self._opener, token, self._wake, self._count)

    def check_engines(self) -> None:
        """Do nothing: steps are not profiled."""

    def rest(self) -> None:
        """Do nothing: the ONNX engines end the inspector's processes."""

    def close(self) -> None:
        """Do nothing: there is no background work."""


class PlainDecoders(FactoryAround):
    """Opens decoders without a `genai_config.json` as language models. Implements `EngineFactory`.

    engines: Opens all other models.
    generative: Opens the decoders.
    """

    def __init__(self, engines: EngineFactory, generative: GenerativeEngines) -> None:
        super().__init__(engines)
        self._generative = generative

    def open(self, source: Source, token: CancellationToken) -> OpenedVersion:
        """See `EngineFactory`."""
        engines = self._generative if is_plain_decoder(source.path) else self._engines
        return engines.open(source, token)
