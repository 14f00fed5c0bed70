"""A process that speaks TLS: how it starts, follows its files, and stops."""

from __future__ import annotations

import ssl
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
import trustme
from cryptography.x509 import DNSName
from grpc_health.v1 import health_pb2

from tests.certificates import issue, replace, serve_with, trusting
from tests.e2e.processes import MODELS, Cohort, cohort, free_port, run_command
from tests.e2e.test_stopping import NOTICE, stop_without_loss
from tests.http.wire import LAST, answers, connect, read_all, request
from tests.waiting import PATIENCE, wait_until

HEALTH = request("/health/live", method="GET")


@pytest.fixture
def ca() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def files(ca: trustme.CA, tmp_path: Path) -> Mapping[str, Path]:
    """The settings that name a certificate and those of clients'."""
    client_ca = tmp_path / "clients.pem"
    client_ca.write_bytes(ca.cert_pem.bytes())
    return {**serve_with(ca, tmp_path), "tls_client_ca": client_ca}


@pytest.fixture
def server(ca: trustme.CA, files: Mapping[str, Path], tmp_path: Path) -> Iterator[Cohort]:
    trust = trusting(ca, tmp_path)
    models = tmp_path / "models"
    models.mkdir()
    settings: dict[str, Any] = {**files, "grpc_port": free_port(), "allow_empty": True}
    with cohort(models, tmp_path, ready=False, trust=trust, **settings) as started:
        yield started


def secured(
    server: Cohort, context: ssl.SSLContext, session: ssl.SSLSession | None = None
) -> ssl.SSLSocket:
    plain = connect(server.url)
    return context.wrap_socket(plain, server_hostname="127.0.0.1", session=session)


def shown(server: Cohort) -> bytes:
    """The certificate that a new connection is shown over HTTP."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with secured(server, context) as connection:
        certificate = connection.getpeercert(binary_form=True)
    assert certificate is not None
    return certificate


def health_over_grpc(server: Cohort, ca: trustme.CA, client: tuple[bytes, bytes]) -> str:
    credentials = grpc.ssl_channel_credentials(ca.cert_pem.bytes(), client[1], client[0])
    with grpc.secure_channel(server.grpc, credentials) as channel:
        call: Any = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
        )
        try:
            call(health_pb2.HealthCheckRequest(), timeout=PATIENCE)
        except grpc.RpcError as error:
            return error.code().name
    return "OK"


def test_a_new_certificate_is_shown_to_new_connections(
    server: Cohort, ca: trustme.CA, files: Mapping[str, Path], tmp_path: Path
) -> None:
    """Both APIs show it, also from another CA, while an open connection continues."""
    client = issue(ca, DNSName("web.internal"))
    before = shown(server)
    assert health_over_grpc(server, ca, client) == "OK"
    with secured(server, trusting(ca, tmp_path)) as connection:
        connection.sendall(HEALTH)
        assert connection.recv(1) == b"H"
        other = trustme.CA()
        serve_with(other, tmp_path)
        wait_until(lambda: shown(server) != before)
        wait_until(lambda: health_over_grpc(server, other, client) == "OK")
        assert health_over_grpc(server, ca, client) == "UNAVAILABLE"
        connection.sendall(HEALTH + LAST)
        received = answers(b"H" + read_all(connection))
    assert [answer.status for answer in received] == [200] * 3


def test_broken_files_change_nothing(
    server: Cohort, files: Mapping[str, Path], ca: trustme.CA, tmp_path: Path
) -> None:
    """The last good ones are used; health, the log and the metrics say what is wrong."""
    before = shown(server)
    _, key = issue(ca, DNSName("other"))
    replace(files["tls_key"], key)
    problem = "tls.key: is not the key of the certificate in tls.crt"
    wait_until(lambda: "certificates invalid" in server.logged)
    client = trusting(ca, tmp_path, *issue(ca, DNSName("web.internal")))
    assert problem in httpx.get(f"{server.url}/health", verify=client).text
    assert "tls_config_valid 0.0" in server.get("/metrics").text
    assert shown(server) == before
    serve_with(ca, tmp_path)
    wait_until(lambda: shown(server) != before)
    metrics = server.get("/metrics").text
    assert "tls_config_valid 1.0" in metrics
    assert "tls_certificate_expiry_timestamp_seconds " in metrics


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_who_may_be_a_client_can_be_replaced(
    server: Cohort,
    ca: trustme.CA,
    files: Mapping[str, Path],
    tmp_path: Path,
    version: ssl.TLSVersion,
) -> None:
    """The former CA's certificates get in no more, also not by a session that is resumed."""
    other = trustme.CA()
    old, new = issue(ca, DNSName("web.internal")), issue(other, DNSName("web.internal"))
    trust = trusting(ca, tmp_path, *old)
    trust.minimum_version = trust.maximum_version = version
    models = request("/models", method="GET")

    def status(session: ssl.SSLSession | None = None) -> tuple[int, ssl.SSLSession | None, bool]:
        with secured(server, trust, session) as connection:
            connection.sendall(models + LAST)
            received = answers(read_all(connection))
            return received[0].status, connection.session, bool(connection.session_reused)

    first, session, _ = status()
    assert (first, status(session)[2]) == (200, True), "a session is resumed"
    replace(files["tls_client_ca"], other.cert_pem.bytes())
    wait_until(lambda: health_over_grpc(server, ca, new) == "OK")
    assert health_over_grpc(server, ca, old) == "UNAVAILABLE"
    with pytest.raises((ssl.SSLError, ConnectionError, IndexError)):
        status(session)
    successor = trusting(ca, tmp_path, *new)
    assert httpx.get(f"{server.url}/models", verify=successor).status_code == 200


def test_with_a_ca_and_no_keys_a_certificate_is_needed(
    server: Cohort, ca: trustme.CA, tmp_path: Path
) -> None:
    """Any certificate of the CA suffices, on all routes but the open ones."""
    assert server.get("/health/live").status_code == 200
    refused = server.get("/models")
    assert (refused.status_code, refused.json()["error"]) == (
        401,
        "this request needs a client certificate",
    )
    client = trusting(ca, tmp_path, *issue(ca, DNSName("anybody")))
    assert httpx.get(f"{server.url}/models", verify=client).status_code == 200


@pytest.mark.parametrize("keep_alive", [True, False])
async def test_sigterm_over_tls_loses_no_request(
    ca: trustme.CA, tmp_path: Path, keep_alive: bool
) -> None:
    """Every connected caller gets an answer, also in the middle of a handshake."""
    settings: dict[str, Any] = dict(serve_with(ca, tmp_path))
    trust = trusting(ca, tmp_path)
    with cohort(MODELS, tmp_path, trust=trust, drain_notice_seconds=NOTICE, **settings) as server:
        await stop_without_loss(server, 8, keep_alive=keep_alive)


# --- Starting


def run(*arguments: str, **settings: object) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    environment = {
        "COHORT_LOG_FORMAT": "json",
        "COHORT_MODELS": str(MODELS),
        **{f"COHORT_{name.upper()}": str(value) for name, value in settings.items()},
    }
    return run_command(*arguments, env=environment)


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ("tls_key", "COHORT_TLS_KEY: is needed with COHORT_TLS_CERT"),
        ("tls_cert", "COHORT_TLS_CERT: is needed with COHORT_TLS_"),
    ],
)
def test_one_setting_without_the_other_is_refused(
    files: Mapping[str, Path], missing: str, said: str
) -> None:
    """The server does not start, and does not serve without TLS."""
    ended = run("serve", **{name: path for name, path in files.items() if name != missing})
    assert (ended.returncode, said in ended.stderr) == (2, True), ended.stderr


def test_broken_files_end_the_start(files: Mapping[str, Path]) -> None:
    """`cohort check` reports the same, and that a certificate has expired."""
    files["tls_cert"].write_text("no certificate")
    said = "tls.crt: does not contain a valid PEM certificate"
    ended = run("serve", port=free_port(), grpc_port=0, **files)
    assert (ended.returncode, said in ended.stderr) == (1, True), ended.stderr
    checked = run("check", "--no-open", **files)
    assert (checked.returncode, said in checked.stdout) == (1, True), checked.stdout


def test_check_names_a_certificate_that_has_expired(
    files: Mapping[str, Path], ca: trustme.CA
) -> None:
    """Clients refuse it; the server itself would start."""
    certificate, key = issue(ca, DNSName("localhost"), days=-1)
    files["tls_cert"].write_bytes(certificate)
    files["tls_key"].write_bytes(key)
    checked = run("check", "--no-open", **files)
    assert (checked.returncode, "tls.crt: expired at" in checked.stdout) == (1, True)
