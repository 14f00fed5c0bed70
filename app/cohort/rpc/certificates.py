"""The names in a caller's certificate, as gRPC passes it on."""

from __future__ import annotations

from functools import lru_cache

MAX_READ = 1024
"""Maximum certificates with cached names; each call of a connection has the same certificate."""


@lru_cache(MAX_READ)
def names_in_pem(pem: bytes) -> frozenset[str]:
    """Return a certificate's DNS names and URIs, or its common names if it has neither.

    gRPC's own list truncates names at a zero byte, so it confuses `web.internal\\0.example` with
    `web.internal`.
    """
    from cryptography import x509  # noqa: PLC0415 - 20 MB, for those who use client certificates

    try:
        certificate = x509.load_pem_x509_certificate(pem)
        try:
            names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        except x509.ExtensionNotFound:
            found: list[str] = []
        else:
            found = names.value.get_values_for_type(x509.DNSName)
            found += names.value.get_values_for_type(x509.UniformResourceIdentifier)
        common = certificate.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
        return frozenset(found or [str(one.value) for one in common])
    except (ValueError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType):
        # the library cannot read this certificate, so it contains no names
        return frozenset()
