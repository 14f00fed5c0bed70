"""Load the private key that signs versions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from cohort.system.kept_files import read_small
from cohort_prepare.failures import Misused

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

MAX_KEY_BYTES = 64 << 10


def load_signing_key(path: Path, passphrase: Callable[[], str]) -> Ed25519PrivateKey:
    """Read an Ed25519 key in PEM; `passphrase` is called only if the key is encrypted.

    Raises Misused if the file is not such a key, or the passphrase is wrong.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        pem = read_small(path, MAX_KEY_BYTES).encode()
    except OSError as error:
        raise Misused(f"{path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise Misused(f"{path} is not a private key in PEM") from error
    secret = passphrase().encode() if b"ENCRYPTED" in pem else None
    try:
        key = load_pem_private_key(pem, secret)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        wrong = "is not a private key in PEM" if secret is None else "cannot be decrypted: is the "
        raise Misused(f"{path} {wrong}{'' if secret is None else 'passphrase correct?'}") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise Misused(
            f"{path} is not an Ed25519 key: create one with 'openssl genpkey -algorithm ed25519'"
        )
    return key
