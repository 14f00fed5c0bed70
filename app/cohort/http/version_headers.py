"""The headers of a response whose body has no room for the version that answered."""

from __future__ import annotations

from collections.abc import Mapping


def version_headers(version: str, variant: str, media: str) -> Mapping[str, str]:
    """The headers: the media type, the version, and the variant where it is not ""."""
    headers = {"content-type": media, "x-model-version": version}
    return {**headers, "x-variant": variant} if variant else headers
