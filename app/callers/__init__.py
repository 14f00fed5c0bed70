"""Who calls: callers by their keys, what each may see, and how much each may ask for.

A key is known by its SHA-256 only. `parse_keys` reads the operator's file, `KeyRing` finds the
caller of a key in constant time, a `Caller` counts its requests against its quota, and `KeyWatcher`
keeps the ring in step with the file. `Issuer` reads tokens, by the keys in the file that `jwks`
reads; that module is imported only where there is one.
"""

from app.callers.caller import ADMIN, Caller
from app.callers.key_ring import Identity, KeyRing
from app.callers.key_watcher import KeyWatcher
from app.callers.keys import ApiKey, digest_of, load_keys, new_key, parse_keys
from app.callers.quota import TokenBucket
from app.callers.tokens import EXPIRED, Issuer, VerifyingKeys

__all__ = [
    "ADMIN",
    "EXPIRED",
    "ApiKey",
    "Caller",
    "Identity",
    "Issuer",
    "KeyRing",
    "KeyWatcher",
    "TokenBucket",
    "VerifyingKeys",
    "digest_of",
    "load_keys",
    "new_key",
    "parse_keys",
]
