"""Addresses of remote repositories."""

from __future__ import annotations

import hashlib
from pathlib import Path
from urllib.parse import urlsplit

SCHEMES = ("s3", "gs", "az", "http", "https")


def is_remote(address: str) -> bool:
    """Return True if `address` is the address of a remote repository, and not of a folder."""
    scheme, separator, _ = address.partition("://")
    return bool(separator) and scheme.isalnum()


def anywhere(address: str) -> str:
    """Return an address that has the same meaning in any working folder: folders are absolute."""
    return address if is_remote(address) else str(Path(address).absolute())


def check_remote(address: str) -> str:
    """Return `address` without a slash at the end.

    Raises ValueError if the address is invalid, or contains a secret that must not be logged: a
    password or a signature.
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
    """Return the cache subfolder for the repository at `address`: one folder per address."""
    digest = hashlib.sha256(address.encode()).hexdigest()[:16]
    return cache / "remote" / f"{urlsplit(address).scheme}-{digest}"
