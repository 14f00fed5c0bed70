"""Ways around an issuer's tokens, each over every API that it concerns."""

from __future__ import annotations

import json
import re
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx
import jwt
import pytest
from cryptography.hazmat.primitives import serialization

from cohort.rpc import inference_pb2 as messages
from tests.attacks.test_keys import (
    APIS,
    ASK,
    UNAUTHORIZED,
    Asked,
    Headers,
    bearer,
    call_grpc,
    entry,
    predict,
)
from tests.auth.issuing import (
    AUDIENCE,
    ISSUER,
    claims,
    jwks,
    private_key,
    public_jwk,
    token,
)
from tests.e2e.processes import MODELS, Cohort, cohort, free_port
from tests.http.wire import connect, exchange
from tests.waiting import wait_until

ENTRIES = (
    "- {name: alice, subject: alice, models: [iris]}\n"
    "- {name: ops, subject: ops, admin: true}\n"
    + entry("both", "key-of-both", ", subject: both, rate: 0.001")
)


@dataclass
class Guarded:
    """A server, and the files that a test edits."""

    server: Cohort
    keys: Path
    jwks: Path

    def write(self, file: Path, text: str) -> None:
        other = file.with_suffix(".new")
        other.write_text(text)
        other.replace(file)

    def code(self, api: str, sent: str, model: str = "iris") -> str:
        return ASK[api](self.server, bearer(sent), model).code

    def codes(self, sent: str) -> set[str]:
        """Return the codes that all APIs answer with."""
        return {self.code(api, sent) for api in APIS}

    def health(self, key: str) -> str:
        return httpx.get(f"{self.server.url}/health", headers={"x-api-key": key}).text


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """A server whose callers have tokens."""
    folder = tmp_path_factory.mktemp("tokens")
    for model in ("iris", "digits"):
        shutil.copytree(MODELS / model, folder / "models" / model)
    with serving(folder) as server:
        yield server


@pytest.fixture
def edited(tmp_path: Path) -> Iterator[Guarded]:
    """The same for one test, which edits its files."""
    shutil.copytree(MODELS / "iris", tmp_path / "models" / "iris")
    with serving(tmp_path) as server:
        yield server


@contextmanager
def serving(folder: Path, **more: Any) -> Iterator[Guarded]:
    """Serve the models of a folder to whom its files name."""
    keys, jwks_file = folder / "keys.yaml", folder / "jwks.json"
    keys.write_text(ENTRIES)
    jwks_file.write_text(jwks())
    settings: dict[str, Any] = {
        "api_keys": keys,
        "jwks": jwks_file,
        "jwt_issuer": ISSUER,
        "jwt_audience": AUDIENCE,
        "metrics_key": "key-of-metrics",
        "grpc_port": free_port(),
        **more,
    }
    with cohort(folder / "models", folder, **settings) as server:
        yield Guarded(server, keys, jwks_file)


# --- Who is let in


@pytest.mark.parametrize("api", APIS)
def test_a_token_lets_its_subject_in(guarded: Guarded, api: str) -> None:
    """Either header works every time, for the models of the entry and no others."""
    sent = token()
    good: tuple[Headers, ...] = (
        bearer(sent),
        bearer(sent),
        [("authorization", f"bearer  {sent}")],
        [("x-api-key", sent)],
        [*bearer(sent), ("x-api-key", sent)],
        bearer(token(typ="at+jwt")),
        bearer(token(claims(aud=["other", AUDIENCE]))),
    )
    for headers in good:
        assert ASK[api](guarded.server, headers, "iris").code == "OK", headers
    for _ in range(2):
        assert guarded.code(api, sent, "digits") == "ModelNotFound"
    assert guarded.code(api, token(claims(sub="ops")), "digits") == "InvalidInput"


def forged() -> Iterator[str]:
    """Tokens that are not the issuer's, or not for this server, or not now."""
    public = (
        private_key()
        .public_key()
        .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    good, other = token(), private_key("ES256", "another")
    head, body, signature = good.split(".")
    yield from (f"{head}.{body}.", f"{head}.{body}", f"{good}.", f"{good}=", f"{good}.{signature}")
    yield from (f"{head}.{body}.{signature[:-4]}", f"{head}.{body}.{signature[::-1]}")
    yield f"{head}.{token(claims(sub='ops')).split('.')[1]}.{signature}"
    yield token(key=other)
    yield token(key=other, jwk=public_jwk())
    yield token(key=other, kid="k2")
    yield token(algorithm="RS256")
    yield jwt.encode(claims(), private_key(), algorithm="ES256")
    yield f"{jws_segment({'alg': 'none', 'kid': 'k1', 'typ': 'JWT'})}.{body}."
    for secret in (public, public.strip(), b"k1", ISSUER.encode(), b"key-of-both" * 4):
        signed = f"{jws_segment({'alg': 'HS256', 'kid': 'k1', 'typ': 'JWT'})}.{body}"
        hmac = jwt.algorithms.HMACAlgorithm(jwt.algorithms.HMACAlgorithm.SHA256)
        yield f"{signed}.{jws_segment(hmac.sign(signed.encode(), secret))}"
    for changes in (
        {"iss": f"{ISSUER}/"},
        {"aud": "other"},
        {"aud": None},
        {"exp": None},
        {"exp": int(time.time()) - 1},
        {"nbf": int(time.time()) + 3600},
        {"sub": None},
    ):
        yield token(claims(**changes))


def jws_segment(value: object) -> str:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return jwt.utils.base64url_encode(data).decode()


@pytest.mark.parametrize("api", APIS)
def test_nothing_but_a_token_of_the_issuer_is_one(guarded: Guarded, api: str) -> None:
    """Its key, algorithm, audience and time must be right; otherwise it is Unauthorized."""
    for sent in forged():
        assert guarded.code(api, sent) == UNAUTHORIZED, sent


@pytest.mark.parametrize("api", ["hot", "ordinary", "v1", "v2"])
def test_a_long_token_is_refused_unread(guarded: Guarded, api: str) -> None:
    """It is refused over HTTP; gRPC cannot carry it."""
    assert guarded.code(api, token(claims(more="x" * 8000))) == UNAUTHORIZED


@pytest.mark.parametrize("api", APIS)
def test_a_subject_without_an_entry_is_not_let_in(guarded: Guarded, api: str) -> None:
    """It is known, but may nothing: Forbidden."""
    for subject in ("mallory", "Alice", "alice ", "*", "both\u0000"):
        assert guarded.code(api, token(claims(sub=subject))) == "Forbidden", subject


@pytest.mark.parametrize("api", APIS)
def test_a_token_beside_another_key_is_refused(guarded: Guarded, api: str) -> None:
    """It is refused although each is good; so are two tokens of one subject."""
    for headers in (
        [*bearer(token()), ("x-api-key", "key-of-both")],
        [*bearer(token()), *bearer(token(claims(exp=time.time() + 50)))],
    ):
        assert ASK[api](guarded.server, headers, "iris").code == UNAUTHORIZED, headers


def test_keys_and_tokens_of_an_entry_share_its_quota(guarded: Guarded) -> None:
    """One request in a thousand seconds is one on whichever API, by whichever token."""
    assert guarded.code("hot", "key-of-both") == "OK"
    for number, api in enumerate(APIS):
        sent = token(claims(sub="both", jti=str(number)))
        assert guarded.code(api, sent) == "Overloaded"
    assert guarded.codes("key-of-both") == {"Overloaded"}


def test_a_token_operates_where_its_entry_does(guarded: Guarded) -> None:
    """REST and gRPC log it with the entry's name; it reads the metrics, others do not."""
    url, ops = guarded.server.url, token(claims(sub="ops"))
    load = messages.RepositoryModelLoadRequest(model_name="iris")
    expired = token(claims(sub="ops", exp=int(time.time()) - 1))
    forged_ops = token(claims(sub="ops"), key=private_key("ES256", "another"))
    for sent, status, code in (
        (ops, 200, "OK"),
        (token(), 403, "PERMISSION_DENIED"),
        (token(claims(sub="mallory")), 403, "PERMISSION_DENIED"),
        (expired, 401, "UNAUTHENTICATED"),
        (forged_ops, 401, "UNAUTHENTICATED"),
    ):
        headers = {"authorization": f"Bearer {sent}"}
        path = f"{url}/admin/models/iris/load"
        assert httpx.post(path, headers=headers).status_code == status
        assert call_grpc(guarded.server, "RepositoryModelLoad", load, sent)[0] == code
        read = httpx.get(f"{url}/metrics", headers=headers).status_code
        assert (read == httpx.codes.OK) == (status == httpx.codes.OK)
    wait_until(lambda: guarded.server.logged.count('"caller": "ops"') == 2)
    metrics = httpx.get(f"{url}/metrics", headers={"x-api-key": "key-of-metrics"})
    assert 'api_key_requests_total{key="alice"}' in metrics.text
    assert "api_keys_config_valid 1.0" in metrics.text


def test_what_is_open_is_open_to_tokens_that_are_refused(guarded: Guarded) -> None:
    """Health answers a refused token, and names models only to one that may see them."""
    for sent, names in ((token(), ("iris",)), (token(kid="k2"), ()), (token() + "x", ())):
        text = guarded.health(sent)
        assert "digits" not in text
        assert ("iris" in text) == bool(names)


# --- A connection that has seen a token


def status_of(connection: socket.socket, sent: bytes) -> int:
    """The status of the answer to a request."""
    connection.sendall(sent)
    received = b""
    while True:
        received += connection.recv(4096)
        head, _, body = received.partition(b"\r\n\r\n")
        if (length := re.search(rb"content-length: (\d+)", head)) and len(body) == int(length[1]):
            return int(head.split()[1])


def ending(*lifetimes: int) -> Iterator[tuple[str, int]]:
    """Tokens and when they end: the next where the machine is too slow to use one before that."""
    for lifetime in lifetimes:
        end = int(time.time()) + lifetime
        yield token(claims(exp=end)), end
    raise TimeoutError("the machine is too slow to tell")


def test_a_token_ends_on_open_connections(guarded: Guarded) -> None:
    """It ends to the second when pipelined, in remembered heads and on open streams."""
    paths = ("/models/{model}/predict", "/models/{model}/predict?x=1")
    with ExitStack() as stack:
        for sent, end in ending(4, 16, 64):
            kept = stack.enter_context(connect(guarded.server.url))
            stream = Asked(stack.enter_context(grpc.insecure_channel(guarded.server.grpc)), sent)
            statuses = {status_of(kept, predict(sent, path=path)) for path in 3 * paths}
            refused = stream.ask()
            if time.time() < end:
                break
        assert statuses == {200}
        assert refused == ""
        wait_until(lambda: guarded.code("hot", sent) == UNAUTHORIZED)
        assert time.time() >= end
        assert {status_of(kept, predict(sent, path=path)) for path in paths} == {401}
        assert stream.ask() == "Unauthorized: the token has expired"
    assert guarded.codes(sent) == {UNAUTHORIZED}


def test_a_token_that_ends_within_a_body_is_good(guarded: Guarded) -> None:
    """The head had come in time, and was checked then."""
    with ExitStack() as stack:
        for sent, end in ending(4, 16, 64):
            slow = stack.enter_context(connect(guarded.server.url))
            slow.sendall(predict(sent)[:-5])
            assert guarded.code("hot", token()) == "OK"  # so what came before has been read
            if time.time() < end:
                break
        wait_until(lambda: guarded.code("hot", sent) == UNAUTHORIZED)
        assert status_of(slow, predict(sent)[-5:]) == 200


def test_a_key_that_is_rotated_out_opens_nothing(edited: Guarded) -> None:
    """It fails at once: on open connections, in remembered heads and on open streams.

    A file that is wrong or missing changes nothing, and the health, the metrics and the log report
    it.
    """
    sent, after = token(), token(algorithm="EdDSA", kid="k2")
    channel = grpc.insecure_channel(edited.server.grpc)
    stream = Asked(channel, sent)
    with connect(edited.server.url) as kept, channel:
        for _ in range(2):
            assert status_of(kept, predict(sent)) == 200
        assert stream.ask() == ""

        edited.write(edited.jwks, "{}")
        ops = token(claims(sub="ops"))
        wait_until(lambda: "jwks.json" in edited.health(ops))
        assert "jwks.json" not in edited.health("")
        metrics = httpx.get(f"{edited.server.url}/metrics", headers={"x-api-key": ops})
        assert "api_keys_config_valid 0.0" in metrics.text
        wait_until(lambda: '"JWKS file invalid"' in edited.server.logged)
        assert edited.codes(sent) == {"OK"}

        edited.write(edited.jwks, jwks(public_jwk("EdDSA", "k2")))
        wait_until(lambda: edited.code("hot", sent) == UNAUTHORIZED)
        assert status_of(kept, predict(sent)) == 401
        assert stream.ask().startswith("Unauthorized: the token's key id ('kid') is not among")
    assert edited.codes(sent) == {UNAUTHORIZED}
    assert edited.codes(after) == {"OK"}

    edited.write(edited.keys, '- {name: staff, subject: "*", models: []}')
    wait_until(lambda: edited.code("hot", after) == "ModelNotFound")
    edited.write(edited.keys, '- {name: staff, subject: "*"}')
    wait_until(lambda: edited.code("hot", after) == "OK")
    anyone = token(claims(sub="mallory"), algorithm="EdDSA", kid="k2")
    assert edited.codes(anyone) == {"OK"}
    edited.write(edited.keys, "[]")
    wait_until(lambda: edited.code("hot", after) == "Forbidden")
    assert edited.codes(anyone) == {"Forbidden"}
    for secret in (sent, after, anyone):
        assert secret.rpartition(".")[2] not in edited.server.logged


def test_without_a_readable_file_of_keys_no_token_gets_in(tmp_path: Path) -> None:
    """The process is not ready, its gRPC port is closed, and tokens get NotReady.

    Static keys are known.
    """
    shutil.copytree(MODELS / "iris", tmp_path / "models" / "iris")
    jwks_file = tmp_path / "other.json"
    with serving(tmp_path, ready=False, jwks=jwks_file) as guarded:
        guarded.server.wait_for("/health/ready", 503)
        assert {guarded.code(api, token()) for api in ("hot", "ordinary", "v1", "v2")} == {
            "NotReady"
        }
        host, _, port = guarded.server.grpc.partition(":")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, int(port)))
        wait_until(lambda: guarded.code("hot", "key-of-both") != "NotReady")
        guarded.write(jwks_file, jwks())
        guarded.server.wait_for("/health/ready")
        assert guarded.codes(token()) == {"OK"}


# --- Thousands of them


def test_forged_tokens_by_the_thousand_hold_nobody_up(guarded: Guarded) -> None:
    """They are refused, beyond a rate without being read; verified tokens still work."""
    known = token(claims(jti="known"))
    assert guarded.code("hot", known) == "OK"
    bad = token(key=private_key("ES256", "another")).rpartition(".")[0]
    told: dict[int, int] = {}
    for batch in range(4):
        signatures = (number.to_bytes(64) for number in range(batch * 500, batch * 500 + 500))
        burst = [predict(f"{bad}.{jws_segment(one)}") for one in signatures]
        for answer in exchange(guarded.server.url, [b"".join(burst)])[:-1]:
            told[answer.status] = told.get(answer.status, 0) + 1
        assert guarded.codes(known) == {"OK"}
    assert set(told) <= {401, 429}
    assert sum(told.values()) == 2000
    for api in APIS:
        sent = token(claims(jti=api))
        wait_until(lambda api=api, sent=sent: guarded.code(api, sent) == "OK")  # type: ignore[misc]
