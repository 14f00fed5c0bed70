"""Reading of the certificate, its key, and the CA certificates for clients."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Self

from cohort.repository import ConfigProblems, Problem, read_text

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
    from cryptography.x509 import Certificate

MAX_BYTES = 2**20
"""Maximum size of a file. Bundles of public authorities are a quarter of it."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The paths of PEM files.

    certificate: The server's certificate, followed by its issuers except the root.
    key: The certificate's private key, without a password.
    client_ca: CA certificates used to verify clients. Default None: no client certificates.
    """

    certificate: Path
    key: Path
    client_ca: Path | None = None

    @classmethod
    def of(cls, certificate: Path | None, key: Path | None, client_ca: Path | None) -> Self | None:
        """Return the files in the settings, or None if they are not set."""
        return None if certificate is None or key is None else cls(certificate, key, client_ca)

    @property
    def all(self) -> tuple[Path, ...]:
        """Return the paths that are set."""
        return tuple(path for path in (self.certificate, self.key, self.client_ca) if path)


@dataclass(frozen=True, slots=True)
class Tls:
    """The TLS configuration of handshakes.

    context: For HTTP.
    grpc: For gRPC over HTTP/2. If client certificates are used, every connection needs one.
    begins, expires: Validity of the server's certificate.
    """

    context: ssl.SSLContext
    grpc: ssl.SSLContext
    begins: datetime
    expires: datetime

    def untimely(self, now: datetime) -> str:
        """Return why clients reject the certificate at `now`, or ""."""
        if now >= self.expires:
            return f"expired at {self.expires:%Y-%m-%d %H:%M} UTC; clients reject it"
        if now < self.begins:
            return f"is not valid before {self.begins:%Y-%m-%d %H:%M} UTC; clients reject it"
        return ""


def load_tls(files: TlsFiles) -> Tls:
    """Read the files. Raises ConfigProblems that describe the fault of a file."""
    certificate, key = _read(files.certificate), _read(files.key)
    leaf = _certificates(certificate, files.certificate)[0]
    if leaf.public_key() != _private_key(key, files.key).public_key():
        raise _problem(files.key, f"is not the key of the certificate in {files.certificate.name}")
    client_ca = None
    if files.client_ca is not None:
        client_ca = _read(files.client_ca)
        _certificates(client_ca, files.client_ca)
    # Over HTTP, the need for a certificate is decided for each request.
    context = _context(files, client_ca, "http/1.1", ssl.CERT_OPTIONAL)
    grpc = _context(files, client_ca, "h2", ssl.CERT_REQUIRED)
    return Tls(context, grpc, leaf.not_valid_before_utc, leaf.not_valid_after_utc)


def _context(
    files: TlsFiles, client_ca: str | None, protocol: str, verify: ssl.VerifyMode
) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols([protocol])
    path = files.certificate
    try:
        context.load_cert_chain(files.certificate, files.key, password="")
        if files.client_ca is not None and client_ca is not None:
            path = files.client_ca
            context.verify_mode = verify
            context.load_verify_locations(cadata=client_ca)
    except OSError as error:  # from OpenSSL: a key that is too short, or an incomplete file
        reason = getattr(error, "reason", None) or error.strerror
        raise _problem(path, f"was rejected by OpenSSL: {reason}") from None
    return context


def _read(path: Path) -> str:
    text = read_text(path, path.name, most=MAX_BYTES)
    if text is None:
        raise _problem(path, "is missing")
    return text


def _certificates(text: str, path: Path) -> Sequence[Certificate]:
    from cryptography.x509 import load_pem_x509_certificates

    try:
        return load_pem_x509_certificates(text.encode())
    except ValueError:
        raise _problem(path, "does not contain a valid PEM certificate") from None


def _private_key(text: str, path: Path) -> PrivateKeyTypes:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        return load_pem_private_key(text.encode(), None)
    except TypeError:
        reason = (
            "is encrypted with a password, which is not supported; remove it with 'openssl pkey'"
        )
    except (ValueError, UnsupportedAlgorithm):
        reason = "does not contain a valid PEM private key"
    raise _problem(path, reason)


def _problem(path: Path, sentence: str) -> ConfigProblems:
    return ConfigProblems([Problem(path.name, "", sentence)])
