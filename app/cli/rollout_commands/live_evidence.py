"""The evidence of a rollout, from a running server."""

from __future__ import annotations

import json
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import urlopen

TIMEOUT_SECONDS = 5.0


class EvidenceUnavailable(Exception):
    """A sentence on why a server gave no evidence."""


def fetch_evidence(url: str, model: str) -> dict[str, Any]:
    """Fetch the rollout of `model`, as the server at `url` describes it.

    Raises EvidenceUnavailable.
    """
    if not url.startswith(("http://", "https://")):
        raise EvidenceUnavailable(f"--url must start with http:// or https://, got {url!r}")
    try:
        address = f"{url.rstrip('/')}/models/{quote(model)}"
        with urlopen(address, timeout=TIMEOUT_SECONDS) as response:  # noqa: S310 - http or https, see above
            described = json.load(response)
    except HTTPError as error:
        raise EvidenceUnavailable(f"{url} responded {error.code} for model {model!r}") from None
    except (URLError, HTTPException, OSError, ValueError) as error:
        raise EvidenceUnavailable(
            f"{url} cannot be reached: {getattr(error, 'reason', error)}"
        ) from None
    found = described.get("rollout") if isinstance(described, dict) else None
    if not isinstance(found, dict):
        raise EvidenceUnavailable(f"{url} has no rollout of {model!r}: does it use the same file?")
    return found
