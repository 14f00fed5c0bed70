"""Every error, on every route, whatever raised it, has one form."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any

import httpx
import pytest

from cohort.errors import CohortError, Overloaded
from cohort.http.errors import HTTP_STATUS, headers_of, http_status
from tests.e2e.processes import Cohort

IRIS = {"inputs": {"features": [[5.1, 3.5, 1.4, 0.2]]}}


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code", "says"),
    [
        ("GET", "/nowhere", None, 404, "NotFound", "/nowhere' not found; /docs lists the routes"),
        ("POST", "/v1/models/iris/predict", IRIS, 404, "NotFound", "mean POST /v1/models/{model}:"),
        ("POST", "/v2/models/iris/predict", IRIS, 404, "NotFound", "mean POST /v2/models/{model}/"),
        ("POST", "/predictions/iris", IRIS, 404, "NotFound", "POST /models/{model}/predict?"),
        ("GET", "/healthz", None, 404, "NotFound", "did you mean GET /health/live?"),
        ("GET", "/predict", None, 405, "MethodNotAllowed", "GET"),
        ("DELETE", "/models", None, 405, "MethodNotAllowed", "DELETE"),
        ("GET", "/models/nobody", None, 404, "ModelNotFound", "nobody"),
        ("GET", "/models/irs", None, 404, "ModelNotFound", "did you mean 'iris'"),
        ("GET", "/models/iris/versions/9", None, 404, "VersionNotFound", "available: 1"),
        ("GET", "/models/iris/versions/01", None, 404, "VersionNotFound", "01"),
        ("POST", "/predict", "{", 400, "InvalidInput", "JSON"),
        ("POST", "/predict", "[]", 400, "InvalidInput", "object"),
        ("POST", "/invocations", "[[1]]", 400, "InvalidInput", "in the query: ?model=NAME"),
        ("POST", "/predict", IRIS, 400, "InvalidInput", "the request names no model; available: "),
        (
            "POST",
            "/models/iris/predict",
            {"input": [5.1, 3.5]},
            400,
            "InvalidInput",
            "must have shape [N, 4], got [2]; is it one row? Wrap it in a list: [[5.1, 3.5]]",
        ),
        (
            "POST",
            "/models/iris/predict",
            {"input": [[[5.1, 3.5, 1.4, 0.2]]]},
            400,
            "InvalidInput",
            "got [1, 1, 4]; it is in one list too many",
        ),
        (
            "POST",
            "/models/iris/predict",
            {"input": 5.1},
            400,
            "InvalidInput",
            "must have shape [N, 4], got []",
        ),
        (
            "POST",
            "/models/iris/predict",
            {"input": {"features": [[1]]}},
            400,
            "InvalidInput",
            "'input' takes an array; arrays by name go under 'inputs'",
        ),
        ("POST", "/models/irs/predict", IRIS, 404, "ModelNotFound", "did you mean"),
        ("POST", "/models/iris/versions/7/predict", IRIS, 404, "VersionNotFound", "7"),
        (
            "POST",
            "/models/iris/predict",
            {**IRIS, "model": "x"},
            400,
            "InvalidInput",
            "but the body names 'x'",
        ),
        ("POST", "/models/iris/predict", {"inputs": {}}, 400, "InvalidInput", "features"),
        (
            "POST",
            "/models/iris/predict",
            {"inputs": {"feature": [[1, 2, 3, 4]]}},
            400,
            "InvalidInput",
            "did you mean 'features'",
        ),
        (
            "POST",
            "/models/iris/predict",
            {"inputs": {"features": [[1, 2, 3]]}},
            400,
            "InvalidInput",
            "[N, 4]",
        ),
        (
            "POST",
            "/models/iris/predict",
            {"inputs": {"features": [[1, 2], [3]]}},
            400,
            "InvalidInput",
            "features",
        ),
        (
            "POST",
            "/models/iris/predict",
            {"inputs": {"features": [["a", 2, 3, 4]]}},
            400,
            "InvalidInput",
            "features",
        ),
        (
            "POST",
            "/models/iris/predict",
            {**IRIS, "outputs": ["lable"]},
            400,
            "InvalidInput",
            "label",
        ),
        (
            "POST",
            "/models/iris/predict",
            {**IRIS, "timeout_ms": -1},
            400,
            "InvalidInput",
            "timeout_ms",
        ),
    ],
)
def test_every_error_has_one_form(
    bundled: Cohort, method: str, path: str, body: Any, status: int, code: str, says: str
) -> None:
    """It has the status of the table, the code, and a sentence that states the mistake."""
    content = body if isinstance(body, str) else json.dumps(body) if body is not None else None
    answer = httpx.request(method, bundled.url + path, content=content)
    told = answer.json()
    assert (answer.status_code, told["code"]) == (status, code), told
    assert set(told) == {"error", "code"}
    assert says in told["error"]


def test_an_error_without_a_status_of_its_own_has_that_of_its_nearest_base() -> None:
    """One outside the table is the server's failure."""

    class Full(Overloaded):
        """More particular than the table."""

    assert http_status(Full("full")) == HTTP_STATUS[Overloaded]
    assert http_status(CohortError("bug")) == HTTPStatus.INTERNAL_SERVER_ERROR


@pytest.mark.parametrize(("seconds", "header"), [(0.01, "1"), (1.0, "1"), (1.2, "2"), (30.0, "30")])
def test_retry_after_is_in_whole_seconds(seconds: float, header: str) -> None:
    """Rounded up, because a caller that comes back too early is refused again."""
    assert headers_of(Overloaded("full", retry_after=seconds))["retry-after"] == header
