"""A header has the same meaning in every spelling and for every reader.

Each is sent to a server that runs as `cohort serve` does. There its head is parsed, looked up, and
looked up without the varying parts. Each is also sent to FastAPI under plain uvicorn.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from cohort.auth import digest_of
from cohort.http.fast_path.reading import without_blanks
from tests import onnx_models
from tests.e2e.processes import cohort
from tests.http.fast_path.test_protocol import Servers, ordinary
from tests.http.wire import Answer, chunked, exchange

X = [[0.1, 0.2, 0.3, 0.4]]
ONE = json.dumps({"inputs": {"x": X}}).encode()
LONG = json.dumps({"inputs": {"x": X * 200}}).encode()
V2 = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": X}]}
SPLIT = json.dumps(V2).encode()
KEY, OTHER = "key-of-web", "key-of-others"

MLP, INFER = "/models/mlp/predict", "/v2/models/mlp/infer"


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """Callers need keys, users keep to a variant, and the server answers for one host."""
    folder = tmp_path_factory.mktemp("forms")
    models = folder / "models"
    onnx_models.save(onnx_models.mlp(), models / "mlp/1/model.onnx")
    onnx_models.save(onnx_models.mlp(seed=1), models / "mlp/2/model.onnx")
    (models / "mlp/config.yaml").write_text("versions: all\n")
    rollouts, keys = folder / "rollouts.yaml", folder / "keys.yaml"
    rollouts.write_text(
        "mlp:\n  variants: {stable: {version: 1, weight: 50}, canary: {version: 2, weight: 50}}\n"
        "  sticky: {header: x-user-id}\n"
    )
    keys.write_text(f'- {{name: web, sha256: "{digest_of(KEY).hex()}"}}\n')
    options: dict[str, Any] = {
        "rollouts": rollouts,
        "api_keys": keys,
        "hosts": "x",
        "watch_seconds": "0.2",
    }
    with cohort(models, folder, **options) as hot, ordinary(models, folder, options) as plain:
        yield Servers(hot, plain)


class Sent(NamedTuple):
    """A request that one header decides about."""

    name: str
    value: str
    body: bytes = ONE
    path: str = MLP


SENT = {
    **{f"user {number}": Sent("X-User-Id", f"user-{number}") for number in range(6)},
    "user with blanks within": Sent("X-User-Id", "user \t one"),
    "request id": Sent("X-Request-Id", "a-request"),
    "no request id": Sent("X-Request-Id", ""),
    "key": Sent("X-Api-Key", KEY),
    "another key": Sent("X-Api-Key", OTHER),
    "token": Sent("Authorization", f"Bearer {KEY}"),
    "another token": Sent("Authorization", f"Bearer {OTHER}"),
    "JSON": Sent("Content-Type", "application/json; charset=utf-8"),
    "picture": Sent("Content-Type", "image/png"),
    "packed": Sent("Content-Encoding", "gzip", gzip.compress(ONE)),
    "unpacked": Sent("Content-Encoding", "identity"),
    "asks for gzip": Sent("Accept-Encoding", "gzip", LONG),
    "asks for no gzip": Sent("Accept-Encoding", "gzip;q=0", LONG),
    "asks for an array": Sent("Accept", "application/x-npy"),
    "binary": Sent("Inference-Header-Content-Length", str(len(SPLIT)), SPLIT, INFER),
    "binary of another length": Sent("Inference-Header-Content-Length", "7", SPLIT, INFER),
    "length": Sent("Content-Length", str(len(ONE))),
    "chunks": Sent("Transfer-Encoding", "chunked", chunked(ONE)),
    "end": Sent("Connection", "close"),
    "host": Sent("Host", "x"),
    "another host": Sent("Host", "y"),
    "origin": Sent("Origin", "http://x"),
    "another origin": Sent("Origin", "http://y"),
    "expectation": Sent("Expect", "100-continue"),
}

FORMS: dict[str, Callable[[str, str], str]] = {
    "lower case": lambda name, value: f"{name.lower()}: {value}",
    "upper case": lambda name, value: f"{name.upper()}: {value}",
    "no blank": lambda name, value: f"{name}:{value}",
    "blanks before": lambda name, value: f"{name}:   {value}",
    "a tab before": lambda name, value: f"{name}:\t{value}",
    "a blank behind": lambda name, value: f"{name}: {value} ",
    "blanks behind": lambda name, value: f"{name}: {value}    ",
    "a tab behind": lambda name, value: f"{name}: {value}\t",
    "blanks around": lambda name, value: f"{name}: \t {value} \t ",
}


STRICT = {("chunks", "a tab behind"), ("chunks", "blanks around")}
"""Forms that the parser of plain uvicorn refuses."""


def request(sent: Sent, line: str, *others: str) -> bytes:
    """The request with its header written as in `line`, and others behind it."""
    lines = {"Host": "Host: x", "X-Api-Key": f"X-Api-Key: {KEY}", "X-User-Id": "X-User-Id: me"}
    if sent.name != "Transfer-Encoding":
        lines["Content-Length"] = f"Content-Length: {len(sent.body)}"
    if sent.name == "Authorization":
        del lines["X-Api-Key"]
    lines[sent.name] = line
    head = "\r\n".join([f"POST {sent.path} HTTP/1.1", *lines.values(), *others, "", ""])
    return head.encode() + sent.body


def final(answers: list[Answer]) -> Answer:
    """The first answer that is not an interim one."""
    return next(one for one in answers if one.status >= 200)


def told(answer: Answer) -> tuple[object, ...]:
    """Return the parts that must be equal; an id is generated for a request without one."""
    request_id = answer.headers.get("x-request-id", "")
    return answer.compared, request_id if request_id == "a-request" else ""


@pytest.mark.parametrize("name", SENT)
def test_the_form_of_a_header_changes_nothing(servers: Servers, name: str) -> None:
    """Blanks around a value do not belong to it, and names have no case: RFC 9110, 5.1 and 5.5."""
    sent = SENT[name]
    usual = request(sent, f"{sent.name}: {sent.value}")
    first = final(exchange(servers.ordinary.url, [usual]))
    for form, write in FORMS.items():
        line = write(sent.name, sent.value)
        varying = [request(sent, line, f"Trace: {form} {number}") for number in range(3)]
        parsed = looked_up = request(sent, line)
        hot = [exchange(servers.hot.url, [one]) for one in (parsed, looked_up, *varying)]
        plain = () if (name, form) in STRICT else (exchange(servers.ordinary.url, [parsed]),)
        for answers in (*hot, *plain):
            assert told(final(answers)) == told(first), (form, answers in hot)


def test_blanks_behind_chunked_are_left_out_of_heads_alone(servers: Servers) -> None:
    """This holds for any parts of a head; a body that looks like a head stays as it is."""
    head = request(SENT["chunks"], "Transfer-Encoding: chunked \t").removesuffix(chunked(ONE))
    line = head.index(b"Transfer")
    url, body = servers.hot.url, chunked(ONE)
    for parts in (
        [head, body],
        [head[:line], head[line:], body],
        [head[:line], head[line:] + body],
    ):
        assert final(exchange(url, parts)).status == 200
    both = head.replace(b"\r\nTransfer", b"\r\nContent-Length: 3\r\nTransfer")
    for refused in (both, head.replace(b"chunked", b"chunked\t,")):
        assert final(exchange(url, [refused + body])).status == 400
    text = b"Transfer-Encoding: chunked\t\r\n\r\n"
    assert without_blanks(b"a: b\r\n\r\n" + text) == b"a: b\r\n\r\n" + text
    assert without_blanks(text) == b"Transfer-Encoding: chunked\r\n\r\n"
