"""Callers: their keys, the models visible to them, and their quotas.

Only the SHA-256 of a key is stored. `parse_keys` reads the operator's file, and `KeyRing` finds the
caller of a key in constant time. A `Caller` counts its requests against its quota, and `KeyWatcher`
keeps the ring in step with the file. `Issuer` reads tokens, with the keys in the file that `jwks`
reads. That module is imported only if there is such a file.
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
