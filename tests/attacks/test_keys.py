"""Ways around the callers' keys, each over every API that it concerns.

One server has models that some keys may not see. Another has only those that the key `web` may see.
The answers that `web` gets from the two are compared: a hidden model must look exactly like a
missing one.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import grpc
import httpx
import numpy as np
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from cohort.auth import digest_of
from cohort.http.guards.callers import OPEN_PATHS
from cohort.rpc import inference_pb2 as messages
from tests.e2e.processes import MODELS, Cohort, cohort, free_port
from tests.http.wire import answers, connect, exchange, read_all, request
from tests.rpc.client import PATH, SERVICE, raw_request
from tests.waiting import wait_until

WEB, ALL, OPS, ADMIN = "key-of-web", "key-of-all", "key-of-ops", "admin-token"
METRICS = "key-of-metrics"
DIGITS = "key-of-digits"
APIS = ("hot", "ordinary", "v2", "v1", "unary", "stream")
ONCE = {api: f"key-of-once-{api}" for api in APIS}
SECRETS = (WEB, ALL, DIGITS, OPS, ADMIN, METRICS, "key-of-one", *ONCE.values())

IRIS = np.array([[5.1, 3.5, 1.4, 0.2]], "f4")
ROW = IRIS.round(1).astype("f8").round(1).tolist()
UNAUTHORIZED = "Unauthorized"


def entry(name: str, secret: str, more: str = "") -> str:
    return f'- {{name: {name}, sha256: "{digest_of(secret).hex()}"{more}}}\n'


def entries() -> str:
    return "".join(
        [
            entry("web", WEB, ", models: [iris]"),
            entry("all", ALL),
            entry("digits", DIGITS, ", models: [digits]"),
            entry("ops", OPS, ", admin: true"),
            entry("one", "key-of-one", ", concurrency: 1"),
            *(entry(f"once-{api}", key, ", rate: 0.001") for api, key in ONCE.items()),
        ]
    )


class Servers(NamedTuple):
    whole: Cohort  # has digits, which `web` may not see
    part: Cohort  # has no digits


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """Two servers with the same keys."""
    folder = tmp_path_factory.mktemp("keys")
    (folder / "keys.yaml").write_text(entries())
    for name, models in (("whole", ("iris", "digits")), ("part", ("iris",))):
        for model in models:
            shutil.copytree(MODELS / model, folder / name / model)
    settings: dict[str, Any] = {
        "api_keys": folder / "keys.yaml",
        "admin_token": ADMIN,
        "metrics_key": METRICS,
    }
    with (
        cohort(folder / "whole", folder, grpc_port=free_port(), **settings) as whole,
        cohort(folder / "part", folder, grpc_port=free_port(), **settings) as part,
    ):
        yield Servers(whole, part)


# --- One request over each API


class Told(NamedTuple):
    """The error's name, or OK, and the sentence."""

    code: str
    sentence: str
    retry_after: float | None = None


Headers = Sequence[tuple[str, str]]


def over_http(path: str, body: Callable[[str], object]) -> Callable[[Cohort, Headers, str], Told]:
    def ask(server: Cohort, headers: Headers, model: str) -> Told:
        lines = [f"{name}: {value}" for name, value in headers]
        sent = request(path.format(model=model), body(model), *lines)
        answer = exchange(server.url, [sent])[0]
        if answer.status == httpx.codes.UNAUTHORIZED:
            assert answer.headers["www-authenticate"] == "Bearer"
        sentence = "" if answer.code == "OK" else answer.json["error"]
        retry_after = answer.headers.get("retry-after")
        return Told(answer.code, sentence, None if retry_after is None else float(retry_after))

    return ask


def over_grpc(server: Cohort, headers: Headers, model: str) -> Told:
    with grpc.insecure_channel(server.grpc) as channel:
        call = unary(channel, f"{PATH}/ModelInfer")
        message = raw_request(model, {"features": IRIS}).SerializeToString()
        return _told(lambda: call(message, metadata=metadata_of(headers)))


def over_stream(server: Cohort, headers: Headers, model: str) -> Told:
    with grpc.insecure_channel(server.grpc) as channel:
        call = stream(channel)
        message = raw_request(model, {"features": IRIS}).SerializeToString()

        def first() -> None:
            data = next(iter(call(iter([message]), metadata=metadata_of(headers))))
            error = messages.ModelStreamInferResponse.FromString(data).error_message
            if error:
                code, _, sentence = error.partition(": ")
                raise StreamedError(code, sentence)

        return _told(first)


class StreamedError(Exception):
    pass


def metadata_of(headers: Headers) -> tuple[tuple[str, str], ...]:
    return tuple((name.lower(), value) for name, value in headers)


def unary(channel: grpc.Channel, path: str) -> Any:
    """A call of one request, in bytes."""
    call: Any = channel.unary_unary(path)
    return call


def stream(channel: grpc.Channel) -> Any:
    """A call of many requests, in bytes."""
    call: Any = channel.stream_stream(f"{PATH}/ModelStreamInfer")
    return call


def _told(ask: Callable[[], object]) -> Told:
    try:
        ask()
    except StreamedError as error:
        return Told(*error.args)
    except grpc.RpcError as error:
        pairs: Any = error.trailing_metadata() or ()
        trailing: dict[str, str] = dict(pairs)
        wait = trailing.get("grpc-retry-pushback-ms")
        code = trailing["error-code"]
        return Told(code, error.details() or "", None if wait is None else int(wait) / 1000)
    return Told("OK", "")


ASK: Mapping[str, Callable[[Cohort, Headers, str], Told]] = {
    "hot": over_http("/models/{model}/predict", lambda _: {"input": ROW}),
    "ordinary": over_http("/predict?x=1", lambda model: {"model": model, "input": ROW}),
    "v1": over_http("/v1/models/{model}:predict", lambda _: {"instances": ROW}),
    "v2": over_http(
        "/v2/models/{model}/infer",
        lambda _: {
            "inputs": [{"name": "features", "datatype": "FP32", "shape": [1, 4], "data": ROW}]
        },
    ),
    "unary": over_grpc,
    "stream": over_stream,
}


def bearer(key: str) -> Headers:
    return [("authorization", f"Bearer {key}")]


# --- Without a key, or with a wrong one

NOT_KEYS: tuple[Headers, ...] = (
    [],
    [("authorization", "")],
    [("x-api-key", "")],
    [("authorization", "Bearer")],
    [("authorization", f"Basic {WEB}")],
    [("authorization", WEB)],
    [("authorization", f"Bearer: {WEB}")],
    [("authorization", f"Bearer {WEB.upper()}")],
    [("authorization", f"Bearer {WEB}x")],
    [("authorization", f"Bearer {WEB[:-1]}")],
    [("authorization", f"Bearer {WEB},{ALL}")],
    [("authorization", f"Bearer {digest_of(WEB).hex()}")],
    [("authorization", "Bearer web")],
    [("authorization", f"Bearer {METRICS}")],
    [("x-api-key", f"Bearer {WEB}")],
    [("x-api-key", digest_of(WEB).hex())],
    [("api-key", WEB), ("x-apikey", WEB), ("cookie", f"x-api-key={WEB}")],
    [("x_api_key", WEB)],
    [("proxy-authorization", f"Bearer {WEB}")],
    [("x-forwarded-authorization", f"Bearer {WEB}")],
)


@pytest.mark.parametrize("api", APIS)
def test_nothing_but_the_key_is_a_key(servers: Servers, api: str) -> None:
    """A part of a key, its digest or name, or a key in another place is Unauthorized."""
    for headers in NOT_KEYS:
        assert ASK[api](servers.whole, headers, "iris").code == UNAUTHORIZED, headers


@pytest.mark.parametrize("api", APIS)
def test_two_different_keys_are_none(servers: Servers, api: str) -> None:
    """They are refused in one header or in both, in either order, although each is right."""
    two: Sequence[Headers] = (
        [*bearer(WEB), ("x-api-key", ALL)],
        [("x-api-key", ALL), *bearer(WEB)],
        [*bearer(WEB), *bearer(ALL)],
        [("x-api-key", WEB), ("x-api-key", "wrong")],
        [*bearer(WEB), *bearer("wrong")],
    )
    for headers in two:
        told = ASK[api](servers.whole, headers, "iris")
        assert told.code == UNAUTHORIZED, headers


@pytest.mark.parametrize("api", APIS)
def test_the_key_is_taken_from_either_header(servers: Servers, api: str) -> None:
    """The scheme's case does not matter; a key may be sent twice or with a header without a key."""
    good: Sequence[Headers] = (
        bearer(WEB),
        [("authorization", f"bearer  {WEB}")],
        [("x-api-key", WEB)],
        [*bearer(WEB), ("x-api-key", WEB)],
        [*bearer(WEB), *bearer(WEB)],
        [("authorization", "Basic eA=="), ("x-api-key", WEB)],
        [("x-api-key", ""), *bearer(WEB)],
    )
    for headers in good:
        assert ASK[api](servers.whole, headers, "iris").code == "OK", headers


def test_header_names_are_alike_in_every_case(servers: Servers) -> None:
    """HTTP/1.1 names match in any case, on the fast path and on the other."""
    for name in ("X-API-KEY", "x-Api-Key", "AUTHORIZATION"):
        value = f"Bearer {WEB}" if name == "AUTHORIZATION" else WEB
        for api in ("hot", "ordinary"):
            assert ASK[api](servers.whole, [(name, value)], "iris").code == "OK"


# --- Other routes, methods and spellings


def routes(server: Cohort) -> Iterator[str]:
    """Every path of a server, with names where it has parameters."""
    names = {
        "model": "iris",
        "version": "1",
        "variant": "a",
        "label": "a",
        "verb": "predict",
        "region": "a",
    }
    document = httpx.get(f"{server.url}/openapi.json", headers={"x-api-key": ALL}).json()
    for path in document["paths"]:
        yield re.sub(r"{(\w+)}", lambda found: names[found[1]], path)


METHODS = ("GET", "HEAD", "POST", "OPTIONS", "PUT", "DELETE", "PATCH", "TRACE", "BREW")


def test_every_route_that_is_not_open_needs_a_key(servers: Servers) -> None:
    """It needs a key for every method, also if there is no such route."""
    paths = {
        *routes(servers.whole),
        "/nothing",
        "/v2/repository/index",
        "/invocations",
        "/ping",
    } - OPEN_PATHS
    assert len(paths) > 30
    with httpx.Client(base_url=servers.whole.url) as client:
        for path in sorted(paths):
            for method in METHODS[:-1]:
                status = client.request(method, path).status_code
                assert status == httpx.codes.UNAUTHORIZED, (method, path)


OPEN = ("/health", "/health/live", "/health/ready", "/v2/health/live", "/v2/health/ready", "/docs")


def test_health_and_the_page_are_open(servers: Servers) -> None:
    """They answer also with a wrong key, since a health checker may send any header."""
    with httpx.Client(base_url=servers.whole.url) as client:
        for headers in ({}, {"x-api-key": "wrong"}, {"x-api-key": WEB}):
            for path in (*OPEN, "/openapi.json", "/docs/static/swagger-ui.css"):
                assert client.get(path, headers=headers).status_code == httpx.codes.OK, path
            assert client.get("/", headers=headers).status_code != httpx.codes.UNAUTHORIZED


SPELLINGS = (
    "/models/ir%69s/predict",
    "/%6dodels/iris/predict",
    "/models%2Firis%2Fpredict",
    "//models/iris/predict",
    "/health/../models/iris/predict",
    "/health/%2e%2e/models/iris/predict",
    "/health/..%2fmodels/iris/predict",
    "/docs/static/../../models/iris/predict",
    "/docs/static/..%2f..%2fmodels/iris/predict",
    "/docs/static/%2e%2e/%2e%2e/models",
    "/models/iris/predict/",
    "/models/iris/predict?x=/health",
    "/models/iris/predict#/health",
    "/models/iris/predict;/health",
    "/health/live/models/iris/predict",
    "/health%00/models/iris/predict",
    "http://x/models/iris/predict",
    "http://x/health/../models/iris/predict",
    "/MODELS/iris/predict",
    "/v1/models/iris%3Apredict",
    "/v2/models/iris/infer/",
    "/openapi.json/../models",
)


def test_no_spelling_of_a_path_gets_around_the_key(servers: Servers) -> None:
    """No method with such a path predicts, or shows that there is a model."""
    for path in SPELLINGS:
        for method in ("POST", "GET"):
            sent = request(path, {"input": ROW}, method=method)
            (answer, *_) = exchange(servers.whole.url, [sent])
            assert answer.status in {400, 401, 404, 405}, (method, path, answer)
            told = answer.body.replace(path.encode(), b"").replace(unquote(path).encode(), b"")
            assert b"iris" not in told, (method, path)


def test_a_compressed_or_chunked_body_needs_a_key(servers: Servers) -> None:
    """It is refused without a key also if its sender waits for `100 Continue`."""
    body = gzip.compress(json.dumps({"inputs": []}).encode())
    for headers in (
        ["content-encoding: gzip"],
        ["accept-encoding: gzip;q=1, identity;q=0"],
        ["expect: 100-continue"],
        ["upgrade: h2c", "connection: upgrade"],
        ["transfer-encoding: chunked"],
    ):
        sent = request("/v2/models/iris/infer", body, *headers)
        if "chunked" in headers[0]:
            sent = sent.removesuffix(body) + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
        assert exchange(servers.whole.url, [sent])[0].status == httpx.codes.UNAUTHORIZED, headers


def test_a_large_body_is_refused_before_it_is_sent(servers: Servers) -> None:
    """Its head is refused and its connection closed; a small body is read to its end."""
    for path in ("/models/iris/predict", "/models/iris/predict?x=1"):
        head = request(path, b"", "content-length: 50000000")
        with connect(servers.whole.url) as connection:
            connection.sendall(head)
            (answer,) = answers(read_all(connection))
        assert (answer.status, answer.headers["connection"]) == (401, "close")
        small, after = exchange(servers.whole.url, [request(path, {"input": ROW})])
        assert (small.status, after.status) == (401, 200)
        assert "connection" not in small.headers


# --- Connections that have seen a key


def predict(key: str | None, model: str = "iris", path: str = "/models/{model}/predict") -> bytes:
    headers = [] if key is None else [f"x-api-key: {key}"]
    return request(path.format(model=model), {"input": ROW}, *headers)


@pytest.mark.parametrize("path", ["/models/{model}/predict", "/models/{model}/predict?x=1"])
def test_each_pipelined_request_needs_its_own_key(servers: Servers, path: str) -> None:
    """The one before it had one, and so has the one behind it."""
    keys = [WEB, None, WEB, "wrong", None, WEB]
    burst = b"".join(predict(key, path=path) for key in keys)
    for parts in ([burst], [predict(key, path=path) for key in keys], [burst[:700], burst[700:]]):
        told = exchange(servers.whole.url, parts)
        assert [one.status for one in told[:-1]] == [200, 401, 200, 401, 401, 200]


def test_a_remembered_head_is_not_another_s(servers: Servers) -> None:
    """Heads that differ in the key alone stay apart, however often they come."""
    for _ in range(3):
        for key, status in ((WEB, 200), (None, 401), (ALL, 200), (WEB[::-1], 401)):
            (answer, _) = exchange(servers.whole.url, [predict(key)])
            assert answer.status == status
        (hidden, _) = exchange(servers.whole.url, [predict(WEB, "digits")])
        assert hidden.code == "ModelNotFound"
        (seen, _) = exchange(servers.whole.url, [predict(ALL, "digits")])
        assert seen.code == "InvalidInput"  # it is there, and takes other input


def test_requests_read_together_are_answered_by_what_each_may_see(servers: Servers) -> None:
    """Small requests share runs; none that shares one is answered by a hidden model."""
    sent = [
        request("/predict", {"model": "iris", "input": ROW}, f"x-api-key: {WEB}"),
        request("/predict", {"model": "iris", "input": ROW}, f"x-api-key: {ALL}"),
        request("/predict", {"model": "iris", "input": ROW}, f"x-api-key: {DIGITS}"),
        request("/models/iris/predict", {"input": ROW}, f"x-api-key: {DIGITS}"),
        request("/predict", {"input": ROW}, f"x-api-key: {WEB}"),
        request("/predict", {"input": ROW}, f"x-api-key: {ALL}"),
        request("/predict", {"model": "iris", "input": ROW}, "x-api-key: wrong"),
    ]
    missing = "ModelNotFound"
    expected = ["OK", "OK", missing, missing, "OK", "InvalidInput", UNAUTHORIZED]
    for _ in range(20):
        connections = [connect(servers.whole.url) for _ in sent]
        for connection, one in zip(connections, sent, strict=True):
            connection.sendall(one.replace(b"host: x", b"host: x\r\nconnection: close"))
        codes = []
        for connection in connections:
            with connection:
                codes += [one.code for one in answers(read_all(connection))]
        assert codes == expected


# --- Hidden models


@pytest.mark.parametrize("api", APIS)
def test_a_hidden_model_is_told_as_a_missing_one(servers: Servers, api: str) -> None:
    """Both answers have the same words and suggestions, whichever name is similar."""
    for name in ("digits", "digit", "Digits", "irid"):
        hidden, missing = (ASK[api](server, bearer(WEB), name) for server in servers)
        assert hidden == missing
        assert hidden.code == "ModelNotFound"
    assert ASK[api](servers.whole, bearer(ALL), "digits").code == "InvalidInput"


READS = (
    "GET /models",
    "GET /models/digits",
    "GET /models/digits/versions/1",
    "GET /models/digits/versions/9",
    "GET /openapi.json",
    "POST /v2/repository/index",
    "GET /v2/models/stats",
    "GET /v2/models/digits",
    "GET /v2/models/digits/ready",
    "HEAD /v2/models/digits/ready",
    "GET /v2/models/digits/config",
    "GET /v2/models/digits/stats",
    "GET /v2/models/digits/versions/1",
    "GET /v2/models/digits/versions/1/ready",
    "GET /v2/models/digits/versions/1/config",
    "GET /v2/models/digits/versions/1/stats",
    "GET /v1/models/digits",
    "GET /v1/models/digits/versions/1",
    "GET /v1/models/digits/labels/canary",
    "GET /v1/models/digits/metadata",
    "POST /v1/models/digits/labels/canary:predict",
    "POST /v1/models/digits:classify",
    "POST /models/digits/predict",
    "POST /models/digits/versions/1/predict",
    "POST /v2/models/digits/infer",
    "POST /v2/models/digits/versions/1/infer",
    "POST /predict",
    "POST /admin/models/digits/load",
    "POST /v2/repository/models/digits/unload",
    "GET /admin/rollouts",
    "GET /nothing",
)


@pytest.mark.parametrize("read", READS)
def test_no_route_tells_that_a_hidden_model_exists(servers: Servers, read: str) -> None:
    """The whole answer is the one of a server without it."""
    method, path = read.split()
    hidden, missing = (
        httpx.request(method, server.url + path, headers={"x-api-key": WEB}) for server in servers
    )
    assert hidden.status_code == missing.status_code
    assert "digits" not in hidden.text.replace("'digits'", "").replace("/digits/", "")
    if path == "/openapi.json":  # which of a route's methods names it differs by process
        documents = [json.loads(one.text.replace(' Head"', ' Get"')) for one in (hidden, missing)]
        assert documents[0] == documents[1]
    elif "stats" not in path:  # what was counted differs
        assert hidden.content == missing.content


def test_what_is_open_shows_nothing_of_models(servers: Servers) -> None:
    """Health and the document name those that the key may see, and none without one."""
    for path in (*OPEN, "/openapi.json"):
        for headers, names in (
            ({}, ()),
            ({"x-api-key": "no"}, ()),
            ({"x-api-key": WEB}, ("iris",)),
        ):
            text = httpx.get(servers.whole.url + path, headers=headers).text
            assert "digits" not in text, path
            if path in {"/health", "/openapi.json"}:
                assert ("iris" in text) == bool(names), path
    everything = httpx.get(f"{servers.whole.url}/health", headers={"x-api-key": ALL}).json()
    assert set(everything["models"]) == {"iris", "digits"}


GRPC_READS: Mapping[str, Any] = {
    "ModelMetadata": messages.ModelMetadataRequest(name="digits"),
    "ModelConfig": messages.ModelConfigRequest(name="digits"),
    "ModelStatistics": messages.ModelStatisticsRequest(name="digits"),
    "ModelReady": messages.ModelReadyRequest(name="digits"),
    "RepositoryIndex": messages.RepositoryIndexRequest(),
    "RepositoryModelLoad": messages.RepositoryModelLoadRequest(model_name="digits"),
    "RepositoryModelUnload": messages.RepositoryModelUnloadRequest(model_name="digits"),
}


def call_grpc(server: Cohort, method: str, message: Any, key: str | None) -> tuple[object, ...]:
    """The answer's bytes, or the error's code and details."""
    with grpc.insecure_channel(server.grpc) as channel:
        call = unary(channel, f"{PATH}/{method}")
        metadata = () if key is None else metadata_of(bearer(key))
        try:
            return "OK", call(message.SerializeToString(), metadata=metadata)
        except grpc.RpcError as error:
            return error.code().name, error.details()


@pytest.mark.parametrize("method", GRPC_READS)
def test_no_call_tells_that_a_hidden_model_exists(servers: Servers, method: str) -> None:
    """gRPC's answers are those of a server without it, byte by byte."""
    message = GRPC_READS[method]
    hidden, missing = (call_grpc(server, method, message, WEB) for server in servers)
    assert hidden == missing


def test_every_call_but_health_needs_a_key(servers: Servers) -> None:
    """Each method of the service; health, liveness and reflection are open and name no model."""
    for method in SERVICE.methods_by_name:
        if method == "ModelStreamInfer":
            continue
        told = call_grpc(servers.whole, method, messages.ModelInferRequest(), None)
        opened = method in {"ServerLive", "ServerReady"}
        assert told[0] == ("OK" if opened else "UNAUTHENTICATED"), method
    with grpc.insecure_channel(servers.whole.grpc) as channel:
        check = unary(channel, "/grpc.health.v1.Health/Check")
        for service in ("", SERVICE.full_name):
            check(health_pb2.HealthCheckRequest(service=service).SerializeToString())
        for service in ("digits", "nobody"):
            with pytest.raises(grpc.RpcError) as caught:
                check(health_pb2.HealthCheckRequest(service=service).SerializeToString())
            assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        assert SERVICE.full_name in ProtoReflectionDescriptorDatabase(channel).get_services()


def test_a_stream_without_a_key_is_not_opened(servers: Servers) -> None:
    """It ends before a message is read, with UNAUTHENTICATED."""
    with grpc.insecure_channel(servers.whole.grpc) as channel:
        call = stream(channel)
        with pytest.raises(grpc.RpcError) as caught:
            list(call(iter([])))
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


# --- Quotas


@pytest.mark.parametrize("api", APIS)
def test_a_rate_is_counted_per_request_on_every_api(servers: Servers, api: str) -> None:
    """The second request of a key that has one in a thousand seconds waits that long."""
    headers = bearer(ONCE[api])
    assert ASK[api](servers.whole, headers, "iris").code == "OK"
    for other in APIS:  # it is one quota for all of them
        told = ASK[other](servers.whole, headers, "iris")
        assert told.code == "Overloaded"
        assert "0.001 requests per second" in told.sentence
        if other != "stream":  # its messages have no place for it
            assert told.retry_after is not None
            assert told.retry_after > 1


@pytest.mark.parametrize("path", ["/models/{model}/predict", "/models/{model}/predict?x=1"])
def test_requests_in_progress_are_counted_until_they_end(servers: Servers, path: str) -> None:
    """While one's body arrives there is no other; an answer or a disconnect frees the place."""
    sent = predict("key-of-one", path=path)
    for ends in ("answered", "left"):
        with connect(servers.whole.url) as slow:
            slow.sendall(sent[:-5])
            wait_until(lambda: asked_once(servers.whole, sent) == "Overloaded")
            if ends == "answered":
                slow.sendall(sent[-5:])
                assert b" 200 " in slow.recv(100)
        wait_until(lambda: asked_once(servers.whole, sent) == "OK")


def asked_once(server: Cohort, sent: bytes) -> str:
    return exchange(server.url, [sent])[0].code


def test_metrics_say_who_asked_for_how_much(servers: Servers) -> None:
    """Metrics name the keys, and need a key; a caller without one gets only a refusal."""
    url = f"{servers.whole.url}/metrics"
    for headers in ({}, {"x-api-key": WEB}, {"x-api-key": "wrong"}):
        refused = httpx.get(url, headers=headers)
        assert refused.status_code == httpx.codes.UNAUTHORIZED
        assert refused.headers["www-authenticate"] == "Bearer"
    before = counted(servers.whole)
    ASK["hot"](servers.whole, bearer(ALL), "iris")
    ASK["unary"](servers.whole, bearer(ALL), "iris")
    ASK["unary"](servers.whole, [], "iris")
    after = counted(servers.whole)
    assert (
        after['api_key_requests_total{key="all"}']
        == before['api_key_requests_total{key="all"}'] + 2
    )
    for name in ('api_key_unauthorized_total{sent="none"}',):
        assert after[name] == before[name] + 1
    assert after["api_keys_config_valid"] == 1


def counted(server: Cohort) -> dict[str, float]:
    headers = {"authorization": f"Bearer {METRICS}"}
    text = httpx.get(f"{server.url}/metrics", headers=headers).text
    pairs = [line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("api_key")]
    return {name: float(value) for name, value in pairs}


# --- Operators


def test_a_callers_key_operates_nothing(servers: Servers) -> None:
    """It gets 403 over REST, PERMISSION_DENIED over gRPC; an admin's key works and is logged."""
    paths = ("/admin/models/iris/load", "/v2/repository/models/iris/load")
    for path in paths:
        for key, status in ((None, 401), ("wrong", 401), (WEB, 403), (ALL, 403)):
            headers = {} if key is None else {"x-api-key": key}
            assert httpx.post(servers.part.url + path, headers=headers).status_code == status
        for key in (OPS, ADMIN):
            headers = {"authorization": f"Bearer {key}"}
            assert httpx.post(servers.part.url + path, headers=headers).status_code == 200
    load = messages.RepositoryModelLoadRequest(model_name="iris")
    assert call_grpc(servers.part, "RepositoryModelLoad", load, ALL)[0] == "PERMISSION_DENIED"
    assert call_grpc(servers.part, "RepositoryModelLoad", load, OPS)[0] == "OK"
    expected = {
        *((admin, f"POST {path}") for path in paths for admin in ("ops", "admin")),
        ("ops", "RepositoryModelLoad 'iris'"),
    }
    wait_until(lambda: logged_actions(servers.part) >= expected)
    assert logged_actions(servers.part) == expected


def logged_actions(server: Cohort) -> set[tuple[str, str]]:
    """The admins by name, and what they did, as far as that is in the log yet."""
    lines = [json.loads(line) for line in server.logged.splitlines() if line.endswith("}")]
    admin = [one for one in lines if one.get("event") == "admin request"]
    return {(one["caller"], one["action"]) for one in admin if one["result"] == "done"}


# --- While the file changes


@dataclass
class Edited:
    """A server whose file of keys a test edits."""

    server: Cohort
    file: Path

    def write(self, text: str) -> None:
        """Replace the file by a rename, as an operator does with `mv`."""
        other = self.file.with_suffix(".new")
        other.write_text(text)
        other.replace(self.file)

    def code(self, api: str, key: str) -> str:
        return ASK[api](self.server, bearer(key), "iris").code


@pytest.fixture
def edited(tmp_path: Path) -> Iterator[Edited]:
    models, file = tmp_path / "models", tmp_path / "keys.yaml"
    shutil.copytree(MODELS / "iris", models / "iris")
    file.write_text(entry("web", WEB) + entry("all", ALL))
    settings: dict[str, Any] = {"api_keys": file, "grpc_port": free_port(), "admin_token": ADMIN}
    with cohort(models, tmp_path, **settings) as server:
        yield Edited(server, file)


def test_a_key_that_is_taken_back_is_wrong_at_once_everywhere(edited: Edited) -> None:
    """It fails on open connections, in remembered heads and on open streams; other keys still work.

    A file that is wrong or missing changes nothing; the health, the metrics and the log report it.
    """
    channel = grpc.insecure_channel(edited.server.grpc)
    stream = Asked(channel, WEB)
    with connect(edited.server.url) as kept, channel:
        for sent in (predict(WEB), predict(WEB)):
            kept.sendall(sent)
            assert b" 200 " in kept.recv(4096)
        assert stream.ask() == ""

        edited.write("- {name: web, sha: x}")
        health = {"x-api-key": ADMIN}
        wait_until(
            lambda: "keys.yaml" in httpx.get(f"{edited.server.url}/health", headers=health).text
        )
        assert "keys.yaml" not in httpx.get(f"{edited.server.url}/health").text
        assert "api_keys_config_valid 0.0" in httpx.get(f"{edited.server.url}/metrics").text
        wait_until(lambda: '"API keys file invalid"' in edited.server.logged)
        assert {edited.code(api, WEB) for api in APIS} == {"OK"}

        edited.write(entry("all", ALL))
        wait_until(lambda: edited.code("hot", WEB) == UNAUTHORIZED)
        kept.sendall(predict(WEB))
        assert b" 401 " in kept.recv(4096)
        assert stream.ask().startswith("Unauthorized: ")
    assert {edited.code(api, WEB) for api in APIS} == {UNAUTHORIZED}
    assert {edited.code(api, ALL) for api in APIS} == {"OK"}
    for secret in SECRETS:
        assert secret not in edited.server.logged


class Asked:
    """A stream that is asked one thing after the other."""

    def __init__(self, channel: grpc.Channel, key: str) -> None:
        self._sent = iter(lambda: raw_request("iris", {"features": IRIS}).SerializeToString(), b"")
        call = stream(channel)
        self._gate: list[object] = []
        self._answers = call(self._requests(), metadata=metadata_of(bearer(key)))

    def _requests(self) -> Iterator[bytes]:
        while True:
            wait_until(lambda: bool(self._gate))
            self._gate.pop()
            yield next(self._sent)

    def ask(self) -> str:
        """Return the error's name and sentence, or "" without an error."""
        self._gate.append(None)
        return messages.ModelStreamInferResponse.FromString(next(self._answers)).error_message


def test_without_a_readable_file_nobody_gets_in(tmp_path: Path) -> None:
    """The process is not ready and callers get NotReady; it starts once the file exists."""
    models, file = tmp_path / "models", tmp_path / "keys.yaml"
    shutil.copytree(MODELS / "iris", models / "iris")
    with cohort(models, tmp_path, ready=False, api_keys=file, grpc_port=free_port()) as server:
        server.wait_for("/health/ready", 503)
        for api in set(APIS) - {"unary", "stream"}:  # their port opens when all is ready
            assert ASK[api](server, bearer(WEB), "iris").code == "NotReady"
            assert ASK[api](server, [], "iris").code == UNAUTHORIZED
        file.write_text(entry("web", WEB))
        os.utime(file, (1_000_000_000, 1_000_000_000))
        server.wait_for("/health/ready")
        assert ASK["hot"](server, bearer(WEB), "iris").code == "OK"
