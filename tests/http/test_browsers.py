"""Pages that call the server: its own and, where `COHORT_CORS_ORIGINS` names them, others'."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from cohort.errors import Forbidden
from cohort.http.guards.heads import HeadRules
from cohort.http.pages import accepts_html
from cohort.process.application import create_app
from cohort.settings import Settings
from tests.e2e.processes import MODELS, Cohort, cohort
from tests.http.wire import exchange, request

KEY = "cohort_page"
PAGE = "https://a.example"
OTHER = "https://b.example"
ROW = {"inputs": {"features": [[5.1, 3.5, 1.4, 0.2]]}}
CALLS: Mapping[str, object] = {
    "/predict": {"model": "iris", **ROW},
    "/models/iris/predict": ROW,
    "/v1/models/iris:predict": ROW,
    "/v2/models/iris/infer": {
        "inputs": [
            {"name": "features", "datatype": "FP32", "shape": [1, 4], "data": [5.1, 3.5, 1.4, 0.2]}
        ]
    },
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cohort]:
    """The bundled models, for callers with a key and pages of two origins."""
    folder = tmp_path_factory.mktemp("pages")
    keys = folder / "keys.yaml"
    keys.write_text(f'- {{name: page, sha256: "{sha256(KEY.encode()).hexdigest()}"}}\n')
    origins = f"{PAGE}, http://localhost:5173"
    with cohort(MODELS, folder, api_keys=keys, cors_origins=origins, max_body_mb=1) as started:
        yield started


@pytest.fixture(scope="module")
def browser(server: Cohort) -> Iterator[httpx.Client]:
    """Calls as a page at PAGE does."""
    with httpx.Client(base_url=server.url, headers={"origin": PAGE}) as client:
        yield client


def asked(method: str, headers: str) -> dict[str, str]:
    """Return the headers of a browser's preflight for a request of a page."""
    return {
        "access-control-request-method": method,
        "access-control-request-headers": headers,
    }


# --- Pages of other origins


@pytest.mark.parametrize("path", [*CALLS, "/models", "/v2/repository/index"])
def test_a_browser_may_ask_before_it_has_a_key(browser: httpx.Client, path: str) -> None:
    """A preflight has no key; its answer allows keys in either header."""
    told = browser.options(path, headers=asked("POST", "authorization,content-type,x-api-key"))
    assert told.status_code == 200
    assert told.headers["access-control-allow-origin"] == PAGE
    assert told.headers["access-control-allow-credentials"] == "true"
    assert "POST" in told.headers["access-control-allow-methods"]
    assert told.headers["access-control-allow-headers"] == "authorization,content-type,x-api-key"
    assert "Origin" in told.headers["vary"]


def test_a_browser_that_asks_about_private_networks_is_told_nothing(browser: httpx.Client) -> None:
    """The answer neither allows nor denies them; the rest of the preflight is answered."""
    network = {"access-control-request-private-network": "true"}
    told = browser.options("/predict", headers=asked("POST", "x-api-key") | network)
    assert told.status_code == 200
    assert "access-control-allow-private-network" not in told.headers


def test_a_page_of_another_origin_is_refused_before(server: Cohort) -> None:
    """It gets an error like all others, and no header that would let the browser continue."""
    headers = {"origin": OTHER, **asked("POST", "x-api-key")}
    told = httpx.options(f"{server.url}/predict", headers=headers)
    assert (told.status_code, told.json()["code"]) == (403, "Forbidden")
    assert "access-control-allow-origin" not in told.headers


@pytest.mark.parametrize("path", CALLS)
def test_a_page_is_answered_as_anybody(browser: httpx.Client, path: str) -> None:
    """FastAPI gives the fast path's outputs, with headers that let the page read them."""
    key = {"x-api-key": KEY}
    answers = [
        browser.post(path, json=CALLS[path], headers=key),
        httpx.post(browser.base_url.join(path), json=CALLS[path], headers=key),
    ]
    assert [one.status_code for one in answers] == [200, 200]
    bodies = [re.sub(r'"inference_time_ms":[\d.]+', "", one.text) for one in answers]
    assert bodies[0] == bodies[1]
    for_page, for_program = (one.headers for one in answers)
    assert for_page["access-control-allow-origin"] == PAGE
    assert "Inference-Header-Content-Length" in for_page["access-control-expose-headers"]
    assert for_page["vary"] == "Origin"
    assert "access-control-allow-origin" not in for_program


def test_a_page_can_read_every_error(browser: httpx.Client) -> None:
    """Without these headers a script gets only a network error."""
    key = {"authorization": f"Bearer {KEY}"}
    refused = {
        401: browser.post("/models/iris/predict", json=ROW),
        403: browser.post("/admin/models/iris/load", headers=key),
        404: browser.post("/models/nobody/predict", json=ROW, headers=key),
        405: browser.get("/predict", headers=key),
        413: browser.post("/predict", content=b"x" * (2 << 20), headers=key),
        415: browser.post(
            "/v1/models/iris:predict", headers={**key, "content-type": "application/pdf"}
        ),
        400: browser.post("/predict", content=b"{", headers=key),
    }
    for status, response in refused.items():
        assert response.status_code == status
        assert response.headers["access-control-allow-origin"] == PAGE, status
        assert response.json()["error"]


async def test_a_page_can_read_of_a_bug(tmp_path: Path) -> None:
    """An unexpected error is answered inside the middleware that adds the headers."""
    app = application(tmp_path, cors_origins="*")

    @app.get("/bug")
    def bug() -> None:
        raise ZeroDivisionError

    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://cohort") as client:
        response = await client.get("/bug", headers={"origin": OTHER})
    assert (response.status_code, response.json()["code"]) == (500, "InferenceFailed")
    assert response.headers["access-control-allow-origin"] == "*"


async def test_any_page_may_call_without_what_a_browser_adds(tmp_path: Path) -> None:
    """`*` is for keys that a page has: no client certificate goes along."""
    async with client_of(application(tmp_path, cors_origins="*")) as client:
        headers = {"origin": OTHER}
        told = await client.options("/predict", headers=headers | asked("POST", "x-api-key"))
        assert told.headers["access-control-allow-origin"] == "*"
        assert told.headers["access-control-allow-headers"] == "x-api-key"
        assert "access-control-allow-credentials" not in told.headers
        answered = await client.get("/health/live", headers=headers)
        assert answered.headers["access-control-allow-origin"] == "*"


def test_without_the_setting_no_page_may_call(bundled: Cohort) -> None:
    """No header is added, and a preflight gets 405 with the name of the setting."""
    before = answered_fast(bundled)
    response = httpx.post(f"{bundled.url}/models/iris/predict", json=ROW, headers={"origin": PAGE})
    assert response.status_code == 200
    assert answered_fast(bundled) == before + 1
    told = httpx.options(
        f"{bundled.url}/models/iris/predict", headers={"origin": PAGE, **asked("POST", "")}
    )
    assert (told.status_code, told.headers["allow"]) == (405, "POST")
    assert "COHORT_CORS_ORIGINS lists the origins" in told.json()["error"]
    for one in (response, told):
        assert not any(name.startswith("access-control-") for name in one.headers)


def answered_fast(server: Cohort) -> float:
    """The requests that the fast path answered."""
    metrics = httpx.get(f"{server.url}/metrics").text
    (count,) = re.findall(r"^http_hot_requests_total (\S+)$", metrics, re.MULTILINE)
    return float(count)


def test_named_origins_go_with_named_hosts() -> None:
    """COHORT_HOSTS keeps other pages away but for those that COHORT_CORS_ORIGINS lets in."""

    def check(rules: HeadRules, origin: str) -> None:
        rules.check("1.1", b"/predict", [(b"host", b"a"), (b"origin", origin.encode())])

    some, every = HeadRules(["a"], [PAGE]), HeadRules(["a"], ["*"])
    check(some, PAGE)
    check(some, "http://a")
    check(every, OTHER)
    for rules, origin in ((some, OTHER), (some, "null"), (HeadRules(["a"]), PAGE)):
        with pytest.raises(Forbidden, match="may not call this server"):
            check(rules, origin)


def application(folder: Path, **settings: object) -> FastAPI:
    """An application that serves nothing."""
    return create_app(settings=Settings(models=folder, state=folder, cache=folder, **settings))  # type: ignore[arg-type]


def client_of(app: FastAPI) -> httpx.AsyncClient:
    """A client of an application in the test's own process."""
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://cohort")


# --- The front


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_people_are_led_to_the_page(server: Cohort, method: str) -> None:
    """A client that accepts HTML, as browsers do, is redirected without a key."""
    accept = {"accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
    response = httpx.request(method, f"{server.url}/", headers=accept)
    assert (response.status_code, response.headers["location"]) == (307, "./playground")
    assert "accept" in response.headers["vary"]


@pytest.mark.parametrize("accept", ["*/*", "", "application/json", "text/html;q=0, */*"])
def test_programs_are_told_that_it_is_alive(server: Cohort, accept: str) -> None:
    """KServe's V1 live check accepts it; /openapi.json has the same version."""
    told = httpx.get(f"{server.url}/", headers={"accept": accept}).raise_for_status().json()
    version = httpx.get(f"{server.url}/openapi.json").json()["info"]["version"]
    assert told == {"status": "alive", "name": "cohort", "version": version}


@pytest.mark.parametrize("accept", ["text/html;q=0.000", "text/html ; level=1; q = 0", "text/*"])
def test_what_is_not_asked_for_is_not_html(accept: str) -> None:
    """A weight of zero is a no."""
    assert not accepts_html(accept)


# --- What a browser may do with an answer


def test_a_page_runs_only_what_is_its_own(server: Cohort) -> None:
    """The policy allows its script by digest and files from here, and no frames."""
    page = httpx.get(f"{server.url}/docs").raise_for_status()
    policy = dict(one.strip().split(" ", 1) for one in page.headers[CSP].split(";"))
    (script,) = re.findall(r"<script>(.*?)</script>", page.text, re.DOTALL)
    digest = b64encode(sha256(script.encode()).digest()).decode()
    assert policy["script-src"] == f"'self' 'sha256-{digest}'"
    assert policy["default-src"] == policy["frame-ancestors"] == "'none'"
    assert page.headers["x-content-type-options"] == "nosniff"


CSP = "content-security-policy"


@pytest.mark.parametrize("path", ["/", "/health", "/openapi.json", "/nothing", "/metrics"])
def test_what_is_no_page_is_run_by_no_browser(bundled: Cohort, path: str) -> None:
    """The headers are on documents and errors alike."""
    headers = httpx.get(bundled.url + path).headers
    assert headers[CSP] == "default-src 'none'; frame-ancestors 'none'"
    assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("body", [ROW, {"inputs": 1}])
def test_answers_of_the_fast_path_are_what_they_say(bundled: Cohort, body: object) -> None:
    """Predictions and refusals have the header as well."""
    answer = httpx.post(f"{bundled.url}/models/iris/predict", json=body)
    assert answer.headers["x-content-type-options"] == "nosniff"


# --- Methods and spellings


def test_head_is_answered_wherever_get_is(bundled: Cohort) -> None:
    """HEAD has the status and headers of GET, and no body, on one connection."""
    names = {"model": "iris", "version": "1", "region": "r"}
    with httpx.Client(base_url=bundled.url) as client:
        document = client.get("/openapi.json").json()
        paths = [path for path, item in document["paths"].items() if "get" in item]
        assert len(paths) > 20
        paths += ["/docs", "/openapi.json", "/docs/static/swagger-ui.css"]
        for path in (path.format_map({**names, "variant": "a"}) for path in paths):
            got, head = client.get(path), client.head(path)
            assert head.status_code == got.status_code, path
            assert head.headers["content-type"] == got.headers["content-type"], path
            assert not head.content


def test_who_takes_another_method_is_named(bundled: Cohort) -> None:
    """Allow has all that the path takes, whichever routes that are."""
    with httpx.Client(base_url=bundled.url) as client:
        for path, allowed in {
            "/models": "GET, HEAD",
            "/v2": "GET, HEAD",
            "/docs": "GET, HEAD",
            "/docs/static/swagger-ui.css": "GET, HEAD",
            "/predict": "POST",
            "/v1/models/iris": "GET, HEAD",
            "/v1/models/iris:predict": "POST",
            "/v1/models/iris/versions/1:predict": "POST",
            "/v2/models/stats": "GET, HEAD",
            "/admin/rollouts": "GET, HEAD",
        }.items():
            response = client.delete(path)
            assert (response.status_code, response.headers["allow"]) == (405, allowed), path
            assert allowed in response.json()["error"]
        assert client.get("/v1/models/iris:predict").headers["allow"] == "POST"
        assert client.head("/predict").headers["allow"] == "POST"


@pytest.mark.parametrize("path", ["/v2", "/health/ready", "/models", "/v2/models/iris"])
def test_a_slash_at_the_end_changes_nothing(bundled: Cohort, path: str) -> None:
    """There is no redirect, which would go to the address in the Host header."""
    plain, slash = (httpx.get(bundled.url + one) for one in (path, f"{path}/"))
    assert slash.status_code == 200
    assert slash.content == plain.content


@pytest.mark.parametrize("path", CALLS)
def test_a_prediction_may_end_with_a_slash(bundled: Cohort, path: str) -> None:
    """A POST would not survive every client's redirect."""
    assert httpx.post(f"{bundled.url}{path}/", json=CALLS[path]).status_code == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/metrics/"),
        ("POST", "/admin/models/iris/load/"),
        ("POST", "/v2/repository/models/iris/unload/"),
        ("GET", "/v2//"),
        ("GET", "//"),
    ],
)
def test_a_path_that_a_proxy_guards_is_only_itself(bundled: Cohort, method: str, path: str) -> None:
    """A rule for exactly `/metrics` is not gone around."""
    assert httpx.request(method, bundled.url + path).status_code == 404


@pytest.mark.parametrize(
    "path",
    [
        "/models/iri%73/predict",
        "/models/%69%72%69%73/predict",
        "/models/iris/%70redict",
        "/models/iris/versions/%31/predict",
    ],
)
def test_a_name_may_be_escaped(bundled: Cohort, path: str) -> None:
    """Some clients escape what needs none: RFC 3986, 6.2.2.2."""
    answer = exchange(bundled.url, [request(path, ROW)])[0]
    assert (answer.status, answer.json["model"]) == (200, "iris")


@pytest.mark.parametrize(
    "path",
    [
        "/%6dodels/iris/predict",
        "/%70redict",
        "/models/iris%2Fpredict",
        "/models/%2e%2e/models/iris/predict",
        "/models/iri%2573/predict",
        "/v2/repository/models/iri%73/load",
        "/%61dmin/models/iris/load",
    ],
)
def test_what_a_proxy_may_guard_is_not_escaped(bundled: Cohort, path: str) -> None:
    """An escaped slash or step up is not decoded, since a proxy may not recognise it."""
    answer = exchange(bundled.url, [request(path, ROW)])[0]
    assert answer.status in {401, 403, 404, 405}
