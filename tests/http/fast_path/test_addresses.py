"""The number of connections of each address."""

from __future__ import annotations

import pytest

from cohort.connections.address_counts import Addresses, address_of


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("10.0.0.1", "10.0.0.1", True),
        ("10.0.0.1", "10.0.0.2", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("2001:db8::1", "2001:db8:0:0:ffff::9", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("fe80::1%eth0", "fe80::2%eth1", True),
    ],
)
def test_an_ipv6_address_counts_with_its_network(one: str, other: str, same: bool) -> None:
    """An IPv4 address for itself, also where it is written as IPv6."""
    assert (address_of((one, 1)) == address_of((other, 2))) is same


def test_connections_without_an_address_count_together() -> None:
    """Connections of a Unix socket are an example."""
    assert address_of(None) == ""


def test_any_number_may_have_no_address() -> None:
    """They are of one machine, and a proxy's, as a rule."""
    addresses = Addresses(1)
    assert all(addresses.enter("") for _ in range(3))


def test_a_place_that_was_left_is_free() -> None:
    """One leave for each enter frees a place, also for an enter over the limit."""
    addresses = Addresses(2)
    assert [addresses.enter("a") for _ in range(3)] == [True, True, False]
    assert addresses.enter("b")
    addresses.leave("a")
    addresses.leave("a")
    assert addresses.enter("a")
    assert (addresses.count("a"), addresses.count("b"), addresses.count("c")) == (2, 1, 0)
