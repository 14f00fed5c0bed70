"""Language models in `cohort check`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from cohort.onnx_engine import VersionOpener
    from cohort.registry import EngineDescription, Source
    from cohort.scheduling import RunQueue
    from cohort.session import Signature


def is_language_model(path: Path) -> bool:
    """Return True if a version's file is opened as a language model."""
    from cohort.generative.factory import is_plain_decoder
    from cohort.repository import GENAI_FILE

    return path.name == GENAI_FILE or is_plain_decoder(path)


def describe_language_model(
    opener: VersionOpener, source: Source
) -> tuple[Signature, EngineDescription]:
    """Open a language model as the server does; return its inputs, outputs and description.

    Raises LoadFailed.
    """
    from cohort.generative.factory import GenerativeEngines
    from cohort.session import CancellationToken

    opened = GenerativeEngines(wake=_ignore, opener=opener).open(source, CancellationToken())
    try:
        return opened.signature, opened.describe()
    finally:
        opened.close()


def _ignore(queue: RunQueue) -> None:
    """Do nothing: no request is queued."""
