"""`manifest.sig`: who published a version, by an Ed25519 signature over its `manifest.json`.

    {"format": 1, "key": "<SHA-256 of the public key>", "signature": "<base64>"}

The manifest names the digest of every file that is served, so that one signature covers them all.
It is beside the manifest, since it is over that file's very bytes, and a version can be signed anew
without a change to what was published. What is signed begins with SIGNED_PREFIX: a signature that
somebody made with the same key for another purpose says nothing here.
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
    """One signature.

    key: The fingerprint of the public key.
    signature: The 64 bytes of Ed25519.
    """

    key: str
    signature: bytes


def fingerprint_of(key: Ed25519PublicKey) -> str:
    """The SHA-256 of a public key, in hex: of its DER, as `openssl pkey -outform DER` writes it."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()


def sign_manifest(content: bytes, key: Ed25519PrivateKey) -> bytes:
    """Sign the bytes of a manifest: the content of its `manifest.sig`."""
    signature = key.sign(SIGNED_PREFIX + content)
    written = {
        "format": 1,
        "key": fingerprint_of(key.public_key()),
        "signature": b64encode(signature).decode("ascii"),
    }
    return json.dumps(written, indent=1).encode() + b"\n"


def read_signature_file(folder: Path) -> ManifestSignature | None:
    """Read the signature of the version in `folder`, None where it has none. Raises LoadFailed."""
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
