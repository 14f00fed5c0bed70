"""The names in a client certificate: equal over HTTP and over gRPC."""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Set
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import (
    CertificateBuilder,
    DNSName,
    GeneralName,
    IPAddress,
    Name,
    ObjectIdentifier,
    RFC822Name,
    UniformResourceIdentifier,
    UnrecognizedExtension,
    random_serial_number,
)

from cohort.http.credentials import certificate_names
from cohort.rpc.certificates import names_in_pem
from tests.certificates import issue

CA = trustme.CA()


def peer_certificate(certificate: bytes, key: bytes, folder: Path) -> Mapping[str, object] | None:
    """Return `getpeercert` of a server for a client with this certificate."""
    client, server = (
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER),
    )
    for name, pem in (("cert", certificate), ("key", key)):
        (folder / name).write_bytes(pem)
    client.load_cert_chain(folder / "cert", folder / "key")
    CA.issue_cert("server").configure_cert(server)
    for context in (client, server):
        CA.configure_trust(context)
    server.verify_mode = ssl.CERT_REQUIRED
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(down, up, server_hostname="server"),
        server.wrap_bio(up, down, server_side=True),
    )
    waiting = list(ends)
    for _ in range(5):
        for end in list(waiting):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            waiting.remove(end)
    assert not waiting
    return ends[1].getpeercert()


@pytest.mark.parametrize(
    ("names", "common", "found"),
    [
        ([DNSName("web.internal")], ["web"], {"web.internal"}),
        (
            [DNSName("a"), UniformResourceIdentifier("spiffe://b/c"), DNSName("*.d")],
            [],
            {"a", "spiffe://b/c", "*.d"},
        ),
        ([], ["Web service", "other"], {"Web service", "other"}),
        ([RFC822Name("a@b.c"), IPAddress(ip_address("10.0.0.1"))], ["web"], {"web"}),
        ([], [], set()),
        ([DNSName("web.internal\0.example")], [], {"web.internal\0.example"}),
    ],
    ids=["DNS name", "several", "common names", "neither DNS nor URI", "none", "zero byte"],
)
def test_names_are_the_same_over_both(
    names: list[GeneralName], common: list[str], found: Set[str], tmp_path: Path
) -> None:
    """DNS names and URIs as they are, or the common names of a certificate that has neither."""
    certificate, key = issue(CA, *names, common=common)
    assert certificate_names(peer_certificate(certificate, key, tmp_path)) == found
    assert names_in_pem(certificate) == found


def test_without_a_certificate_there_are_no_names() -> None:
    """No certificate differs from one without names, and from one that cannot be read."""
    assert certificate_names(None) is None
    assert certificate_names({}) is None
    assert names_in_pem(b"-----BEGIN CERTIFICATE-----\n") == frozenset()


NAMES_OID, OTHER_OID = ObjectIdentifier("2.5.29.17"), ObjectIdentifier("2.5.29.99")


@pytest.mark.parametrize("oids", [[NAMES_OID], [NAMES_OID, OTHER_OID]], ids=["kind", "twice"])
def test_names_that_cannot_be_read_are_nobody(oids: list[ObjectIdentifier]) -> None:
    """A name of a kind that the library does not have, and names that are there twice."""
    key = generate_private_key(SECP256R1())
    name, now = Name([]), datetime.now(UTC)
    builder = CertificateBuilder(name, name, key.public_key(), random_serial_number(), now, now)
    for oid in oids:
        extension = UnrecognizedExtension(oid, b"\x30\x02\xa3\0")
        builder = builder.add_extension(extension, critical=False)
    der = builder.sign(key, SHA256()).public_bytes(Encoding.DER)
    same = der.replace(b"\x06\x03\x55\x1d\x63", b"\x06\x03\x55\x1d\x11")
    assert names_in_pem(ssl.DER_cert_to_PEM_cert(same).encode()) == frozenset()
