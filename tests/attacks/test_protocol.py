"""Heads that a proxy may read differently from the server, and pages that call it by a browser.

A refused request is refused by every API: the fast path, FastAPI, V2 and V1. It is refused in one
segment or in many, and also if its head was sent before.
"""

from __future__ import annotations

import gzip
import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import onnx_models
from tests.e2e.processes import Cohort, cohort, free_port
from tests.http.wire import Answer, answers, chunked, connect, exchange, read_all

X = [[0.1, 0.2, 0.3, 0.4]]
V2 = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": X}]}
APIS = {
    "hot": ("/predict", {"input": X}),
    "ordinary": ("/predict?by=asgi", {"input": X}),
    "V2": ("/v2/models/mlp/infer", V2),
    "V1": ("/v1/models/mlp:predict", {"instances": X}),
}
apis = pytest.mark.parametrize("api", APIS)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One small model."""
    folder = tmp_path_factory.mktemp("protocol") / "models"
    onnx_models.save(onnx_models.mlp(), folder / "mlp/1/model.onnx")
    return folder


@pytest.fixture(scope="module")
def server(models: Path) -> Iterator[Cohort]:
    """A server for any host."""
    with cohort(models, models.parent, admin_token="token") as started:
        yield started


@pytest.fixture(scope="module")
def guarded(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cohort]:
    """A server that knows its hosts."""
    hosts = "models.example, LOCAL:8000"
    folder = tmp_path_factory.mktemp("guarded")
    with cohort(models, folder, hosts=hosts, port=free_port()) as started:
        yield started


def send(
    path: str,
    body: object,
    *lines: str,
    host: str | None = "x",
    version: str = "HTTP/1.1",
    method: str = "POST",
) -> bytes:
    """Build a request that may break the rules of HTTP."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    top = [f"{method} {path} {version}", *([] if host is None else [f"host: {host}"]), *lines]
    if not any(line.lower().startswith(("transfer-encoding", "content-length")) for line in lines):
        top.append(f"content-length: {len(content)}")
    return "\r\n".join([*top, "", ""]).encode("latin-1") + content


def ways(sent: bytes) -> dict[str, list[bytes]]:
    """The same bytes in segments."""
    middle = sent.find(b"\r\n") - 4
    return {
        "whole": [sent],
        "again": [sent],
        "within the request line": [sent[:middle], sent[middle:]],
        "within the headers": [sent[: middle + 9], sent[middle + 9 :]],
        "by byte": [sent[at : at + 1] for at in range(len(sent))],
    }


def codes(found: list[Answer]) -> list[str]:
    return [one.code for one in found]


# -- heads that mean two things

CODED = json.dumps({"input": X}).encode()

REFUSED: dict[str, dict[str, object]] = {
    "no host": {"host": None},
    "two hosts": {"lines": ("host: x",)},
    "two hosts that differ": {"lines": ("Host: y",)},
    "a path in the host": {"host": "x/admin"},
    "a user in the host": {"host": "a@x"},
    "a list of hosts": {"host": "x,y"},
    "a coding before chunked": {"lines": ("transfer-encoding: gzip, chunked",)},
    "chunked twice": {"lines": ("transfer-encoding: chunked, chunked",)},
    "chunked in two lines": {"lines": ("transfer-encoding: chunked",) * 2},
    "a coding in a line before": {
        "lines": ("transfer-encoding: gzip", "transfer-encoding: chunked")
    },
    "chunked with a parameter": {"lines": ("transfer-encoding: chunked;q=1",)},
    "chunks in HTTP/1.0": {"lines": ("transfer-encoding: chunked",), "version": "HTTP/1.0"},
    "two content-encodings": {"lines": ("content-encoding: identity", "content-encoding: gzip")},
    "two content types": {"lines": ("content-type: application/json", "content-type: text/plain")},
    "two lengths of the JSON": {"lines": ("inference-header-content-length: 9",) * 2},
    "RTSP": {"version": "RTSP/1.0"},
    "RTSP of a later version": {"version": "RTSP/1.1"},
    "RTSP after spaces": {"version": "  RTSP/1.0"},
    "HTTP/2.0": {"version": "HTTP/2.0"},
    "HTTP/0.9": {"version": "HTTP/0.9"},
    "another protocol": {"version": "ICE/1.0"},
}


def refused(api: str, name: str) -> bytes:
    """A request that must be refused, whose body would be a good one."""
    path, body = APIS[api]
    case = dict(REFUSED[name])
    lines = case.pop("lines", ())
    content: object = body
    if "transfer-encoding" in str(lines):
        content = chunked(json.dumps(body).encode())
    assert isinstance(lines, tuple)
    return send(path, content, *lines, **case)  # type: ignore[arg-type]


@apis
@pytest.mark.parametrize("name", REFUSED)
def test_ambiguous_heads_are_refused(server: Cohort, api: str, name: str) -> None:
    """They get 400 and the connection ends, in any segments and however often they are sent."""
    sent = refused(api, name)
    for way, parts in ways(sent).items():
        found = exchange(server.url, parts, last=None)
        assert codes(found) == ["InvalidInput"], way
        assert found[0].status == 400
        assert found[0].headers["connection"] == "close"


@apis
@pytest.mark.parametrize("name", REFUSED)
def test_what_follows_an_ambiguous_head_is_not_answered(
    server: Cohort, api: str, name: str
) -> None:
    """Requests before it are answered; the refused request's body is not read as a request."""
    good = send(*APIS[api])
    found = exchange(server.url, [good * 2 + refused(api, name) + good], last=None)
    assert codes(found) == ["OK", "OK", "InvalidInput"]


@apis
def test_text_about_other_protocols_is_no_request_of_theirs(server: Cohort, api: str) -> None:
    """Such text is not interpreted in headers and bodies."""
    path, body = APIS[api]
    words = f"POST {path} RTSP/2.0"
    text = json.dumps(body)[:-1] + f', "{"signature_name" if api == "V1" else "id"}": ""}}'
    sent = send(path, text.encode(), "x-first: y", f"user-agent: {words}", host="x")
    for way, parts in ways(sent).items():
        assert codes(exchange(server.url, parts)) == ["OK", "OK"], way
    lost = send("/nowhere", f"\r\n{words} ".encode())
    assert codes(exchange(server.url, [lost + send(path, body)])) == ["NotFound", "OK", "OK"]


UPGRADE = ("connection: upgrade", "upgrade: h2c")


@pytest.mark.parametrize("name", ["no host", "two hosts", "chunked twice"])
def test_an_ambiguous_head_behind_one_that_asks_for_an_upgrade_is_refused(
    server: Cohort, name: str
) -> None:
    """It is the caller's fault there, too, and not the server's."""
    sent = send(*APIS["hot"], *UPGRADE) + refused("hot", name)
    assert codes(exchange(server.url, [sent], last=None)) == ["OK", "InvalidInput"]
    assert '"level": "error"' not in server.logged


def test_words_of_another_protocol_in_a_segment_of_headers_are_words(server: Cohort) -> None:
    """They are words also if the segment begins after the first header, within the head."""
    path, body = APIS["hot"]
    sent = send(path, body, "user-agent: A b RTSP/1.0")
    places = (sent.index(b"user-agent"), sent.index(b"b RTSP"), sent.index(b"host") + 3)
    for place in places:
        assert codes(exchange(server.url, [sent[:place], sent[place:]])) == ["OK", "OK"]


def test_http_1_0_needs_no_host(server: Cohort) -> None:
    """Balancers' checks are written so."""
    sent = send("/health/live", b"", host=None, version="HTTP/1.0", method="GET")
    assert codes(exchange(server.url, [sent], last=None)) == ["OK"]


def test_a_compressed_body_has_one_coding(server: Cohort) -> None:
    """A list of codings is refused as a second header is."""
    body = gzip.compress(json.dumps(V2).encode())
    path = APIS["V2"][0]
    assert codes(exchange(server.url, [send(path, body, "content-encoding: gzip")]))[0] == "OK"
    twice = send(path, body, "content-encoding: gzip, gzip")
    assert codes(exchange(server.url, [twice]))[0] == "UnsupportedMedia"


# -- paths in another spelling

SPELLINGS = (
    "/%70redict",
    "/predic%74",
    "/models/mlp%2fpredict",
    "/%6dodels/mlp/predict",
    "/v2/models/mlp%2Finfer",
    "http://x/%70redict",
)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/models/m%6cp/predict", {"input": X}),
        ("/v2/models/ml%70/infer", V2),
        ("/v1/models/ml%70:predict", {"instances": X}),
        ("/v1/models/mlp:%70redict", {"instances": X}),
    ],
)
def test_escapes_that_change_nothing_are_read_in_the_paths_of_models(
    server: Cohort, path: str, body: object
) -> None:
    """They are decoded as in RFC 3986 (6.2.2.2), at first and once the head was seen."""
    sent = send(path, body)
    for way, parts in ways(sent * 2).items():
        assert {one.status for one in exchange(server.url, parts)[:-1]} == {200}, way


@pytest.mark.parametrize("path", SPELLINGS)
def test_percent_encoding_reaches_no_route(server: Cohort, path: str) -> None:
    """At first and once the head was seen, the path does not exist or the method is wrong."""
    for body in ({"input": X}, V2, {"instances": X}):
        sent = send(path, body)
        for way, parts in ways(sent * 2).items():
            found = exchange(server.url, parts)
            assert {one.status for one in found[:-1]} <= {400, 404, 405}, way
            assert len(found) == 3


@pytest.mark.parametrize(
    "path", ["/%61dmin/rollouts", "/admin/%72ollouts", "/%68ealth", "/%6detrics"]
)
def test_percent_encoding_reaches_no_page(server: Cohort, path: str) -> None:
    """A proxy that guards /admin does not know /%61dmin."""
    sent = send(path, b"", "authorization: Bearer token", method="GET")
    assert codes(exchange(server.url, [sent * 2])) == ["NotFound", "NotFound", "OK"]


@pytest.mark.parametrize("target", ["http://evil?/x", "http://evil", "http://?", "x://y?http://z/"])
def test_a_target_without_a_path_is_refused(server: Cohort, target: str) -> None:
    """The request is refused, and the log has no traceback."""
    before = len(server.logged)
    assert codes(exchange(server.url, [send(target, b"", method="GET")]))[0] == "InvalidInput"
    assert "Traceback" not in server.logged[before:]
    assert '"failed"' not in server.logged[before:]


# -- hosts and origins

OURS = ("models.example", "models.example:80", "Models.Example:9000", "local:8000")
THEIRS = (
    "evil.example",
    "x.models.example",
    "models.example.evil",
    "127.0.0.1",
    "local",
    "local:80",
    "",
)
BLIND = "content-type: text/plain"
"""A content type that a page may send to any server without a preflight request."""


@apis
def test_only_its_own_hosts_are_answered(guarded: Cohort, api: str) -> None:
    """They are answered for any port if none is set; others get 403, however often they ask."""
    for host in OURS:
        sent = send(*APIS[api], host=host)
        assert codes(exchange(guarded.url, [sent * 2])) == ["OK"] * 3, host
    for host in THEIRS:
        for way, parts in ways(send(*APIS[api], host=host)).items():
            found = exchange(guarded.url, parts, last=None)
            assert [one.status for one in found] == [403], (host, way)
    nobody = send(*APIS[api], host=None, version="HTTP/1.0")
    assert [one.status for one in exchange(guarded.url, [nobody], last=None)] == [403]


@apis
@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://models.example.evil"])
def test_pages_of_others_do_not_predict(guarded: Cohort, api: str, origin: str) -> None:
    """They get 403 also as text/plain, which needs no preflight; the server's own pages work."""
    good = send(*APIS[api], BLIND, host=OURS[0])
    own = send(*APIS[api], BLIND, "origin: https://models.example:443", host=OURS[0])
    sent = send(*APIS[api], BLIND, f"origin: {origin}", host=OURS[0])
    assert codes(exchange(guarded.url, [(good + own) * 2])) == ["OK"] * 5
    for way, parts in ways(good + sent).items():
        found = exchange(guarded.url, parts, last=None)
        assert [one.status for one in found] == [200, 403], way
    assert guarded.logged.count("Traceback") == 0


def test_a_target_with_a_host_must_name_ours(guarded: Cohort) -> None:
    """A host in the request target must be an allowed one; it overrides the header."""
    ours, theirs = (
        send(f"http://{host}/predict", {"input": X}, host=OURS[0])
        for host in ("local:8000", "evil")
    )
    found = exchange(guarded.url, [ours + theirs], last=None)
    assert [one.status for one in found] == [200, 403]


@pytest.mark.parametrize(
    "path", ["/health", "/health/live", "/health/ready", "/v2/health/live", "/v2/health/ready?x"]
)
def test_health_is_told_to_any_host(guarded: Cohort, path: str) -> None:
    """Balancers and orchestrators ask by address."""
    sent = send(path, b"", host="10.1.2.3:8000", method="GET")
    assert codes(exchange(guarded.url, [sent * 2])) == ["OK"] * 3


# -- the end of a process


def test_requests_behind_another_are_answered_while_draining(models: Path, tmp_path: Path) -> None:
    """Whichever way they are answered; the last of them closes the connection."""
    kinds = [
        send("/models", b"", method="GET"),
        send(*APIS["ordinary"]),
        send(*APIS["hot"]),
        send("/nowhere", b"", method="GET"),
        send(*APIS["V2"]),
        send(*APIS["V2"], "accept-encoding: gzip"),
    ]
    with cohort(models, tmp_path, drain_notice_seconds=60) as server:
        server.process.send_signal(signal.SIGTERM)
        server.wait_for("/health/ready", 503)
        for turn in range(len(kinds)):
            sent = kinds[turn:] + kinds[:turn]
            with connect(server.url) as connection:
                connection.sendall(b"".join(sent))
                found = answers(read_all(connection))
            assert len(found) == len(kinds)
            assert ["connection" in one.headers for one in found] == [False] * 5 + [True]
        server.process.send_signal(signal.SIGTERM)


def test_the_server_went_on(server: Cohort) -> None:
    """The server still answers after all tests above."""
    assert codes(exchange(server.url, [send(*APIS["hot"])])) == ["OK", "OK"]
    assert "Traceback" not in server.logged
