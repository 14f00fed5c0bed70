"""Media types of request and response bodies, read from their headers."""

from __future__ import annotations

from cohort.codec.npy import NPY
from cohort.errors import UnsupportedMedia, quoted
from cohort.serving import Headers

TEXT = "text/plain"
"""JSON if the body begins as JSON, otherwise text."""

JSON_MEDIA = frozenset(
    {
        "application/json",
        "application/x-www-form-urlencoded",  # the default of `curl -d`
        "text/json",
        TEXT,
        "",
    }
)
"""Media types that are read as JSON, in addition to those that end in +json."""

FORM = "multipart/form-data"


def media_type(headers: Headers) -> str:
    """Return the body's media type in lower case, without parameters; "" if it was not sent."""
    return (headers.get("content-type") or "").partition(";")[0].strip().lower()


def is_json(media: str) -> bool:
    """Return True if bodies of this media type are read as JSON."""
    return media in JSON_MEDIA or media.endswith("+json")


def asks_for_npy(headers: Headers) -> bool:
    """Return True if .npy is the first media type that the client accepts."""
    return (headers.get("accept") or "").partition(",")[0].strip().lower() == NPY


def is_plain(headers: Headers) -> bool:
    """Return True if request and response are both JSON. Only such requests are coalesced."""
    return is_json(media_type(headers)) and not asks_for_npy(headers)


def check_json(headers: Headers) -> None:
    """Raise UnsupportedMedia for a body that cannot be JSON."""
    media = media_type(headers)
    if not is_json(media) and media != "application/octet-stream":
        raise UnsupportedMedia(f"this route accepts application/json, not {quoted(media)}")
