"""Language models, as commands describe them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cohort.onnx_engine import VersionOpener
    from cohort.registry import EngineDescription, Source, TextDescription
    from cohort.session import Signature


def open_and_describe(
    source: Source, opener: VersionOpener
) -> tuple[Signature, EngineDescription, TextDescription]:
    """Open a language model, describe it, and close it. Raises LoadFailed."""
    from cohort.generative.factory import GenerativeEngines
    from cohort.session import CancellationToken

    engines = GenerativeEngines(wake=lambda queue: None, opener=opener)
    opened = engines.open(source, CancellationToken())
    try:
        return opened.signature, opened.describe(), opened.text
    finally:
        opened.close()


def in_words(text: TextDescription) -> str:
    """Return what a language model is, in a sentence."""
    kind = "it chats" if text.chats else "without a chat template, it continues texts"
    return (
        f"language model, {kind}: at most {text.context_length} tokens of a prompt and its answer; "
        f"its cache takes at most {text.cache_bytes / 2**20:.3g} MiB"
    )
