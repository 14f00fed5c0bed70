"""Certificates for tests, made as they are needed."""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from uuid import uuid4

import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


def issue(
    ca: trustme.CA, *names: x509.GeneralName, common: Sequence[str] = (), days: float = 1
) -> tuple[bytes, bytes]:
    """Make a certificate with these names, and give it and its key in PEM.

    days: Days until it expires; negative: days since it expired.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    until = datetime.now(UTC) + timedelta(days=days)
    attributes = [x509.NameAttribute(x509.NameOID.COMMON_NAME, name) for name in common]
    issuer = x509.load_pem_x509_certificate(ca.cert_pem.bytes())
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name(attributes))
        .issuer_name(issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(until - timedelta(days=100))
        .not_valid_after(until)
    )
    if names:
        alternative = x509.SubjectAlternativeName(names)
        builder = builder.add_extension(alternative, critical=False)
    issuing = serialization.load_pem_private_key(ca.private_key_pem.bytes(), None)
    assert isinstance(issuing, ec.EllipticCurvePrivateKey)
    certificate = builder.sign(issuing, hashes.SHA256())
    return (
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    )


def trusting(ca: trustme.CA, folder: Path, *client: bytes) -> ssl.SSLContext:
    """Return a client context that trusts servers certified by `ca`.

    `client`: its certificate and key.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    ca.configure_trust(context)
    if client:
        path = folder / f"{uuid4()}.pem"
        path.write_bytes(b"".join(client))
        context.load_cert_chain(path)
    return context


def serve_with(ca: trustme.CA, folder: Path) -> Mapping[str, Path]:
    """Write a certificate for a server on this machine, and give the settings that name it."""
    certificate, key = issue(ca, x509.IPAddress(ip_address("127.0.0.1")), x509.DNSName("localhost"))
    files = {"tls_cert": folder / "tls.crt", "tls_key": folder / "tls.key"}
    replace(files["tls_key"], key)
    replace(files["tls_cert"], certificate)
    return files


def replace(path: Path, data: bytes) -> None:
    """Replace a file in one step, so that no reader sees half of it."""
    new = path.with_name(f"{path.name}.new")
    new.write_bytes(data)
    new.rename(path)
