"""The fast way and FastAPI's answer the same, byte by byte.

One server runs as `cohort serve` does, the other is FastAPI under plain uvicorn. Each request goes
to both over a socket.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests import onnx_models
from tests.e2e.processes import MODELS, ROOT, Cohort, cohort, free_port
from tests.e2e.scrape import Scrape
from tests.examples import examples
from tests.http.wire import LAST, answers, chunked, connect, exchange, read_all, request

Compared = tuple[object, ...]


class Servers(NamedTuple):
    hot: Cohort
    ordinary: Cohort


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """The same models under both protocols."""
    folder = tmp_path_factory.mktemp("hot")
    models = folder / "models"
    shutil.copytree(MODELS / "iris", models / "iris")
    onnx_models.save(onnx_models.mlp(), models / "mlp/1/model.onnx")
    onnx_models.save(onnx_models.mlp(seed=1), models / "mlp/2/model.onnx")
    (models / "mlp/config.yaml").write_text("versions: all\n")
    onnx_models.save(onnx_models.gather(), models / "gather/1/model.onnx")
    onnx_models.save(onnx_models.identity("FP32", ["N"]), models / "echo/1/model.onnx")
    onnx_models.save(onnx_models.strings(), models / "strings/1/model.onnx")
    (models / "broken/1").mkdir(parents=True)
    (models / "broken/1/model.onnx").write_bytes(b"this is no model")
    options: dict[str, Any] = {"max_body_mb": "1", "default_model": "mlp", "watch_seconds": "0"}
    with cohort(models, folder, **options) as hot, ordinary(models, folder, options) as plain:
        yield Servers(hot, plain)


@contextmanager
def ordinary(models: Path, folder: Path, options: dict[str, Any]) -> Iterator[Cohort]:
    """FastAPI under uvicorn with its own protocol, as anybody may run it."""
    port = free_port()
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("COHORT_")},
        "COHORT_MODELS": str(models),
        "COHORT_STATE": str(folder / "state"),
        "COHORT_CACHE": str(folder / "cache"),
        **{f"COHORT_{name.upper()}": value for name, value in options.items()},
    }
    command = [sys.executable, "-m", "uvicorn", "--factory", "cohort:create_app"]
    command += [f"--port={port}", "--http=httptools", "--ws=none", "--no-access-log"]
    command += ["--timeout-keep-alive=1"]  # a lost request would wait for it
    log = folder / "ordinary.txt"
    with log.open("wb") as stderr:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=stderr)
    started = Cohort(process, f"http://127.0.0.1:{port}", log)
    try:
        started.wait_for("/health/ready")
        yield started
    finally:
        process.kill()
        process.wait()


def ask_both(
    servers: Servers, *parts: bytes, heads: tuple[int, ...] = (), last: bytes = LAST
) -> tuple[list[Compared], list[Compared]]:
    """Return the answers of both, as far as they are compared."""
    hot = exchange(servers.hot.url, parts, heads=heads, last=last)
    plain = exchange(servers.ordinary.url, parts, heads=heads, last=last)
    return [one.compared for one in hot], [one.compared for one in plain]


# ---- single requests

X = [[0.1, 0.2, 0.3, 0.4]]
ONE = {"inputs": {"x": X}}
V2 = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": X}]}
IRIS = {"inputs": {"features": [[5.1, 3.5, 1.4, 0.2]]}}
FLOATS = np.array(X, "<f4").tobytes()


def binary(head: object, tail: bytes = FLOATS, *headers: str, path: str = "mlp") -> bytes:
    """A V2 request with its tensors in binary."""
    text = json.dumps(head).encode()
    length = f"inference-header-content-length: {len(text)}"
    return request(f"/v2/models/{path}/infer", text + tail, length, *headers)


BINARY_INPUT = {
    "name": "x",
    "datatype": "FP32",
    "shape": [1, 4],
    "parameters": {"binary_data_size": 16},
}
BINARY_OUTPUT = [{"name": "y", "parameters": {"binary_data": True}}]

PATHS = (
    "/predict",
    "/models/mlp/predict",
    "/models/mlp/versions/1/predict",
    "/models/nobody/predict",
    "/models/mlp/versions/9/predict",
    "/models/mlp/versions/x/predict",
    "/models/broken/predict",
    "/models/ml%70/predict",
    "/models/mlp%2Fx/predict",
    "/models/m%C3%A4h/predict",
    "/models/-/predict",
    "/models/mlp/predict/",
    "/models//predict",
    "//predict",
    "/predict/",
    "/predict?user=1",
    "/predict?",
    "/predict#x",
    "/PREDICT",
    "http://elsewhere/predict",
    "http://elsewhere/models/mlp/predict?x=y",
    "/v1/models/mlp:predict",
    "/v1/models/mlp/versions/2:predict",
    "/v1/models/mlp/labels/canary:predict",
    "/v1/models/mlp:classify",
    "/v1/models/nobody:predict",
    "/v2/models/mlp/infer",
    "/v2/models/mlp/versions/1/infer",
    "/v2/models/mlp/versions/9/infer",
    "/v2/models/nobody/infer",
    "/v2/models/broken/infer",
)

BODIES: dict[str, object] = {
    "plain": ONE,
    "two rows": {"inputs": {"x": X * 2}},
    "simple": {"input": X},
    "of this model": {**ONE, "model": "mlp"},
    "of another model": {**ONE, "model": "iris"},
    "of a version": {**ONE, "version": "2"},
    "id and outputs": {**ONE, "id": "a1", "outputs": ["y"]},
    "unknown output": {**ONE, "outputs": ["z"]},
    "unknown key": {**ONE, "inptus": 1},
    "no time": {**ONE, "timeout_ms": -1},
    "hardly any time": {**ONE, "timeout_ms": 1e-6},
    "wrong name": {"inputs": {"z": X}},
    "wrong width": {"inputs": {"x": [[1, 2, 3]]}},
    "ragged": {"inputs": {"x": [[1, 2, 3, 4], [5]]}},
    "text": {"inputs": {"x": [["a", 1, 2, 3]]}},
    "none": {},
    "instances": {"instances": X},
    "columns": {"inputs": X},
    "both": {"inputs": X, "instances": X},
    "V2": V2,
    "V2 with id": {**V2, "id": "q", "outputs": [{"name": "y"}]},
    "V2 wants binary": {**V2, "outputs": BINARY_OUTPUT},
    "V2 of a wrong type": {"inputs": [{**V2["inputs"][0], "datatype": "INT64"}]},
    "V2 of a wrong shape": {"inputs": [{**V2["inputs"][0], "shape": [2, 4]}]},
    "array": [1],
    "number": 1,
    "open": b'{"inputs": ',
    "nothing": b"",
    "blank": b"  ",
    "no UTF-8": b'{"inputs": "\xff"}',
    "NaN": b'{"inputs": {"x": [[NaN, 1, 2, 3]]}}',
    "deep": b"[" * 5000,
    "long": {"inputs": {"x": X * 600}},
    "very long": {"inputs": {"x": X * 6000}},
    "very long and bad": {"inputs": {"x": X * 6000 + [[1]]}},
}

HEADERS: dict[str, tuple[str, ...]] = {
    "json": ("content-type: application/json",),
    "charset": ("Content-Type: application/JSON; charset=utf-8",),
    "form": ("content-type: application/x-www-form-urlencoded",),
    "image": ("content-type: image/png",),
    "empty type": ("content-type:",),
    "two types": ("content-type: application/json", "content-type: image/png"),
    "identity": ("content-encoding: identity",),
    "gzip body": ("content-encoding: gzip",),
    "accept gzip": ("accept-encoding: gzip",),
    "accept anything": ("accept-encoding: gzip, deflate, br",),
    "accept nothing": ("accept-encoding:",),
    "close": ("connection: close",),
    "keep-alive": ("connection: keep-alive",),
    "close and more": ("connection: foo, Close",),
    "no expectation": ("expect: cookies",),
    "upgrade unasked": ("upgrade: h2c",),
    "latin-1": ("x-name: \xe4\xff",),
    "empty": ("x-nothing:",),
    "spaces": ("x-spaces:    a   ",),
    "many": tuple(f"x-{number}: {number}" for number in range(100)),
    "long": (f"x-long: {'a' * 60_000}",),
    "trace": ("x-request-id: 7", "traceparent: 00-1-2-00"),
}


NPY = "application/x-npy"


def saved(rows: list[list[float]]) -> bytes:
    file = io.BytesIO()
    np.save(file, np.array(rows, "f4"))
    return file.getvalue()


SAVED = saved(X)
FORM_BODY = (
    b'--b\r\nContent-Disposition: form-data; name="x"\r\n\r\n'
    + json.dumps(X).encode()
    + b"\r\n--b--"
)


FORM = "multipart/form-data; boundary=b"
MLP = "/models/mlp/predict"

FILES: dict[str, tuple[str, Any, str, str]] = {
    "array": (MLP, SAVED, NPY, "*/*"),
    "array answered so": (MLP, SAVED, NPY, NPY),
    "JSON answered so": ("/predict", ONE, "application/json", NPY),
    "array cut short": (MLP, SAVED[:-1], NPY, NPY),
    "long array": (MLP, saved(X * 6000), NPY, "*/*"),
    "image for numbers": (MLP, b"\x89PNG", "image/png", "*/*"),
    "image": ("/models/strings/predict", b"a", "image/png", "*/*"),
    "form": (MLP, FORM_BODY, FORM, "*/*"),
    "form without an end": (MLP, FORM_BODY[:-4], FORM, "*/*"),
    "other form": (MLP, FORM_BODY, "multipart/mixed; boundary=b", "*/*"),
    "CSV": ("/invocations", b"1,2,3,4\n", "text/csv", "*/*"),
    "long CSV": ("/invocations", b"1,2,3,4\n" * 9000, "text/csv", "*/*"),
    "frame": ("/invocations", {"dataframe_split": {"data": X}}, "application/json", "*/*"),
    "no frame": ("/invocations", {"dataframe_split": X}, "application/json", "*/*"),
}


@dataclass(frozen=True)
class Case:
    """The bytes to send, and whether the server closes the connection without a request to."""

    sent: bytes
    heads: tuple[int, ...] = ()
    last: bytes = LAST


CASES: dict[str, Case] = {
    **{f"path {path} {kind}": Case(request(path, body)) for path in PATHS
       for kind, body in (("simple", ONE), ("V1", {"instances": X}), ("V2", V2))},
    **{f"body {name} at {path}": Case(request(path, body)) for name, body in BODIES.items()
       for path in ("/predict", "/v1/models/mlp:predict", "/v2/models/mlp/infer")},
    **{f"header {name} at {path}": Case(request(path, body, *lines))
       for name, lines in HEADERS.items()
       for path, body in (("/predict", ONE), ("/v2/models/mlp/infer", V2))},
    **{f"{method} {path}": Case(request(path, ONE, method=method), heads=(0,) * (method == "HEAD"))
       for method in ("GET", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH")
       for path in ("/predict", "/models/mlp/predict", "/v2/models/mlp/infer")},
    "HTTP/1.0": Case(request("/predict", ONE, version="1.0")),
    "a query": Case(request("/predict?x=1&server=%C3%A4", ONE)),
    "a query that asks": Case(request("/predict?outputs=y&id=a%20b", ONE)),
    "a query and a fragment": Case(request("/predict?id=a#b", ONE)),
    "a query that asks for what is not there": Case(request("/predict?outputs=z", ONE)),
    "a query of another model": Case(request("/models/mlp/predict?model=other", ONE)),
    "binary in": Case(binary({"inputs": [BINARY_INPUT]})),
    "binary out": Case(binary({"inputs": [BINARY_INPUT], "outputs": BINARY_OUTPUT})),
    "binary too short": Case(binary({"inputs": [BINARY_INPUT]}, FLOATS[:-1])),
    "binary too long": Case(binary({"inputs": [BINARY_INPUT]}, FLOATS + b"1")),
    "binary header too long": Case(
        request("/v2/models/mlp/infer", b"{}", "inference-header-content-length: 100")),
    "binary header no number": Case(
        request("/v2/models/mlp/infer", b"{}", "inference-header-content-length: x")),
    "raw binary": Case(
        request("/v2/models/mlp/infer", FLOATS, "inference-header-content-length: 0")),
    "binary and compressed answer": Case(
        binary({"inputs": [BINARY_INPUT]}, FLOATS, "accept-encoding: gzip")),
    "failing in the run": Case(
        request("/models/gather/predict", {"inputs": {"index": [7]}})),
    **{f"file, {name}": Case(request(path, body, f"content-type: {media}", f"accept: {accept}"))
       for name, (path, body, media, accept) in FILES.items()},
    "strings": Case(request("/models/strings/predict", {"inputs": {"x": ["ä", "b\n"]}})),
    "labels": Case(request("/models/iris/predict", IRIS)),
    "no numbers for JSON": Case(
        request("/v2/models/echo/infer", b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1],'
                b'"parameters":{"binary_data_size":4}}]}' + np.float32("nan").tobytes(),
                "inference-header-content-length: 99")),
    "chunked": Case(request("/predict", chunked(json.dumps(ONE).encode()),
                            "transfer-encoding: chunked")),
    "chunk by byte": Case(request("/predict", chunked(*(bytes([one]) for one in
                          json.dumps(ONE).encode())), "transfer-encoding: chunked")),
    "chunk extension": Case(request("/predict", chunked(json.dumps(ONE).encode(),
                            extension=';a="b c"'), "Transfer-Encoding: Chunked")),
    "trailers": Case(request("/predict", chunked(json.dumps(ONE).encode(),
                     trailers=("x-check: 1", "expect: 100-continue")),
                     "transfer-encoding: chunked")),
    "no chunks": Case(request("/predict", chunked(), "transfer-encoding: chunked")),
    "a large chunk": Case(request("/predict", chunked(b" " * 900_000 + b"{}"),
                          "transfer-encoding: chunked")),
    "blank lines before": Case(b"\r\n\r\n" + request("/predict", ONE)),
    "no length": Case(b"POST /predict HTTP/1.1\r\nhost: x\r\n\r\n"),
    **{f"head with {name} at {path}": Case(request(path, body, *lines, version=version))
       for name, version, lines in (
           ("two hosts", "1.1", ("host: x",)),
           ("two codings", "1.1", ("content-encoding: identity", "content-encoding: gzip")),
           ("two lengths of its JSON", "1.1", ("inference-header-content-length: 9",) * 2),
           ("version 2.0", "2.0", ()))
       for path, body in (("/predict", ONE), ("/predict?x", ONE), ("/v2/models/mlp/infer", V2))},
    "a coding before chunked": Case(
        request("/predict", chunked(b"{}"), "transfer-encoding: gzip, chunked")),
    "no host": Case(b"POST /predict HTTP/1.1\r\ncontent-length: 2\r\n\r\n{}"),
    "too short a body": Case(request("/predict", b"{}", "content-length: 3"), last=b""),
    "headers without end": Case(b"POST /predict HTTP/1.1\r\nhost: x\r\n", last=b""),
    "nothing at all": Case(b"", last=b""),
    "large body at once": Case(request("/predict", b" " * 2**20 + b"{"), last=b""),
    "expecting": Case(request("/predict", ONE, "expect: 100-continue")),
    "expecting in capitals": Case(request("/predict", ONE, "Expect: 100-Continue")),
    **{f"{count} times": Case(request("/predict", ONE) * count) for count in (2, 5, 50)},
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_both_paths_answer_the_same(servers: Servers, name: str) -> None:
    """Status, relevant headers, body and the end of the connection are equal, once each."""
    case = CASES[name]
    hot, plain = ask_both(servers, case.sent, heads=case.heads, last=case.last)
    assert hot == plain


def test_http_1_0_is_kept_where_it_asks_for_that(servers: Servers) -> None:
    """The answer has the header; uvicorn closes such connections."""
    kept = request("/predict", ONE, "connection: keep-alive", version="1.0")
    last = request("/predict", ONE, version="1.0")
    answered = exchange(servers.hot.url, [kept, kept, b""], last=last)
    assert [one.status for one in answered] == [200] * 3
    says = [one.headers["connection"] for one in answered]
    assert says == ["keep-alive", "keep-alive", "close"]


# ---- where the ordinary way is wrong


@dataclass(frozen=True)
class Difference:
    """The bytes to send, the fast path's answers (statuses or codes), and the reason to differ."""

    sent: bytes
    codes: tuple[str, ...]
    why: str
    last: bytes = LAST


GOOD = request("/predict", ONE)
BY_ASGI = request("/predict?server_timing", ONE)
PLAIN_400 = "uvicorn refuses in text/plain, where every error here has the one form"
OVERTAKEN = "uvicorn refuses before it answers what came before, whose callers get nothing"
BODY = json.dumps(ONE).encode()
HALF = b"POST /predict HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"

DIFFERENCES: dict[str, Difference] = {
    **{
        name: Difference(sent, ("InvalidInput",), PLAIN_400)
        for name, sent in {
            "no HTTP": b"\x16\x03\x01 hello\r\n\r\n",
            "no such method": b"PREDICT /predict HTTP/1.1\r\n\r\n",
            "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            "HTTP/3.7": request("/predict", ONE, version="3.7"),
            "two lengths": request("/predict", BODY, "content-length: 2", "content-length: 3"),
            "the same length twice": request(
                "/predict", BODY, *[f"content-length: {len(BODY)}"] * 2
            ),
            "length and chunks": request(
                "/predict", chunked(BODY), "content-length: 5", "transfer-encoding: chunked"
            ),
            "chunks and length": request(
                "/predict", chunked(BODY), "transfer-encoding: chunked", "content-length: 5"
            ),
            "length no number": request("/predict", BODY, "content-length: five"),
            "length below zero": request("/predict", BODY, "content-length: -1"),
            "length with a sign": request("/predict", BODY, f"content-length: +{len(BODY)}"),
            "length beyond 64 bits": request("/predict", BODY, f"content-length: {10**25}"),
            "length empty": request("/predict", BODY, "content-length:"),
            "unknown coding": request("/predict", BODY, "transfer-encoding: gzip"),
            "chunked not last": request("/predict", BODY, "transfer-encoding: chunked, gzip"),
            "chunk size no number": HALF + b"zz\r\n{}\r\n0\r\n\r\n",
            "chunk size too large": HALF + b"f" * 17 + b"\r\n",
            "chunk longer than it says": HALF + b"1\r\n{}\r\n0\r\n\r\n",
            "header without a colon": request("/predict", ONE, "nonsense"),
            "header with a space": request("/predict", ONE, "na me: x"),
            "header continued": request("/predict", ONE, "x: a", " b: c"),
            "RTSP": request("/predict", ONE).replace(b"HTTP/1.1", b"RTSP/1.0"),
            "NUL in a header": request("/predict", ONE, "x: a\0b"),
            "path not ASCII": request("/pr\xe4dict", ONE),
            "chunks gone wrong on the other way": HALF.replace(b"predict", b"predict?server_timing")
            + b"zz",
        }.items()
    },
    "malformed after valid": Difference(
        GOOD + b"nonsense\r\n\r\n", ("OK", "InvalidInput"), OVERTAKEN
    ),
    "malformed after valid on the other way": Difference(
        BY_ASGI + b"nonsense\r\n\r\n", ("OK", "InvalidInput"), OVERTAKEN
    ),
    "malformed after both": Difference(
        GOOD + BY_ASGI + GOOD + BY_ASGI + b"\0", ("OK",) * 4 + ("InvalidInput",), OVERTAKEN
    ),
    "broken chunks after valid": Difference(
        GOOD + BY_ASGI + HALF + b"zz\r\n", ("OK", "OK", "InvalidInput"), OVERTAKEN
    ),
    "broken chunks of the other way after valid": Difference(
        GOOD + BY_ASGI + HALF.replace(b"predict", b"predict?server_timing") + b"zz\r\n",
        ("OK", "OK", "InvalidInput"),
        OVERTAKEN,
    ),
    "longer than it says": Difference(
        request("/predict", BODY + b"1234", f"content-length: {len(BODY)}"),
        ("OK", "InvalidInput"),
        OVERTAKEN,
    ),
    "too long headers": Difference(
        request("/predict", ONE, f"x: {'a' * 70_000}"),
        ("TooLarge",),
        "uvicorn takes headers without any limit",
    ),
    "too many headers": Difference(
        GOOD + request("/predict", ONE, *[f"x-{number}: y" for number in range(8000)]),
        ("OK", "TooLarge"),
        "uvicorn takes headers without any limit",
    ),
    "too long an address": Difference(
        request("/predict?" + "a" * 70_000, ONE), ("TooLarge",), "the address counts as a header"
    ),
    "trailers without end": Difference(
        HALF + chunked(BODY)[:-2] + b"x: " + b"a" * 900_000,
        ("TooLarge",),
        "uvicorn takes trailers without any limit",
        last=b"",
    ),
    "a trailer that is a header": Difference(
        request(
            "/predict",
            chunked(BODY, trailers=["content-type: image/png"]),
            "transfer-encoding: chunked",
        ),
        ("OK", "OK"),
        "uvicorn hands trailers over as headers",
    ),
    "websocket": Difference(
        request("/predict", b"", "connection: upgrade", "upgrade: websocket", method="GET"),
        ("MethodNotAllowed", "OK"),
        "uvicorn loses what comes after it in the same segment",
    ),
    "upgrade with a body": Difference(
        request("/predict", ONE, "connection: upgrade, http2-settings", "upgrade: h2c") + GOOD,
        ("OK", "OK", "OK"),
        "uvicorn loses the body, and with it Java's HttpClient, which asks for HTTP/2 this way",
    ),
    "upgrade with a body on the other way": Difference(
        request("/predict?server_timing", ONE, "connection: upgrade", "upgrade: websocket") + GOOD,
        ("OK", "OK", "OK"),
        "uvicorn loses the body, and what comes after it in the same segment",
    ),
    "many upgrades": Difference(
        request("/predict", ONE, "connection: upgrade", "upgrade: h2c") * 500 + GOOD,
        ("OK",) * 502,
        "uvicorn loses the body, and what comes after it in the same segment",
    ),
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_faults_of_uvicorn_are_corrected_on_the_fast_path(servers: Servers, name: str) -> None:
    """Responses come in order, once, and in one form; uvicorn itself still has the fault."""
    case = DIFFERENCES[name]
    hot = exchange(servers.hot.url, [case.sent], last=case.last)
    assert tuple(one.code for one in hot) == case.codes, case.why
    if hot[-1].status >= 400:
        assert hot[-1].headers["connection"] == "close"
    plain = exchange(servers.ordinary.url, [case.sent], last=case.last)
    assert [one.compared for one in plain] != [one.compared for one in hot], (
        "no difference any more"
    )


# ---- how it comes

SPLIT = {
    "predict": request("/predict", ONE),
    "V2": request("/v2/models/mlp/infer", V2),
    "chunked": request("/predict", chunked(BODY[:9], BODY[9:]), "transfer-encoding: chunked"),
    "refused": request("/predict", b"{"),
    "by ASGI": BY_ASGI,
    "two": request("/predict", b"{") + GOOD,
    "upgrade": request("/predict", ONE, "connection: upgrade", "upgrade: h2c"),
}


@pytest.mark.parametrize("name", SPLIT)
def test_segments_do_not_change_the_response(servers: Servers, name: str) -> None:
    """It arrives byte by byte, and in two parts cut at many places."""
    sent = SPLIT[name]
    whole = [one.compared for one in exchange(servers.hot.url, [sent])]
    step = max(1, len(sent) // 40)
    cuts = [[bytes([one]) for one in sent]]
    cuts += [[sent[:at], sent[at:]] for at in range(1, len(sent), step)]
    for parts in cuts:
        assert [one.compared for one in exchange(servers.hot.url, parts)] == whole


# ---- pipelines

KINDS = {
    "ok": request("/predict", {**ONE, "id": "1"}),
    "v2": request("/v2/models/mlp/infer", {**V2, "id": "2"}),
    "asgi": request("/predict?server_timing", {**ONE, "id": "3"}),
    "models": request("/models/mlp/versions/1/predict", {**ONE, "id": "4"}),
    "bad": request("/predict", b"{"),
    "nobody": request("/models/nobody/predict", ONE),
    "get": request("/health/live", method="GET"),
    "large": request("/predict", {"inputs": {"x": X * 5000}}),
    "late": request("/predict", {**ONE, "timeout_ms": 1e-6}),
    "chunks": request("/predict", chunked(b"{", b"}"), "transfer-encoding: chunked"),
    "lost": request("/nowhere", method="GET"),
}
CODES = {
    "bad": "InvalidInput",
    "nobody": "ModelNotFound",
    "late": "DeadlineExceeded",
    "chunks": "InvalidInput",
    "lost": "NotFound",
}


@settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    kinds=st.lists(st.sampled_from(list(KINDS)), max_size=12),
    cuts=st.lists(st.floats(0, 1), max_size=6),
    ending=st.sampled_from(["", "close", "over"]),
)
def test_pipelined_requests_are_answered_in_order(
    servers: Servers, kinds: list[str], cuts: list[float], ending: str
) -> None:
    """Any mix of requests, cut anywhere, gets the same responses on both paths, once each."""
    sent = b"".join([KINDS[kind] for kind in kinds])
    codes = [CODES.get(kind, "OK") for kind in kinds]
    if ending == "close":
        sent += request("/predict", ONE, "connection: close")
    elif ending == "over":
        sent += request("/predict", b"", "content-length: 1048577")
    codes.append({"over": "TooLarge"}.get(ending, "OK"))
    places = sorted({0, len(sent), *(int(cut * len(sent)) for cut in cuts)})
    parts = [sent[one:other] for one, other in pairwise(places)]
    # Bytes that the server does not read before it closes would reset the connection and answers.
    last = None if ending else LAST
    hot, plain = (exchange(server.url, parts, last=last) for server in servers)
    assert [one.code for one in hot] == codes
    assert [one.compared for one in hot] == [one.compared for one in plain]


@settings(
    max_examples=examples(150),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    path=st.sampled_from(PATHS),
    body=st.sampled_from(list(BODIES.values())),
    lines=st.lists(st.sampled_from([line for lines in HEADERS.values() for line in lines]),
                   max_size=4, unique=True),
    method=st.sampled_from(["POST"] * 4 + ["PUT", "GET"]),
    version=st.sampled_from(["1.1"] * 4 + ["1.0"]),
    in_chunks=st.booleans(),
)  # fmt: skip
def test_generated_requests_are_answered_the_same(
    servers: Servers,
    path: str,
    body: object,
    lines: list[str],
    method: str,
    version: str,
    in_chunks: bool,
) -> None:
    """Any address, body and headers get the same answer on both paths."""
    if in_chunks and version == "1.1":
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        body, lines = (
            chunked(content) if content else chunked(),
            [*lines, "transfer-encoding: chunked"],
        )
    sent = request(path, body, *lines, method=method, version=version)
    hot, plain = ask_both(servers, sent)
    assert hot == plain


@settings(
    max_examples=examples(100),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    noise=st.binary(min_size=1, max_size=8),
    place=st.floats(0, 0.999),
    kind=st.sampled_from(list(KINDS)),
)
def test_overwritten_bytes_never_cause_a_bug(
    servers: Servers, noise: bytes, place: float, kind: str
) -> None:
    """The request is answered or refused."""
    sent = bytearray(KINDS["ok"] + KINDS[kind])
    at = int(place * len(sent))
    sent[at : at + len(noise)] = noise
    exchange(servers.hot.url, [bytes(sent)], last=b"")
    with connect(servers.hot.url) as connection:
        connection.sendall(GOOD + LAST)
        assert [one.code for one in answers(read_all(connection))] == ["OK", "OK"]


def test_two_thousand_tiny_requests_in_one_write(servers: Servers) -> None:
    """Each is answered once and in order, also across the end of a read."""
    count = 6000
    lines = ["POST /predict HTTP/1.1", "host: x", "content-length: %d", "", ""]
    sent = b""
    for number in range(count):
        body = json.dumps({"input": X, "id": str(number)}).encode()
        sent += ("\r\n".join(lines) % len(body)).encode() + body
    before = Scrape(servers.hot.url).value("http_hot_requests_total")
    with connect(servers.hot.url) as connection:
        sender = Thread(target=connection.sendall, args=(sent + LAST,))
        sender.start()
        found = answers(read_all(connection))
        sender.join()
    assert [one.json.get("id") for one in found[:-1]] == [str(one) for one in range(count)]
    assert Scrape(servers.hot.url).value("http_hot_requests_total") - before == count


def test_no_bug_was_logged(servers: Servers) -> None:
    """The server's log has no traceback after all tests above."""
    for line in servers.hot.logged.splitlines():
        told = json.loads(line)
        expected = told["event"] == "version unavailable" or told.get("code") in {
            "InferenceFailed",
            "DeadlineExceeded",
        }
        assert expected or told["level"] not in {"error", "critical"}, line
