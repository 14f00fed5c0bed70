"""The live view in a browser, over a server under load."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser.page import CHROMIUM, Browser
from tests.e2e.processes import MODELS, Cohort, cohort
from tests.playground.visiting import press
from tests.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is missing: make packages")

ROW = {"inputs": {"features": [[5.1, 3.5, 1.4, 0.2]]}}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Cohort]:
    """A server without other clients."""
    with cohort(MODELS, tmp_path) as started:
        yield started


def counted(server: Cohort, model: str) -> int:
    """What /metrics has of a model's requests."""
    lines = httpx.get(f"{server.url}/metrics").text.splitlines()
    return sum(
        int(float(line.rsplit(" ", 1)[1]))
        for line in lines
        if line.startswith("model_inference_total{") and f'model="{model}"' in line
    )


def shown(page: Page, version: str) -> int:
    """Return the number of a version's requests in the table."""
    row = page.get_by_role("row", name=version)
    return int(row.locator("td").last.inner_text()) if row.count() else 0


def test_the_numbers_move_and_are_those_of_the_metrics(chromium: Browser, server: Cohort) -> None:
    """Good and bad requests from elsewhere count, and so does a burst from the page itself."""
    page = chromium.page
    page.goto(f"{server.url}/playground/live")
    expect(page.locator("figure.live svg").first).to_be_visible()
    with httpx.Client(base_url=server.url) as client:
        for _ in range(30):
            client.post("/models/iris/predict", json=ROW)
        for _ in range(5):
            client.post("/models/iris/predict", json={"inputs": {"features": [[1]]}})
    wait_until(lambda: shown(page, "iris/1") == 35)
    assert counted(server, "iris") == 35
    page.get_by_label("Model").select_option("digits")
    page.get_by_label("Requests, at most").fill("200")
    page.get_by_role("button", name="Send load").click()
    expect(page.get_by_role("form", name="Load").get_by_role("status")).to_contain_text(
        "200 requests answered"
    )
    wait_until(lambda: shown(page, "digits/2") == 200)
    assert counted(server, "digits") == 200
    assert chromium.complaints == []


def test_the_key_for_metrics_is_asked_for(chromium: Browser, tmp_path: Path) -> None:
    """The page asks for the key if there is one.

    It asks again after a wrong one, and refuses one that does not fit in a header.
    """
    page, key = chromium.page, "only-who-counts-knows"
    with cohort(MODELS, tmp_path, metrics_key=key) as guarded:
        page.goto(f"{guarded.url}/playground/live")
        field = page.get_by_label("Key for metrics")
        field.fill("typed “so”")
        page.get_by_role("button", name="Use key").click()
        expect(page.get_by_role("alert")).to_contain_text('this one contains " " (U+0020)')
        field.fill("wrong")
        page.get_by_role("button", name="Use key").click()
        expect(page.get_by_role("status").first).to_contain_text("wrong")
        field.fill(key)
        page.get_by_role("button", name="Use key").click()
        expect(page.locator("figure.live svg").first).to_be_visible()
        expect(field).to_have_count(0)
        expect(page.get_by_role("button", name="Forget the key")).to_be_visible()
    chromium.complaints.clear()  # the browser reports the status


def test_load_can_be_stopped(chromium: Browser, server: Cohort) -> None:
    """The result of the measurement so far is shown."""
    page = chromium.page
    page.goto(f"{server.url}/playground/live")
    asked = 0

    def answer_some(route: Route) -> None:
        nonlocal asked
        asked += 1
        if asked <= 10:
            route.continue_()

    page.route("**/predict", answer_some)
    press(page, "Send load")
    wait_until(lambda: page.locator("progress").evaluate("bar => bar.value >= 10 / 500"))
    press(page, "Stop")
    form = page.get_by_role("form", name="Load")
    expect(form.get_by_role("status")).to_contain_text("10 requests answered")
    expect(form.get_by_role("status")).not_to_contain_text("failed")
    expect(page.get_by_role("button", name="Send load")).to_be_focused()
    expect(page.get_by_role("button", name="Stop")).to_be_hidden()
    page.unroute("**/predict")


def test_without_viewers_nothing_is_sampled_and_each_of_many_is_told_the_same(
    server: Cohort,
) -> None:
    """64 viewers are served at once; one more must retry later, until another leaves."""
    url = f"{server.url}/playground/data/live"
    limits = httpx.Limits(max_connections=100)
    with httpx.Client(limits=limits) as client:
        viewers = [client.send(client.build_request("GET", url), stream=True) for _ in range(64)]
        assert {one.status_code for one in viewers} == {200}
        lines = [one.iter_lines() for one in viewers]
        first = [_sample(one) for one in lines]
        httpx.post(f"{server.url}/models/iris/predict", json=ROW)
        told = {json.dumps(_first_counted(one)) for one in lines[:3]}
        assert len(told) == 1
        assert '"iris"' in told.pop()
        assert len(first) == 64
        refused = client.get(url)
        assert (refused.status_code, refused.json()["code"]) == (429, "Overloaded")
        viewers[0].close()
        wait_until(lambda: _status(url) == httpx.codes.OK)
        for one in viewers[1:]:
            one.close()


def _sample(lines: Iterator[str]) -> list[dict[str, object]]:
    """Return the next samples of a viewer."""
    for line in lines:
        if line.startswith("data: ["):
            samples: list[dict[str, object]] = json.loads(line.removeprefix("data: "))
            return samples
    raise AssertionError("the server ended the events")


def _first_counted(lines: Iterator[str]) -> dict[str, object]:
    """Return the first sample that has counted anything."""
    while True:
        for one in _sample(lines):
            if one["versions"]:
                return one


def _status(url: str) -> int:
    with httpx.stream("GET", url) as response:
        return response.status_code


def test_a_viewer_does_not_hold_up_a_shutdown(tmp_path: Path) -> None:
    """It receives the end of the stream, long before the drain ends."""
    with (
        cohort(MODELS, tmp_path, drain_seconds=3600) as server,
        httpx.stream("GET", f"{server.url}/playground/data/live") as response,
    ):
        lines = response.iter_lines()
        _sample(lines)
        assert server.stop(timeout=PATIENCE) == 0
        assert [line for line in lines if line.startswith("event: error")] == []


def test_who_may_not_read_metrics_does_not_see_them_live(tmp_path: Path) -> None:
    """If metrics have their own key, it is also required here."""
    key = "0123456789abcdef0123456789abcdef"
    with cohort(MODELS, tmp_path, metrics_key=key) as server:
        url = f"{server.url}/playground/data/live"
        assert httpx.get(url).status_code == httpx.codes.UNAUTHORIZED
        with httpx.stream("GET", url, headers={"authorization": f"Bearer {key}"}) as response:
            assert response.status_code == httpx.codes.OK
        assert httpx.head(url, headers={"authorization": f"Bearer {key}"}).status_code == 200
