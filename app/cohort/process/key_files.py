"""The operator's files of keys: for callers, for an issuer, and for publishers."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from cohort.auth import ADMIN, Issuer, KeyRing, KeyWatcher, VerifyingKeys, load_keys
from cohort.registry import Registry
from cohort.repository import Trust, TrustedKeys, load_trusted_keys
from cohort.settings import Settings


def issuer_of(settings: Settings) -> Issuer | None:
    """Return the issuer of callers' tokens; None if tokens are not configured."""
    if settings.jwt_issuer is None or settings.jwt_audience is None:
        return None
    return Issuer(settings.jwt_issuer, settings.jwt_audience)


def watch_keys(settings: Settings, keys: KeyRing) -> list[KeyWatcher[Any]]:
    """Return watchers that update `keys` from the operator's files."""
    watchers: list[KeyWatcher[Any]] = []
    if settings.api_keys is not None:
        reserved = "" if settings.admin_token is None else ADMIN
        load = partial(load_keys, reserved=reserved)
        watchers.append(KeyWatcher(settings.api_keys, "API keys", load=load, follow=keys.follow))
    if settings.jwks is not None:
        watchers.append(KeyWatcher(settings.jwks, "JWKS", load=_load_jwks, follow=keys.trust))
    return watchers


def watch_trust(path: Path, trust: Trust, registry: Registry) -> KeyWatcher[Any]:
    """Return a watcher that updates the trusted keys from a file, and notifies the registry.

    trust: The keys.
    registry: Ends versions without a trusted signature.
    """

    def follow(keys: TrustedKeys) -> None:
        trust.follow(keys)
        registry.follow_trust()

    return KeyWatcher(path, "trusted keys", load=load_trusted_keys, follow=follow)


def _load_jwks(path: Path) -> VerifyingKeys:
    from cohort.auth.jwks import load_jwks  # noqa: PLC0415 - PyJWT and OpenSSL take 0.1 s

    return load_jwks(path)
