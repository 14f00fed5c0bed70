"""`?server_timing`: where the time of a request went."""

from __future__ import annotations

import re

import httpx
import pytest

from tests.e2e.processes import Cohort

REQUESTS = {
    "/models/iris/predict": {"inputs": {"features": [[5.1, 3.5, 1.4, 0.2]]}},
    "/v2/models/iris/infer": {
        "inputs": [
            {"name": "features", "datatype": "FP32", "shape": [1, 4], "data": [5.1, 3.5, 1.4, 0.2]}
        ]
    },
}


@pytest.mark.parametrize("path", REQUESTS)
def test_who_asks_is_told_of_the_queue_and_the_run(bundled: Cohort, path: str) -> None:
    """The times are in the standard header, and the answer is the same."""
    plain = httpx.post(bundled.url + path, json=REQUESTS[path]).raise_for_status()
    told = httpx.post(f"{bundled.url}{path}?server_timing", json=REQUESTS[path]).raise_for_status()
    assert "server-timing" not in plain.headers
    found = re.fullmatch(r"queue;dur=(\d+\.\d+), run;dur=(\d+\.\d+)", told.headers["server-timing"])
    assert found is not None
    assert 0 < float(found[2]) < 1000 * told.elapsed.total_seconds()
    assert told.json()["outputs"] == plain.json()["outputs"]


def test_a_refusal_has_no_times(bundled: Cohort) -> None:
    """A refused request was not run."""
    answer = httpx.post(f"{bundled.url}/models/iris/predict?server_timing", json={"inputs": {}})
    assert answer.status_code == httpx.codes.BAD_REQUEST
    assert "server-timing" not in answer.headers
