"""`manifest.sig`, the publisher's Ed25519 signature over `manifest.json`.

    {"format": 1, "key": "<SHA-256 of the public key>", "signature": "<base64>"}

The manifest contains the digest of every served file, so one signature covers them all. The
signature is a separate file because it covers the manifest's exact bytes. A version can so be
signed again without a change to its published files. The signed bytes begin with SIGNED_PREFIX, so
that a signature by the same key for another purpose is invalid here.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from cohort.errors import LoadFailed
from cohort.system.kept_files import read_small

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )

SIGNATURE_FILE = "manifest.sig"

SIGNED_PREFIX = b"cohort manifest 1\n"

MAX_SIGNATURE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class ManifestSignature:
    """The signature of a manifest.

    key: The fingerprint of the public key.
    signature: The 64 bytes of Ed25519.
    """

    key: str
    signature: bytes


def fingerprint_of(key: Ed25519PublicKey) -> str:
    """Return the SHA-256, in hex, of a public key's DER (`openssl pkey -outform DER`)."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()


def sign_manifest(content: bytes, key: Ed25519PrivateKey) -> bytes:
    """Sign the bytes of a manifest; return the content of its `manifest.sig`."""
    signature = key.sign(SIGNED_PREFIX + content)
    written = {
        "format": 1,
        "key": fingerprint_of(key.public_key()),
        "signature": b64encode(signature).decode("ascii"),
    }
    return json.dumps(written, indent=1).encode() + b"\n"


def read_signature_file(folder: Path) -> ManifestSignature | None:
    """Read the signature of the version in `folder`; None if missing. Raises LoadFailed."""
    path = folder / SIGNATURE_FILE
    try:
        match json.loads(read_small(path, MAX_SIGNATURE_BYTES)):
            case {"format": 1, "key": str(key), "signature": str(signature)}:
                return ManifestSignature(key, b64decode(signature, validate=True))
        problem = "is not a signature of format 1"
    except FileNotFoundError:
        if not path.is_symlink():
            return None
        problem = "is a broken link"
    except OSError as error:
        problem = f"cannot be read: {error.strerror}"
    except (ValueError, RecursionError):
        problem = "is not a signature, or is truncated"
    raise LoadFailed(f"{SIGNATURE_FILE} {problem}; publish the model again")
