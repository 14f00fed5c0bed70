"""Who calls: callers by their keys, what each may see, and how much each may ask for.

A key is known by its SHA-256 only. `parse_keys` reads the operator's file, `KeyRing` finds the
caller of a key in constant time, a `Caller` counts its requests against its quota, and `KeyWatcher`
keeps the ring in step with the file. `Issuer` reads tokens, by the keys in the file that `jwks`
reads; that module is imported only where there is one.
"""

from cohort.auth.caller import ADMIN, Caller
from cohort.auth.key_ring import Identity, KeyRing
from cohort.auth.key_watcher import KeyWatcher
from cohort.auth.keys import ApiKey, digest_of, load_keys, new_key, parse_keys
from cohort.auth.quota import TokenBucket
from cohort.auth.tokens import EXPIRED, Issuer, VerifyingKeys

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
