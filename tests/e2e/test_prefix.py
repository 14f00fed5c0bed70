"""A server behind a proxy that removes a prefix from paths, and behind one that keeps it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import urljoin, urlsplit

import httpx
import pytest

from tests.e2e.processes import MODELS, Cohort, cohort
from tests.e2e.scrape import Scrape

ROW = {"inputs": {"features": [[5.1, 3.5, 1.4, 0.2]]}}
PREFIX = "/ml"
HTML = {"accept": "text/html"}

PAGES = ["/docs", "/docs/", "/playground", "/playground/", "/playground/live"]


@pytest.fixture(scope="module", params=["", PREFIX])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cohort]:
    """One that knows the prefix, and one that does not."""
    with cohort(MODELS, tmp_path_factory.mktemp("prefix"), root_path=request.param) as started:
        yield started


def knows(server: Cohort) -> bool:
    return httpx.get(f"{server.url}{PREFIX}/health/live").status_code == 200


def ask(server: Cohort, path: str, **headers: str) -> httpx.Response:
    """Return the answer for a path through a proxy that removes the prefix."""
    assert path.startswith(PREFIX), path
    return httpx.get(server.url + path.removeprefix(PREFIX), headers=headers)


def links_of(text: str) -> list[str]:
    """Return the addresses that a page loads and links to."""
    return re.findall(r"(?:src|href)=\"([^\"#:]+)\"", text) + re.findall(r"url: '([^']+)'", text)


@pytest.mark.parametrize("path", PAGES)
def test_pages_lead_to_what_is_there(server: Cohort, path: str) -> None:
    """Below the prefix, whether it was taken off or kept."""
    shown = PREFIX + path
    pages = [ask(server, shown)]
    if knows(server):
        pages.append(httpx.get(server.url + shown))
    for page in pages:
        links = links_of(page.raise_for_status().text)
        assert len(links) > 2
        for link in links:
            found = urlsplit(urljoin(f"http://proxy{shown}", link)).path
            assert ask(server, found).status_code == 200, (link, found)
            if knows(server):
                assert httpx.get(server.url + found).status_code == 200, (link, found)


def test_people_are_led_to_the_page_below_the_prefix(server: Cohort) -> None:
    """The redirect is right from the address that the browser has."""
    paths = [f"{PREFIX}/", PREFIX] if knows(server) else [f"{PREFIX}/"]
    for shown in paths:
        answers = [ask(server, f"{PREFIX}/", **HTML)]
        if knows(server):
            answers.append(httpx.get(server.url + shown, headers=HTML))
        for answer in answers:
            assert answer.status_code == 307
            found = urljoin(f"http://proxy{shown}", answer.headers["location"])
            assert found == f"http://proxy{PREFIX}/playground"


def test_the_document_names_where_it_is(server: Cohort) -> None:
    """It uses the setting, or relative addresses for the page and if a proxy sends its prefix."""
    path = f"{PREFIX}/openapi.json"
    plain = ask(server, path).json()["servers"]
    assert plain == [{"url": PREFIX if knows(server) else "."}]
    named = ask(server, path, **{"x-forwarded-prefix": "/what-anybody-may-write"}).json()["servers"]
    for (one,) in (named, ask(server, f"{path}?relative").json()["servers"]):
        assert urljoin(f"http://proxy{path}", one["url"]).rstrip("/") == f"http://proxy{PREFIX}"


@pytest.mark.parametrize(
    "path", ["/models/iris/predict", "/models/iris/predict?x=1", "/models/iri%73/predict"]
)
def test_predictions_are_answered_with_the_prefix_and_without(server: Cohort, path: str) -> None:
    """The fast path answers both as well; without the setting such a path is 404."""
    before = Scrape(server.url).value("http_hot_requests_total")
    assert httpx.post(server.url + path, json=ROW).status_code == 200
    status = httpx.post(f"{server.url}{PREFIX}{path}", json=ROW).status_code
    assert status == (200 if knows(server) else 404)
    fast = Scrape(server.url).value("http_hot_requests_total") - before
    assert fast == ("%" not in path) * (1 + knows(server))


@pytest.mark.parametrize("path", ["/mlx/health", "/ml%2Fhealth", "/mlhealth", "/ml/ml/health"])
def test_what_only_begins_like_the_prefix_is_not_below_it(server: Cohort, path: str) -> None:
    """The prefix is not removed twice either."""
    assert httpx.get(server.url + path).status_code == 404


@pytest.mark.parametrize(
    "path", ["/ml/admin/models/iris/load", "/ml/v2/repository/models/iris/load"]
)
def test_operators_paths_stay_theirs(server: Cohort, path: str) -> None:
    """The prefix changes nothing: they need an operator's token."""
    assert httpx.post(server.url + path).status_code == (403 if knows(server) else 404)
