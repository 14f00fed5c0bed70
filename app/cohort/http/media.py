"""What bodies are, by the headers that come with them."""

from __future__ import annotations

from cohort.codec.npy import NPY
from cohort.errors import UnsupportedMedia, quoted
from cohort.serving import Headers

TEXT = "text/plain"
"""JSON where it begins so, and else text."""

JSON_MEDIA = frozenset(
    {
        "application/json",
        "application/x-www-form-urlencoded",  # what `curl -d` says unless told otherwise
        "text/json",
        TEXT,
        "",
    }
)
"""Media types of bodies that are JSON, besides those that end in +json."""

FORM = "multipart/form-data"


def media_type(headers: Headers) -> str:
    """The media type of a body, in lower case and without parameters; "" where none was sent."""
    return (headers.get("content-type") or "").partition(";")[0].strip().lower()


def is_json(media: str) -> bool:
    """Whether bodies of a media type are read as JSON."""
    return media in JSON_MEDIA or media.endswith("+json")


def asks_for_npy(headers: Headers) -> bool:
    """Whether the response is to be a .npy file, before anything else."""
    return (headers.get("accept") or "").partition(",")[0].strip().lower() == NPY


def is_plain(headers: Headers) -> bool:
    """Whether both request and response are certainly JSON, as those of coalesced requests are."""
    media = media_type(headers)
    return media != TEXT and is_json(media) and not asks_for_npy(headers)


def check_json(headers: Headers) -> None:
    """Raise UnsupportedMedia for a body that is certainly not JSON."""
    media = media_type(headers)
    if not is_json(media) and media != "application/octet-stream":
        raise UnsupportedMedia(f"this route takes application/json, not {quoted(media)}")
