"""How connections are shared between the APIs."""

from __future__ import annotations

import pytest

from app.main.resources import share_connections


@pytest.mark.parametrize(
    ("available", "grpc", "shares"),
    [(1000, True, (750, 250)), (1000, False, (1000, 0)), (3, True, (2, 1)), (1, True, (1, 1))],
)
def test_each_api_has_a_share(available: int, grpc: bool, shares: tuple[int, int]) -> None:
    """A quarter is gRPC's where there is gRPC, and neither is ever without one."""
    assert share_connections(available, grpc=grpc) == shares
