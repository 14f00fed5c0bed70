"""TLS and client certificates: who gets in, and what handshakes and slow readers may cost."""

from __future__ import annotations

import contextlib
import json
import select
import shutil
import socket
import ssl
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import grpc
import httpx
import numpy as np
import pytest
import trustme
from cryptography.x509 import DNSName, UniformResourceIdentifier

from cohort.auth import digest_of
from cohort.http.tls.handshakes import MAX_ANSWERED, MAX_WAITING
from cohort.rpc import inference_pb2 as messages
from tests import onnx_models
from tests.certificates import issue, serve_with, trusting
from tests.e2e.processes import MODELS, Cohort, cohort, free_port
from tests.http.wire import LAST, Answer, answers, connect, read_all, request
from tests.rpc.client import PATH, raw_request
from tests.waiting import PATIENCE, wait_until

IRIS = np.array([[5.1, 3.5, 1.4, 0.2]], "f4")
ROW = [[5.1, 3.5, 1.4, 0.2]]
KEY = "key-of-batch"
KEYS = f"""\
- {{name: web, certificate: web.internal, models: [iris]}}
- {{name: all, certificate: "spiffe://example/all"}}
- {{name: ops, certificate: Operations, admin: true}}
- {{name: batch, sha256: "{digest_of(KEY).hex()}"}}
- {{name: hot, certificate: hot.internal, rate: 0.001}}
- {{name: unary, certificate: unary.internal, rate: 0.001}}
"""

CONNECTIONS = 200

Pair = tuple[bytes, bytes]  # a certificate and its key


class Place(NamedTuple):
    server: Cohort
    ca: trustme.CA  # the server's CA
    clients_ca: trustme.CA
    folder: Path

    def issue(self, name: str) -> Pair:
        kind = UniformResourceIdentifier if "://" in name else DNSName
        return issue(self.clients_ca, kind(name))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A server whose callers have certificates or keys."""
    folder = tmp_path_factory.mktemp("tls")
    ca, clients_ca = trustme.CA(), trustme.CA()
    (folder / "keys.yaml").write_text(KEYS)
    (folder / "clients.pem").write_bytes(clients_ca.cert_pem.bytes())
    for model in ("iris", "digits"):
        shutil.copytree(MODELS / model, folder / "models" / model)
    settings: dict[str, Any] = {
        **serve_with(ca, folder),
        "tls_client_ca": folder / "clients.pem",
        "api_keys": folder / "keys.yaml",
        "grpc_port": free_port(),
        "max_connections": CONNECTIONS,
    }
    trust = trusting(ca, folder)
    with cohort(folder / "models", folder, trust=trust, **settings) as server:
        yield Place(server, ca, clients_ca, folder)


# --- Who gets in


def over_http(path: str, body: Callable[[str], object]) -> Callable[..., str]:
    def ask(place: Place, model: str, client: Pair | None, key: str = "") -> str:
        headers = ["connection: close", *([f"x-api-key: {key}"] if key else [])]
        sent = request(path.format(model=model), body(model), *headers)
        return exchange(place, sent, client)[0].code

    return ask


def exchange(place: Place, sent: bytes, client: Pair | None = None) -> list[Answer]:
    """Send this, and read until the server closes."""
    with secured(place, client) as connection:
        connection.sendall(sent)
        return answers(read_all(connection))


def secured(place: Place, client: Pair | None = None) -> ssl.SSLSocket:
    """A connection, with a client certificate or without one."""
    context = trusting(place.ca, place.folder, *(client or ()))
    return context.wrap_socket(connect(place.server.url), server_hostname="127.0.0.1")


def channel(place: Place, client: Pair | None) -> grpc.Channel:
    certificate, key = client or (None, None)
    credentials = grpc.ssl_channel_credentials(place.ca.cert_pem.bytes(), key, certificate)
    return grpc.secure_channel(place.server.grpc, credentials)


def over_grpc(place: Place, model: str, client: Pair | None, key: str = "") -> str:
    metadata = (("x-api-key", key),) if key else ()
    with channel(place, client) as opened:
        call: Any = opened.unary_unary(f"{PATH}/ModelInfer")
        message = raw_request(model, {"features": IRIS}).SerializeToString()
        try:
            call(message, metadata=metadata, timeout=PATIENCE)
        except grpc.RpcError as error:
            return GRPC_CODES.get(error.code(), error.code().name)
    return "OK"


def over_stream(place: Place, model: str, client: Pair | None, key: str = "") -> str:
    metadata = (("x-api-key", key),) if key else ()
    with channel(place, client) as opened:
        call: Any = opened.stream_stream(f"{PATH}/ModelStreamInfer")
        message = raw_request(model, {"features": IRIS}).SerializeToString()
        try:
            data = next(iter(call(iter([message]), metadata=metadata, timeout=PATIENCE)))
        except grpc.RpcError as error:
            return GRPC_CODES.get(error.code(), error.code().name)
    said = messages.ModelStreamInferResponse.FromString(data).error_message
    return said.partition(":")[0] or "OK"


GRPC_CODES = {
    grpc.StatusCode.UNAUTHENTICATED: "Unauthorized",
    grpc.StatusCode.NOT_FOUND: "ModelNotFound",
    grpc.StatusCode.RESOURCE_EXHAUSTED: "Overloaded",
}
V2 = {"inputs": [{"name": "features", "datatype": "FP32", "shape": [1, 4], "data": ROW}]}
ASK: dict[str, Callable[..., str]] = {
    "hot": over_http("/models/{model}/predict", lambda _: {"input": ROW}),
    "ordinary": over_http("/models/{model}/predict?q", lambda _: {"input": ROW}),
    "v2": over_http("/v2/models/{model}/infer", lambda _: V2),
    "v1": over_http("/v1/models/{model}:predict", lambda _: {"instances": ROW}),
    "unary": over_grpc,
    "stream": over_stream,
}
OVER_GRPC = ("unary", "stream")


@pytest.mark.parametrize("api", ASK)
def test_callers_are_known_by_their_certificates(place: Place, api: str) -> None:
    """Each sees its models, also where all send the same bytes, one after the other."""
    ask = ASK[api]
    web, every = place.issue("web.internal"), place.issue("spiffe://example/all")
    for _ in range(2):
        assert ask(place, "iris", web) == "OK"
        assert ask(place, "digits", web) == "ModelNotFound"
        assert ask(place, "digits", every) == "InvalidInput" or api in OVER_GRPC
        assert ask(place, "nobody", web) == "ModelNotFound"
    if api in OVER_GRPC:
        assert ask(place, "digits", every) != "ModelNotFound"


@pytest.mark.parametrize("api", ASK)
def test_a_certificate_that_no_entry_names_is_not_enough(place: Place, api: str) -> None:
    """The CA issued it, but no entry names it; a key identifies its holder there as well."""
    other = place.issue("other.internal")
    assert ASK[api](place, "iris", other) == "Unauthorized"
    assert ASK[api](place, "iris", other, "wrong") == "Unauthorized"
    assert ASK[api](place, "iris", other, KEY) == "OK"
    assert ASK[api](place, "iris", place.issue("web.internal"), "wrong") == "Unauthorized"


@pytest.mark.parametrize("api", ASK)
def test_without_a_certificate_a_key_is_needed(place: Place, api: str) -> None:
    """A key works over HTTP; over gRPC no connection begins without a certificate."""
    refused = "UNAVAILABLE" if api in OVER_GRPC else "Unauthorized"
    assert ASK[api](place, "iris", None) == refused
    assert ASK[api](place, "iris", None, KEY) == (refused if api in OVER_GRPC else "OK")


@pytest.mark.parametrize("api", ["hot", "unary"])
def test_quotas_count_by_certificate(place: Place, api: str) -> None:
    """A certificate has its entry's quota, as a key does."""
    client = place.issue(f"{api}.internal")
    assert [ASK[api](place, "iris", client) for _ in range(2)] == ["OK", "Overloaded"]


def test_health_needs_no_certificate(place: Place) -> None:
    """Balancers have no certificate; models in it are shown only to callers who may see them."""
    assert place.server.get("/health/live").status_code == 200
    assert place.server.get("/models").status_code == 401
    assert "iris" not in place.server.get("/health").text


def test_a_certificate_operates(place: Place) -> None:
    """An admin's certificate operates by its common name; another caller is asked for a token."""
    for client, status in (
        (issue(place.clients_ca, common=["Operations"]), 200),
        (place.issue("web.internal"), 401),
    ):
        context = trusting(place.ca, place.folder, *client)
        url = f"{place.server.url}/admin/models/iris/load"
        assert httpx.post(url, verify=context, timeout=PATIENCE).status_code == status
    wait_until(lambda: '"caller": "ops"' in place.server.logged)


@pytest.mark.parametrize("api", ["hot", "unary"])
def test_certificates_of_others_do_not_get_in(place: Place, api: str) -> None:
    """One of another CA and an expired one are refused; the log has the reason."""
    strange = issue(trustme.CA(), DNSName("web.internal"))
    expired = issue(place.clients_ca, DNSName("web.internal"), days=-1)
    for client in (strange, expired):
        if api in OVER_GRPC:
            assert ASK[api](place, "iris", client) == "UNAVAILABLE"
        else:
            with pytest.raises((ssl.SSLError, ConnectionError)):
                ASK[api](place, "iris", client)
    if api not in OVER_GRPC:
        wait_until(lambda: "certificate has expired" in place.server.logged)


# --- Bytes that are not a handshake


def test_plain_http_is_told_what_the_port_speaks(place: Place) -> None:
    """The answer to plain HTTP is only that the port requires HTTPS."""
    with connect(place.server.url) as connection:
        connection.sendall(request("/predict", {"input": ROW}))
        (answer,) = answers(read_all(connection))
    assert answer.status == 400
    assert answer.json["error"] == "this port requires HTTPS, but the request was sent without TLS"


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_tls_begins_with_1_2(place: Place, version: ssl.TLSVersion) -> None:
    """What is older is refused; both others are spoken."""
    context = trusting(place.ca, place.folder)
    context.minimum_version = context.maximum_version = version
    context.set_alpn_protocols(["h2", "http/1.1"])
    with context.wrap_socket(connect(place.server.url), server_hostname="127.0.0.1") as one:
        assert one.version() == version.name.replace("_", ".")
        assert one.selected_alpn_protocol() == "http/1.1"
    old = trusting(place.ca, place.folder)
    old.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    with connect(place.server.url) as plain, pytest.raises((ssl.SSLError, ConnectionError)):
        old.wrap_socket(plain, server_hostname="127.0.0.1")


def hello(place: Place) -> bytes:
    """The first bytes of a handshake."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = trusting(place.ca, place.folder).wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    with contextlib.suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


def test_half_done_handshakes_keep_nobody_out(place: Place) -> None:
    """They count as connections, whether silent or stuck in any part of their first flight."""
    first = hello(place)
    files = Path(f"/proc/{place.server.process.pid}/fd")
    before = len(list(files.iterdir()))
    with ExitStack() as stack:
        for number in range(400):
            connection = stack.enter_context(connect(place.server.url))
            connection.sendall((b"", first[:1], first[:-1], first)[number % 4])
            if number % 50 == 49:
                assert place.server.get("/health/live").status_code == 200
                assert len(list(files.iterdir())) < before + CONNECTIONS + 20
        wait_until(lambda: len(list(files.iterdir())) <= before + 5)
    assert 'tls_handshake_failures_total{reason="timeout"}' in place.server.get("/metrics").text


@pytest.mark.parametrize("which", ["place", "echo"])
def test_a_flood_of_handshakes_keeps_no_other_address_out(
    which: str, request: pytest.FixtureRequest
) -> None:
    """Connections that send a first flight and reset leave no files open, whatever their number."""
    attacked: Place = request.getfixturevalue(which)
    url, first = urlsplit(attacked.server.url), hello(attacked)
    address = (url.hostname, url.port)
    context = trusting(attacked.ca, attacked.folder)
    files = Path(f"/proc/{attacked.server.process.pid}/fd")
    before = len(list(files.iterdir()))

    def flood() -> None:
        for _ in range(2000):
            with contextlib.suppress(OSError), socket.create_connection(address, PATIENCE) as one:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                one.sendall(first)

    def get_in() -> bytes:
        plain = socket.create_connection(address, PATIENCE, source_address=("127.0.0.2", 0))
        with context.wrap_socket(plain, server_hostname="127.0.0.1") as one:
            one.sendall(LAST)
            return read_all(one)

    with ThreadPoolExecutor(4) as threads:
        floods = [threads.submit(flood) for _ in range(4)]
        while not all(one.done() for one in floods):
            assert b" 200 OK" in get_in()
            assert len(list(files.iterdir())) < before + MAX_WAITING + MAX_ANSWERED + 100
    wait_until(lambda: len(list(files.iterdir())) <= before + 5)


def test_nonsense_in_a_handshake_ends_it(place: Place) -> None:
    """Any bytes after the first one end it, and no failure of the server is logged."""
    for noise in (b"\x16" * 400, b"\x16\x03\x01\x40\x00" + b"\0" * 2**14, hello(place) * 3):
        with connect(place.server.url) as connection:
            with contextlib.suppress(ConnectionError):
                connection.sendall(noise)
            read_all(connection)
    assert place.server.get("/health/live").status_code == 200
    assert "Traceback" not in place.server.logged


# --- What comes through it


def test_requests_come_through_in_any_cut(place: Place) -> None:
    """A record for each byte, many requests in one record, and one that is much longer."""
    client = place.issue("web.internal")
    one = request("/models/iris/predict", {"input": ROW})
    last = request("/models/iris/predict", {"input": ROW}, "connection: close")
    with secured(place, client) as connection:
        for place_in in range(len(one)):
            connection.sendall(one[place_in : place_in + 1])
        connection.sendall(one * 40 + last)
        assert [answer.status for answer in answers(read_all(connection))] == [200] * 42
    with secured(place, client) as connection:
        connection.sendall(request("/models/iris/predict", {"input": ROW * 5000}) + last)
        assert [answer.status for answer in answers(read_all(connection))] == [200] * 2


def test_what_follows_the_end_of_tls_is_nobodys(place: Place) -> None:
    """A connection ends with its records, on both sides."""
    client = place.issue("web.internal")
    sent = request("/models/iris/predict", {"input": ROW})
    with secured(place, client) as connection:
        connection.sendall(sent)
        connection.recv(1)
        plain = socket.socket(fileno=connection.detach())
        plain.settimeout(PATIENCE)
    with plain, contextlib.suppress(ConnectionError):
        plain.sendall(sent)
        assert b"HTTP/1.1" not in read_all(plain)


@pytest.fixture(scope="module")
def echo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A server with a small budget, whose model returns its input."""
    folder = tmp_path_factory.mktemp("echo")
    ca = trustme.CA()
    onnx_models.save(onnx_models.identity(), folder / "models" / "same" / "1" / "model.onnx")
    settings: dict[str, Any] = dict(serve_with(ca, folder))
    trust = trusting(ca, folder)
    with cohort(folder / "models", folder, trust=trust, memory_mb=64, **settings) as server:
        yield Place(server, ca, ca, folder)


def large(*headers: str) -> bytes:
    """A request whose response has some 12 MB."""
    numbers = np.ones((1_000_000, 3), "<f4").tobytes()
    parameters = {"binary_data_size": len(numbers)}
    shape = [1_000_000, 3]
    inputs = [{"name": "x", "datatype": "FP32", "shape": shape, "parameters": parameters}]
    head = json.dumps({"inputs": inputs}).encode()
    length = f"Inference-Header-Content-Length: {len(head)}"
    return request("/v2/models/same/infer", head + numbers, length, *headers)


def held(place: Place) -> float:
    lines = place.server.get("/metrics").text.splitlines()
    (line,) = [one for one in lines if one.startswith("memory_held_bytes ")]
    return float(line.split()[1])


def test_responses_that_nobody_reads_count_over_tls(echo: Place) -> None:
    """They are kept as they are, and counted; others are answered, and all is given back."""
    with ExitStack() as stack:
        for _ in range(4):
            connection = stack.enter_context(secured(echo))
            connection.sendall(large())
            connection.recv(1)  # it is being answered
        wait_until(lambda: held(echo) > 16 * 2**20)
        small = httpx.post(
            f"{echo.server.url}/predict", json={"input": [[1, 2, 3]]}, verify=echo.server.trust
        )
        assert small.status_code == 200
    wait_until(lambda: held(echo) == 0)


def test_a_large_response_that_closes_its_connection_comes_whole(echo: Place) -> None:
    """It arrives whole at any pace of its reader, followed by the end of TLS."""
    with secured(echo) as connection:
        connection.sendall(large("connection: close"))
        wait_until(lambda: bool(select.select([connection], [], [], 0)[0]))
        wait_until(lambda: held(echo) > 2**20)
        (answer,) = answers(read_all(connection))
    assert (answer.status, answer.headers["connection"]) == (200, "close")
    assert len(answer.json["outputs"][0]["data"]) == 3_000_000
    wait_until(lambda: held(echo) == 0)


def test_a_refused_body_is_answered_before_it_is_whole(echo: Place) -> None:
    """The caller reads why, although it is still sending."""
    head = request("/predict", b"", f"content-length: {65 * 2**20}")
    with secured(echo) as connection:
        connection.sendall(head + b" " * 2**16)
        (answer,) = answers(read_all(connection))
    assert answer.status == 413
