"""The parent of several workers accepts connections while it has something left for them."""

from __future__ import annotations

import resource
from itertools import count
from pathlib import Path

import httpx
import pytest

from tests.e2e.processes import Cohort
from tests.waiting import PATIENCE, wait_until
from tests.workers.hosts import host


def next_descriptor(server: Cohort) -> int:
    """Return the one that the parent would get."""
    used = {int(one.name) for one in Path(f"/proc/{server.process.pid}/fd").iterdir()}
    return next(number for number in count() if number not in used)


def switches(server: Cohort) -> int:
    """Return how often the parent has waited."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(status.split("voluntary_ctxt_switches:")[1].split()[0])


def ticks(server: Cohort) -> int:
    """Processor time of the parent so far, in hundredths of a second."""
    fields = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def test_a_parent_without_a_descriptor_waits_for_one(tmp_path: Path) -> None:
    """It logs that once, retries after a while, and accepts the waiting connections when it can."""
    with host(tmp_path, 2) as server:
        pid = server.process.pid
        soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (next_descriptor(server), hard))
        with pytest.raises(httpx.ReadTimeout):
            httpx.get(server.url + "/health/live", timeout=httpx.Timeout(PATIENCE, read=1.0))
        waited, used = switches(server), ticks(server)
        wait_until(lambda: switches(server) > waited + 10)
        asked = switches(server) - waited
        assert ticks(server) - used < asked  # it waits between, and is not busy
        assert server.logged.count("cannot accept connections") == 1
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
        assert server.get("/health/live").status_code == 200
        wait_until(lambda: "accepting connections again" in server.logged)
