"""The parts of the Ray application that need no Ray; `make ray` tests the rest."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from cohort.ray_serve.arguments import Arguments
from cohort.ray_serve.scaling import wanted_replicas
from cohort.ray_serve.wire import HttpRequest, model_of
from cohort.repository.yaml_files import parse_yaml
from tests.e2e.processes import ROOT


def request(path: str, body: bytes = b"", query: bytes = b"") -> HttpRequest:
    return HttpRequest("POST", path, query, [], body, "http", None)


@pytest.mark.parametrize(
    ("sent", "model"),
    [
        (request("/models/iris/predict"), "iris"),
        (request("/v2/models/iris/versions/1/infer"), "iris"),
        (request("/v1/models/iris:predict"), "iris"),
        (request("/v1/models/a.b-c/labels/x:predict"), "a.b-c"),
        (request("/invocations", query=b"outputs=a&model=iris"), "iris"),
        (request("/predict", b'{"model": "iris", "inputs": {}}'), "iris"),
        (request("/predict", b'{"model": 3}'), None),
        (request("/predict", b'{"model": "iris"'), None),
        (request("/predict", b"{" + b" " * (1 << 17) + b'"model": "iris"}'), None),
        (request("/health/ready"), None),
    ],
)
def test_the_model_of_a_request_is_found_as_the_server_finds_it(
    sent: HttpRequest, model: str | None
) -> None:
    """In the path, the query or a short body; the replica reads the rest itself."""
    assert model_of(sent) == model


@pytest.mark.parametrize(
    ("replicas", "queue", "busy", "wanted"),
    [
        (1, 0.021, 0.5, 2),
        (2, 1.0, 2.0, 4),
        (4, 0.015, 1.0, 4),
        (4, 0.001, 1.0, 2),
        (4, 0.0, 0.0, 1),
        (1, 0.001, 1.5, 1),
    ],
)
def test_replicas_follow_the_time_in_the_queue(
    replicas: int, queue: float, busy: float, wanted: int
) -> None:
    """More above the target of 20 ms, at most twice as many; fewer if the rest can do the work."""
    assert wanted_replicas(replicas, queue, busy, 0.02) == wanted


def test_arguments_of_the_shipped_config_are_valid() -> None:
    """And a wrong one is named."""
    config: Any = parse_yaml((ROOT / "deploy/ray/serve.yaml").read_text(), "serve.yaml")
    (application,) = config["applications"]
    given = Arguments.model_validate(application["args"])
    assert (given.models, given.max_replicas) == ("models", 4)
    with pytest.raises(ValidationError, match="replica_count"):
        Arguments.model_validate({"replica_count": 2})
    with pytest.raises(ValidationError, match="must not be larger"):
        Arguments.model_validate({"dedicated": {"iris": {"min_replicas": 9}}})
    with pytest.raises(ValidationError, match="must not have models"):
        Arguments.model_validate({"settings": {"models": "other"}})
