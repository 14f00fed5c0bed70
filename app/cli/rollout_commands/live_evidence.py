"""Asking a running server how a rollout goes."""

from __future__ import annotations

import json
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import urlopen

SECONDS = 5.0


class Unanswered(Exception):
    """A sentence on why there is no evidence."""


def ask(url: str, model: str) -> dict[str, Any]:
    """The rollout as the server describes it. Raises Unanswered."""
    if not url.startswith(("http://", "https://")):
        raise Unanswered(f"--url must begin with http:// or https://, not {url!r}")
    try:
        address = f"{url.rstrip('/')}/models/{quote(model)}"
        with urlopen(address, timeout=SECONDS) as answer:  # noqa: S310 - http or https, see above
            described = json.load(answer)
    except HTTPError as error:
        raise Unanswered(f"{url} answers {error.code} for model {model!r}") from None
    except (URLError, HTTPException, OSError, ValueError) as error:
        raise Unanswered(f"{url} gives no answer: {getattr(error, 'reason', error)}") from None
    found = described.get("rollout") if isinstance(described, dict) else None
    if not isinstance(found, dict):
        raise Unanswered(f"{url} has no rollout of {model!r}: does it watch the same file?")
    return found
