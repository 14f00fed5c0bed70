"""Numbers and addresses are what the standards say."""

from __future__ import annotations

import h2.errors
import pytest

from cohort.http2.addresses import written_address
from cohort.http2.frames import ErrorCode


def test_codes_are_those_of_the_standard() -> None:
    """Names and numbers agree: https://www.rfc-editor.org/rfc/rfc9113#section-7"""
    ours = {name: code.value for name, code in ErrorCode.__members__.items()}
    assert ours.items() <= {code.name: code.value for code in h2.errors.ErrorCodes}.items()


@pytest.mark.parametrize(
    ("name", "written"),
    [
        (("192.0.2.1", 80), "ipv4:192.0.2.1:80"),
        (("::ffff:192.0.2.1", 80, 0, 0), "ipv4:192.0.2.1:80"),
        (("2001:db8::1", 80, 0, 0), "ipv6:%5B2001:db8::1%5D:80"),
        ("", ""),
        (None, ""),
    ],
)
def test_addresses_are_written_as_grpc_does(name: object, written: str) -> None:
    """An IPv4 address on an IPv6 socket is written so too; a socket without a name gives ""."""
    assert written_address(name) == written
