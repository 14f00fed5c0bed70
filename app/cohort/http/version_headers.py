"""The headers of a response whose body cannot name the version that answered."""

from __future__ import annotations

from collections.abc import Mapping


def version_headers(version: str, variant: str, media: str) -> Mapping[str, str]:
    """Return the media type, the version, and the variant unless it is ""."""
    headers = {"content-type": media, "x-model-version": version}
    return {**headers, "x-variant": variant} if variant else headers
