"""Files of certificates: valid content, and errors about wrong ones."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from ssl import CERT_OPTIONAL, CERT_REQUIRED, PEM_cert_to_DER_cert

import pytest
import structlog
import trustme
from cryptography.hazmat.primitives import serialization
from cryptography.x509 import DNSName

from cohort.connections.tls import TlsFiles, TlsWatcher, load_tls
from cohort.repository import ConfigProblems
from tests.certificates import issue

CA = trustme.CA()
NAME = DNSName("localhost")


@pytest.fixture
def files(tmp_path: Path) -> TlsFiles:
    """A certificate that fits its key, and a client CA."""
    made = TlsFiles(tmp_path / "tls.crt", tmp_path / "tls.key", tmp_path / "clients.pem")
    write(made, *issue(CA, NAME))
    (tmp_path / "clients.pem").write_bytes(CA.cert_pem.bytes())
    return made


def write(files: TlsFiles, certificate: bytes, key: bytes) -> None:
    """Write files with an old time, so that they count as complete."""
    files.certificate.write_bytes(certificate)
    files.key.write_bytes(key)
    age(files.certificate)
    age(files.key)


def age(path: Path) -> None:
    stamp = age.stamp = getattr(age, "stamp", 1_000_000_000) + 1  # type: ignore[attr-defined]
    os.utime(path, (stamp, stamp))


def locked(key: bytes) -> bytes:
    """Return the same key, with a password."""
    private = serialization.load_pem_private_key(key, None)
    return private.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )


def test_what_is_read_says_until_when_it_is_valid(files: TlsFiles) -> None:
    """A certificate outside its time is served, and reported as refused by clients."""
    tls = load_tls(files)
    authority = PEM_cert_to_DER_cert(CA.cert_pem.bytes().decode())
    for context in (tls.context, tls.grpc):
        assert context.get_ca_certs(binary_form=True) == [authority]
    assert (tls.context.verify_mode, tls.grpc.verify_mode) == (CERT_OPTIONAL, CERT_REQUIRED)
    assert not tls.untimely(datetime.now(UTC))
    assert tls.untimely(tls.expires).startswith("expired at ")
    assert tls.untimely(datetime(2000, 1, 1, tzinfo=UTC)).startswith("is not valid before ")


Break = Callable[[TlsFiles], object]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda files: files.certificate.unlink(), "tls.crt: is missing"),
        (
            lambda files: files.certificate.write_text(""),
            "tls.crt: does not contain a valid PEM certificate",
        ),
        (
            lambda files: files.certificate.write_bytes(files.certificate.read_bytes()[:-100]),
            "tls.crt: does not contain a valid PEM certificate",
        ),
        (
            lambda files: files.key.write_text("secret"),
            "tls.key: does not contain a valid PEM private key",
        ),
        (
            lambda files: files.key.write_bytes(locked(files.key.read_bytes())),
            "tls.key: is encrypted with a password",
        ),
        (
            lambda files: files.key.write_bytes(issue(CA, NAME)[1]),
            "tls.key: is not the key of the certificate in tls.crt",
        ),
        (
            lambda files: files.client_ca.write_text("CA"),
            "clients.pem: does not contain a valid PEM certificate",
        ),
        (lambda files: files.client_ca.unlink(), "clients.pem: is missing"),
        (lambda files: files.key.write_bytes(b"\xff\xfe"), "tls.key: is not UTF-8 text"),
        (lambda files: (files.key.unlink(), files.key.mkdir()), "tls.key: must be a file"),
    ],
)
def test_what_is_wrong_is_named_with_its_file(files: TlsFiles, damage: Break, said: str) -> None:
    """The error contains no part of a key."""
    damage(files)
    with pytest.raises(ConfigProblems) as caught:
        load_tls(files)
    assert str(caught.value).startswith(said)
    assert "secret" not in str(caught.value)


def check(watcher: TlsWatcher) -> list[str]:
    """Look at the files; the events that were logged."""
    with structlog.testing.capture_logs() as logged:
        asyncio.run(watcher.check_files())
    return [one["event"] for one in logged]


def test_files_that_stay_the_same_are_read_once(files: TlsFiles) -> None:
    """Those that change are read again, together."""
    watcher = TlsWatcher(files)
    first = watcher.current
    assert check(watcher) == []
    assert watcher.current is first
    write(files, *issue(CA, NAME))
    assert check(watcher) == ["certificate read"]
    assert watcher.current is not first


def test_a_pair_that_does_not_fit_changes_nothing_until_it_does(files: TlsFiles) -> None:
    """One file may be replaced a moment before the other."""
    watcher = TlsWatcher(files)
    first = watcher.current
    certificate, key = issue(CA, NAME)
    write(files, certificate, files.key.read_bytes())
    assert check(watcher) == ["certificates invalid"]
    assert (watcher.current, watcher.valid) == (first, False)
    assert watcher.problems == ["tls.key: is not the key of the certificate in tls.crt"]
    write(files, certificate, key)
    assert check(watcher) == ["certificate read"]
    assert (watcher.valid, watcher.problems) == (True, [])


def test_a_certificate_that_has_expired_is_a_problem(files: TlsFiles) -> None:
    """It is used, because nothing better is there."""
    write(files, *issue(CA, NAME, days=-1))
    with structlog.testing.capture_logs() as logged:
        watcher = TlsWatcher(files)
    assert [one["event"] for one in logged] == ["certificate read", "certificate invalid"]
    (problem,) = watcher.problems
    assert problem.startswith("tls.crt: expired at ")
    assert watcher.valid
