"""The addresses of remote repositories."""

from __future__ import annotations

import hashlib
from pathlib import Path
from urllib.parse import urlsplit

SCHEMES = ("s3", "gs", "az", "http", "https")


def is_remote(address: str) -> bool:
    """Whether `address` is that of a remote repository, and not a folder's."""
    scheme, separator, _ = address.partition("://")
    return bool(separator) and scheme.isalnum()


def check_remote(address: str) -> str:
    """`address` as it is used, without a slash at the end.

    Raises ValueError where nothing can be there, or where it carries what belongs nowhere near a
    log: a password or a signature.
    """
    try:
        parts = urlsplit(address)
        host = parts.hostname
    except ValueError:
        host = None
    if not host or not address.isprintable() or " " in address:
        raise ValueError("must be a folder, or an address such as s3://bucket/models")
    if parts.scheme not in SCHEMES:
        known = ", ".join(f"{scheme}://" for scheme in SCHEMES)
        raise ValueError(f"must be a folder, or an address that starts with one of {known}")
    if parts.username is not None or parts.query or parts.fragment:
        raise ValueError(
            "must have no user, password, '?' or '#' in its address; credentials are read from the "
            "environment, such as AWS_ACCESS_KEY_ID"
        )
    return address.rstrip("/")


def mirror_folder(cache: Path, address: str) -> Path:
    """Where in the cache folder the repository at `address` is kept: one folder for each."""
    digest = hashlib.sha256(address.encode()).hexdigest()[:16]
    return cache / "remote" / f"{urlsplit(address).scheme}-{digest}"
