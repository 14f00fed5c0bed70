"""Division of connections between the APIs."""

from __future__ import annotations

import pytest

from cohort.process.resources import (
    PROCESS_BYTES,
    memory_for_requests,
    part_of,
    share_connections,
)
from cohort.system.processor import cores


@pytest.mark.parametrize(
    ("available", "grpc", "shares"),
    [(1000, True, (750, 250)), (1000, False, (1000, 0)), (3, True, (2, 1)), (1, True, (1, 1))],
)
def test_each_api_has_a_share(available: int, grpc: bool, shares: tuple[int, int]) -> None:
    """With gRPC, a quarter is gRPC's, and each API has at least one."""
    assert share_connections(available, grpc=grpc) == shares


@pytest.mark.parametrize(
    ("limit", "processes", "part"), [(9, 2, 5), (8, 2, 4), (1, 4, 1), (0, 3, 0)]
)
def test_workers_share_a_limit_and_none_is_without(limit: int, processes: int, part: int) -> None:
    """Together they may have a little more, never less."""
    assert part_of(limit, processes) == part


def test_requests_have_a_quarter_of_what_the_processes_leave() -> None:
    """It also holds for little memory, since a process takes as much in a small container."""
    own = PROCESS_BYTES
    assert memory_for_requests(2 * own, 1) == own // 4
    assert memory_for_requests(4 * own, 2) == own // 4
    assert memory_for_requests(own, 1) == own // 16


def test_workers_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each worker gets whole cores, at least one; a single process rounds up."""
    monkeypatch.setattr("cohort.system.processor.cpu_limit", lambda _: 3.5)
    for processes, each in [(1, 4), (2, 1), (3, 1), (8, 1)]:
        monkeypatch.setattr("cohort.system.processor._sharing", processes)
        assert cores() == each
    monkeypatch.setattr("cohort.system.processor.cpu_limit", lambda _: 16.0)
    monkeypatch.setattr("cohort.system.processor._sharing", 5)
    assert cores() == 3
