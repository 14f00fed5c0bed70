"""The operator's files of keys: those of callers, of an issuer, and of who may publish."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from cohort.auth import ADMIN, Issuer, KeyRing, KeyWatcher, VerifyingKeys, load_keys
from cohort.registry import Registry
from cohort.repository import Trust, TrustedKeys, load_trusted_keys
from cohort.settings import Settings


def issuer_of(settings: Settings) -> Issuer | None:
    """The issuer of the tokens by which callers may be known; None: there is none."""
    if settings.jwt_issuer is None or settings.jwt_audience is None:
        return None
    return Issuer(settings.jwt_issuer, settings.jwt_audience)


def watch_keys(settings: Settings, keys: KeyRing) -> list[KeyWatcher[Any]]:
    """What keeps `keys` in step with the operator's files."""
    watchers: list[KeyWatcher[Any]] = []
    if settings.api_keys is not None:
        reserved = "" if settings.admin_token is None else ADMIN
        load = partial(load_keys, reserved=reserved)
        watchers.append(KeyWatcher(settings.api_keys, "API keys", load=load, follow=keys.follow))
    if settings.jwks is not None:
        watchers.append(KeyWatcher(settings.jwks, "JWKS", load=_load_jwks, follow=keys.trust))
    return watchers


def watch_trust(
    settings: Settings, registry: Callable[[], Registry]
) -> tuple[Trust | None, list[KeyWatcher[Any]]]:
    """The keys of which one must have signed a version, and what keeps them in step.

    registry: Returns what serves by them.

    None and nothing where nobody must have signed.
    """
    if settings.trusted_keys is None:
        return None, []
    trust = Trust()

    def follow(keys: TrustedKeys) -> None:
        trust.follow(keys)
        registry().follow_trust()

    title = "trusted keys"
    return trust, [KeyWatcher(settings.trusted_keys, title, load=load_trusted_keys, follow=follow)]


def _load_jwks(path: Path) -> VerifyingKeys:
    from cohort.auth.jwks import load_jwks  # noqa: PLC0415 - PyJWT and OpenSSL take 0.1 s

    return load_jwks(path)
