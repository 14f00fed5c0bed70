"""The simple API: its routes, and the media types that they take."""

from __future__ import annotations

import json

import httpx
import pytest

from cohort.errors import InvalidInput, UnsupportedMedia
from cohort.http.media import check_json
from cohort.http.predict.calls import match_predict, predict_route
from tests.e2e.processes import Cohort

IRIS = {"inputs": {"features": [[5.1, 3.5, 1.4, 0.2]]}}


def test_an_unsupported_media_type_is_415(bundled: Cohort) -> None:
    """Examples are an image for a model of numbers, and an unknown coding."""
    for headers in ({"content-type": "image/png"}, {"content-encoding": "br"}):
        answer = httpx.post(bundled.url + "/models/iris/predict", content=b"x", headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (415, "UnsupportedMedia")


def test_a_body_that_curl_sends_as_a_form_is_read_as_json(bundled: Cohort) -> None:
    """`curl -d` declares a form unless another type is given."""
    answer = httpx.post(
        bundled.url + "/models/iris/predict",
        content=json.dumps(IRIS),
        headers={"content-type": "application/x-www-form-urlencoded"},
    )
    assert answer.status_code == httpx.codes.OK, answer.text


@pytest.mark.parametrize("media", ["application/json; charset=utf-8", "application/x+json", ""])
def test_json_media_types_are_accepted(media: str) -> None:
    """They may have parameters or a suffix, or be absent."""
    check_json({"content-type": media})


def test_an_unsupported_media_type_is_named() -> None:
    """The error names it."""
    with pytest.raises(UnsupportedMedia, match="'text/csv'"):
        check_json({"content-type": "text/csv"})


@pytest.mark.parametrize(
    ("path", "model"),
    [
        ("/predict", None),
        ("/models/iris/predict", "iris"),
        ("/models/a.b-c_1/versions/2/predict", "a.b-c_1"),
    ],
)
def test_the_fast_path_matches_paths_of_the_simple_api(path: str, model: str | None) -> None:
    """Its route knows the model before a body is parsed."""
    route = match_predict(path)
    assert route is not None
    assert route.model == model


@pytest.mark.parametrize("path", ["/models/iris", "/models/iris/predict/", "/models/a%20b/predict"])
def test_the_fast_path_leaves_other_paths(path: str) -> None:
    """FastAPI answers those, with escapes and without."""
    assert match_predict(path) is None


@pytest.mark.parametrize(
    ("headers", "coalesced"),
    [
        ({"content-type": "application/json"}, True),
        ({"content-type": "image/png"}, False),
        ({"accept": "application/x-npy"}, False),
    ],
)
def test_only_json_for_json_is_coalesced(headers: dict[str, str], coalesced: bool) -> None:
    """Files are read otherwise, and answered otherwise."""
    assert (predict_route("iris").rows(headers) is not None) is coalesced


@pytest.mark.parametrize("key", ["model", "version"])
def test_a_body_must_agree_with_its_path(key: str) -> None:
    """The path's model and version count, and a body that names others is refused."""
    read = predict_route("iris", "1").reader({})
    names = {"model": "iris", "version": "1"}
    call = read(json.dumps({**IRIS, **names}).encode())
    assert (call.model, call.version) == ("iris", "1")
    with pytest.raises(InvalidInput, match=key):
        read(json.dumps({**IRIS, **names, key: "9"}).encode())
