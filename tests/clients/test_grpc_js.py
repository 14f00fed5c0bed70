"""grpc-js, the Node.js client with a separate HTTP/2 implementation, against the real process."""

from __future__ import annotations

import json
import shutil
from typing import Any

import pytest
from grpc import StatusCode

from tests.clients.test_generated import HERE, PACKAGES, run, with_node
from tests.e2e.processes import ROOT, Cohort

Told = dict[str, Any]


@pytest.fixture(scope="module")
def told(server: Cohort, tmp_path_factory: pytest.TempPathFactory) -> Told:
    """The results of all calls of the script."""
    folder = tmp_path_factory.mktemp("grpc-js")
    (folder / "node_modules").symlink_to(PACKAGES)
    script = shutil.copy(HERE / "typescript/grpc_calls.mjs", folder)
    proto = str(ROOT / "app/cohort/rpc/inference.proto")
    answers: Told = json.loads(run(["node", script, server.grpc, proto], folder).splitlines()[-1])
    return answers


@with_node
def test_calls_at_once_get_their_own_answers(told: Told) -> None:
    """Fifty calls share one connection."""
    assert told["together"] == [[float(place)] for place in range(50)]


@with_node
def test_a_stream_answers_in_order(told: Told) -> None:
    """Two hundred messages, of which 64 are in flight."""
    assert told["stream"] == {"code": 0, "ids": [*range(200)]}


@with_node
def test_a_cancelled_stream_leaves_its_connection_whole(told: Told) -> None:
    """It ends as cancelled, and the calls after it are answered."""
    assert told["cancelled"]["code"] == StatusCode.CANCELLED.value[0]
    assert told["cancelled"]["ids"][:3] == [0, 1, 2]
    assert told["live"] == {"live": True}


@with_node
def test_errors_have_their_codes(told: Told) -> None:
    """grpc-js receives the status code of a missed deadline, an unknown model and method."""
    assert told["late"] == StatusCode.DEADLINE_EXCEEDED.value[0]
    assert told["unknown"] == StatusCode.UNIMPLEMENTED.value[0]
    assert told["missing"]["code"] == StatusCode.NOT_FOUND.value[0]
    assert "nobody" in told["missing"]["details"]


@with_node
def test_metadata_comes_back(told: Told) -> None:
    """The request's id is in the trailers."""
    assert told["traced"] == {"x-request-id": "mine"}


@with_node
def test_large_and_compressed_messages_are_taken(told: Told) -> None:
    """Messages of 1.2 MB pass in and out, in many frames, and so does gzip."""
    assert told["many"] is True
    assert told["zipped"] == 1000
