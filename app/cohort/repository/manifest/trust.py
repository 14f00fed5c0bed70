"""The public keys of trusted publishers, named by COHORT_TRUSTED_KEYS."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from cohort.errors import LoadFailed, quoted
from cohort.repository.manifest.signature import (
    SIGNATURE_FILE,
    SIGNED_PREFIX,
    fingerprint_of,
    read_signature_file,
)
from cohort.repository.yaml_files import ConfigProblems, Problem
from cohort.system.kept_files import read_small

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

KEYS_SETTING = "COHORT_TRUSTED_KEYS"

MAX_KEY_FILE_BYTES = 64 << 10
MAX_KEY_FILES = 1000

PEM = re.compile(rb"-----BEGIN [A-Z0-9 ]+-----.*?-----END [A-Z0-9 ]+-----", re.DOTALL)


TrustedKeys = Mapping[str, "Ed25519PublicKey"]
"""Public keys by fingerprint."""


class Untrusted(LoadFailed):
    """A version is not signed by a key that the operator trusts."""


class Trust:
    """The current trusted keys: only versions signed by one of them may serve.

    keys: The keys; default None: not read yet, and no version may serve.
    """

    def __init__(self, keys: TrustedKeys | None = None) -> None:
        self.keys = keys

    def follow(self, keys: TrustedKeys) -> None:
        """Replace the trusted keys with these."""
        self.keys = keys

    def trusts(self, signer: str) -> bool:
        """Return True if a trusted key has this fingerprint."""
        return self.keys is not None and signer in self.keys

    def find_signer(self, folder: Path, manifest: bytes | None) -> str:
        """Return the fingerprint of the key that signed the manifest of the version in `folder`.

        manifest: The manifest's bytes; None: no manifest.

        Raises Untrusted, with a sentence for the operator, if no trusted key signed it.
        """
        from cryptography.exceptions import InvalidSignature

        if self.keys is None:
            raise Untrusted(f"the keys of {KEYS_SETTING} could not be read yet")
        if manifest is None:
            raise Untrusted(
                f"it has no manifest.json, and {KEYS_SETTING} lets only signed versions serve; "
                "publish it with 'cohort publish --sign'"
            )
        try:
            found = read_signature_file(folder)
        except LoadFailed as error:
            raise Untrusted(str(error)) from error
        if found is None:
            raise Untrusted(
                f"it is not signed ({SIGNATURE_FILE} is missing), and {KEYS_SETTING} lets only "
                "signed versions serve; publish it with 'cohort publish --sign'"
            )
        key = self.keys.get(found.key)
        if key is None:
            raise Untrusted(
                f"it is signed by a key that {KEYS_SETTING} does not have: "
                f"{quoted(found.key[:12])}; it has {self._shown()}"
            )
        try:
            key.verify(found.signature, SIGNED_PREFIX + manifest)
        except InvalidSignature:
            raise Untrusted(
                "its manifest.json is not the one that was signed, or its signature is damaged; "
                "publish the model again"
            ) from None
        return found.key

    def _shown(self) -> str:
        return ", ".join(key[:12] for key in list(self.keys or ())[:5]) or "none"


def load_trusted_keys(path: Path) -> TrustedKeys:
    """Read public keys, by fingerprint, from a PEM file or every `.pem` of a folder.

    Raises ConfigProblems if a key is unreadable, private or not Ed25519.
    """
    try:
        files = _files(path)
    except OSError as error:
        raise _invalid(path, _reason(error)) from None
    keys: dict[str, Ed25519PublicKey] = {}
    for file in files:
        try:
            found = PEM.findall(read_small(file, MAX_KEY_FILE_BYTES).encode())
        except OSError as error:
            raise _invalid(file, _reason(error)) from None
        except ValueError as error:  # not a regular file, too large, or not text
            raise _invalid(file, f"is not a PEM file: {error}") from None
        if not found:
            raise _invalid(file, "has no key in PEM (-----BEGIN PUBLIC KEY-----)")
        for pem in found:
            key = _read_key(file, pem)
            keys[fingerprint_of(key)] = key
    return keys


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = sorted(one for one in path.iterdir() if one.suffix == ".pem" and one.name[0] != ".")
    if not files:
        raise _invalid(path, "has no .pem file, so no publisher would be trusted")
    if len(files) > MAX_KEY_FILES:
        raise _invalid(path, f"has {len(files)} keys; at most {MAX_KEY_FILES} are read")
    return files


def _read_key(file: Path, pem: bytes) -> Ed25519PublicKey:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    if b"PRIVATE KEY" in pem[:64]:
        advice = "openssl pkey -in FILE -pubout writes its public one"
        raise _invalid(file, f"holds a private key, which only the publisher may have; {advice}")
    try:
        key = load_pem_public_key(pem)
    except (ValueError, UnsupportedAlgorithm):
        raise _invalid(file, "is not a public key in PEM format") from None
    if not isinstance(key, Ed25519PublicKey):
        raise _invalid(file, "is not an Ed25519 key")
    return key


def _reason(error: OSError) -> str:
    return f"cannot be read: {error.strerror or error}"


def _invalid(file: Path, sentence: str) -> ConfigProblems:
    return ConfigProblems([Problem(file.name, KEYS_SETTING, sentence)])
