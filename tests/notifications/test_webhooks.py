"""Notifications, sent to real receivers: good ones, slow ones, dead ones and failing ones."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from os import mkfifo, utime
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from structlog.testing import capture_logs

from cohort.notifications.webhook_secret import SecretFile, decode_secret
from cohort.notifications.webhooks import Notification, Retrying, Webhooks, sign, split_addresses
from cohort.process.notifications import make_webhooks
from cohort.repository import ConfigProblems
from cohort.settings import Settings
from tests.e2e.processes import free_port
from tests.receiver import Receiver
from tests.waiting import PATIENCE, until

ROOT = Path(__file__).parents[2]
SECRET = "a-secret-of-the-operator"
QUICK = Retrying(first_pause=0.01, longest_pause=0.02, most_waiting=3)


@pytest.fixture
def receivers() -> Iterator[list[Receiver]]:
    """Receivers that are closed at the end."""
    made: list[Receiver] = []
    yield made
    for one in made:
        one.close()


@asynccontextmanager
async def sending(*urls: str, retrying: Retrying = QUICK) -> AsyncIterator[Webhooks]:
    """Webhooks at work."""
    webhooks = Webhooks(urls, lambda: decode_secret(SECRET), retrying=retrying)
    task = asyncio.create_task(webhooks.run())
    yield webhooks
    task.cancel()
    await asyncio.wait({task})


def note(identifier: str = "msg_1") -> Notification:
    return Notification(identifier, "rollout.rolled_back", {"model": "digits"})


def receiver(receivers: list[Receiver], *statuses: int) -> Receiver:
    receivers.append(Receiver(*statuses))
    return receivers[-1]


async def test_a_notification_is_signed_as_the_standard_says(receivers: list[Receiver]) -> None:
    """The signature covers id, time and body, so a receiver can verify the sender and the time."""
    good = receiver(receivers, 204)
    async with sending(good.url) as webhooks:
        webhooks.send(note())
        await until(lambda: webhooks.outcomes[good.name, "delivered"] == 1)
    ((headers, body),) = good.got
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    wanted = base64.b64encode(hmac.digest(SECRET.encode(), signed, hashlib.sha256)).decode()
    assert hmac.compare_digest(headers["webhook-signature"], f"v1,{wanted}")
    assert abs(time.time() - int(headers["webhook-timestamp"])) < PATIENCE
    said: dict[str, Any] = json.loads(body)
    assert (said["type"], said["data"]) == ("rollout.rolled_back", {"model": "digits"})


def test_the_example_of_the_standard_is_signed_alike() -> None:
    """The secret is in base64: https://github.com/standard-webhooks/standard-webhooks"""
    signature = sign(
        decode_secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"),
        "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "1614265330",
        b'{"test": 2432232314}',
    )
    assert signature == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@pytest.mark.parametrize("text", [f"{SECRET}\n", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n"])
def test_the_guide_tells_receivers_how_to_verify(text: str) -> None:
    """Its function accepts the secret as in the file, and no other secret or time."""
    page = (ROOT / "docs/guide/webhooks.md").read_text()
    code = next(part for part in page.split("```") if "def verify(" in part)
    guide: dict[str, Any] = {}
    exec(code.removeprefix("python\n"), guide)
    now, body = int(time.time()), note().body()

    def signed_at(stamp: int) -> dict[str, str]:
        signature = sign(decode_secret(text), "msg_1", str(stamp), body)
        return {
            "webhook-id": "msg_1",
            "webhook-timestamp": str(stamp),
            "webhook-signature": f"v1,b3RoZXI= {signature}",
        }

    assert guide["verify"](signed_at(now), body, text)
    assert not guide["verify"](signed_at(now - 400), body, text)
    assert not guide["verify"](signed_at(now), body + b" ", text)
    assert not guide["verify"](signed_at(now), body, "another")


@pytest.mark.parametrize("statuses", [(500, 503, 200), (429, 408, 200)])
async def test_a_receiver_that_fails_is_tried_again(
    receivers: list[Receiver], statuses: tuple[int, ...]
) -> None:
    """The id stays, the signature is new, and the order is kept."""
    failing = receiver(receivers, *statuses)
    async with sending(failing.url) as webhooks:
        webhooks.send(note("msg_1"))
        webhooks.send(note("msg_2"))
        await until(lambda: webhooks.outcomes[failing.name, "delivered"] == 2)
    assert failing.ids == ["msg_1"] * 3 + ["msg_2"]


async def test_a_receiver_that_is_not_there_yet_is_tried_again(receivers: list[Receiver]) -> None:
    """A receiver may be restarting."""
    port = free_port()
    name = f"127.0.0.1:{port}"
    with capture_logs() as logged:
        async with sending(f"http://{name}/") as webhooks:
            webhooks.send(note())
            await until(lambda: logged)
            receivers.append(Receiver(200, port=port))
            await until(lambda: webhooks.outcomes[name, "delivered"] == 1)
    assert {line["event"] for line in logged} == {"webhook failed, trying again"}


@pytest.mark.parametrize(
    "text",
    [
        *("nonsense", "ftp://a", "http://:8", "http://a:x", "http://a b", "https://a,,https://b"),
        "http://a:0",
    ],
)
def test_an_address_that_is_none_is_refused_and_not_shown(text: str) -> None:
    """An invalid address is refused without showing it, because it may contain a secret."""
    with pytest.raises(ValueError, match=r"number [12] is not") as refused:
        split_addresses(text)
    assert text not in str(refused.value)


@pytest.mark.parametrize("status", [400, 401, 404, 302])
async def test_a_receiver_that_refuses_is_not_tried_again(
    receivers: list[Receiver], status: int
) -> None:
    """A refused notification is dropped, and the next one is sent. No redirect is followed."""
    refusing = receiver(receivers, status, 200)
    async with sending(refusing.url) as webhooks:
        webhooks.send(note("msg_1"))
        webhooks.send(note("msg_2"))
        await until(lambda: webhooks.outcomes[refusing.name, "delivered"] == 1)
    assert refusing.ids == ["msg_1", "msg_2"]
    assert webhooks.outcomes[refusing.name, "failed"] == 1


async def test_a_dead_or_slow_receiver_holds_up_nobody_else(receivers: list[Receiver]) -> None:
    """Other receivers and the sender do not wait; too many or too old notifications are counted."""
    slow, good = receiver(receivers, 0), receiver(receivers, 200)
    dead = f"127.0.0.1:{free_port()}"
    retrying = Retrying(PATIENCE, 0.01, 0.02, give_up_after=0.0, most_waiting=3)
    async with sending(slow.url, f"http://{dead}/", good.url, retrying=retrying) as webhooks:
        for number in range(3):
            webhooks.send(note(f"msg_{number}"))
        await until(lambda: webhooks.outcomes[good.name, "delivered"] == 3)
        for number in range(3, 6):
            webhooks.send(note(f"msg_{number}"))
        assert all(count <= 3 for count in webhooks.waiting.values())
        assert webhooks.outcomes[slow.name, "dropped"] >= 2
        await until(lambda: webhooks.outcomes[good.name, "delivered"] == 6)
        slow.released.set()
        await until(lambda: not any(webhooks.waiting.values()))
    assert good.ids == [f"msg_{number}" for number in range(6)]
    for name in (slow.name, dead):
        assert not webhooks.outcomes[name, "delivered"]
        assert webhooks.outcomes[name, "failed"] + webhooks.outcomes[name, "dropped"] == 6


async def test_a_receiver_that_never_answers_is_given_up(receivers: list[Receiver]) -> None:
    """Each request has a time limit, and so has each notification."""
    slow = receiver(receivers, 0)
    retrying = Retrying(0.05, 0.01, 0.02, give_up_after=0.1)
    async with sending(slow.url, retrying=retrying) as webhooks:
        webhooks.send(note())
        await until(lambda: webhooks.outcomes[slow.name, "failed"] == 1)
    assert not webhooks.outcomes[slow.name, "delivered"]


def test_what_waits_is_counted_by_receiver() -> None:
    """The counts exist before anything is sent. The guide lists how long a receiver is retried."""
    webhooks = Webhooks(["http://a/1", "http://a/2", "http://b:1"], lambda: b"key")
    for number in range(2):
        webhooks.send(note(f"msg_{number}"))
    assert webhooks.waiting == {"a": 4, "b:1": 2}
    assert Retrying() == Retrying(10.0, 1.0, 60.0, 3600.0, 256)


async def test_no_log_line_holds_a_secret(
    receivers: list[Receiver], caplog: pytest.LogCaptureFixture
) -> None:
    """Neither the signing secret nor a secret in the address is logged, whatever fails."""
    failing = receiver(receivers, 500, 400)
    with capture_logs() as logged, caplog.at_level("DEBUG"):
        async with sending(failing.url) as webhooks:
            webhooks.send(note())
            await until(lambda: webhooks.outcomes[failing.name, "failed"] == 1)
    assert [line["event"] for line in logged] == [
        "webhook failed, trying again",
        "webhook not delivered",
    ]
    for secret in (SECRET, "token-in", "user:pass"):
        assert secret not in f"{logged} {caplog.text}"


async def test_a_secret_that_changes_signs_from_then_on(tmp_path: Path) -> None:
    """A secret that becomes unreadable is logged, and the last good one continues to sign."""
    file = tmp_path / "secret"
    file.write_text(f"{SECRET}\n")
    utime(file, (1, 0))
    secret = SecretFile(file)
    with capture_logs() as logged:
        await secret.check_file()
    assert logged == []
    for text, key in (("another", b"another"), ("", b"another"), ("whsec_AQID\n", b"\1\2\3")):
        file.write_text(text)
        utime(file, (1, len(text)))  # long enough ago that the file counts as written
        await secret.check_file()
        assert secret.key == key
        assert bool(secret.problems) == (not text)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda file: None, "is missing"),
        (mkfifo, "it is not a file"),
        (lambda file: file.mkdir(), "Is a directory|not a file"),
        (lambda file: file.write_text(" \n"), "contains no secret"),
        (lambda file: file.write_text("whsec_"), "contains no secret"),
        (lambda file: file.write_text("whsec_!!!"), "not in base64"),
        (lambda file: file.write_bytes(b"\xff\xfe"), "not UTF-8"),
        (lambda file: file.write_text("a" * 10**6), "larger than"),
    ],
)
def test_a_secret_that_is_none_ends_the_start(
    tmp_path: Path, make: Callable[[Path], object], said: str
) -> None:
    """The error names the file and the setting; a pipe does not block; no secret is empty."""
    file = tmp_path / "secret"
    make(file)
    with pytest.raises(ConfigProblems, match=f"^secret: COHORT_WEBHOOK_SECRET_FILE: .*({said})"):
        make_webhooks(Settings(webhooks=SecretStr("http://127.0.0.1:9"), webhook_secret_file=file))


def test_there_is_nobody_to_tell_without_addresses(tmp_path: Path) -> None:
    """Then no secret is read.

    With addresses, all receivers are notified, signed with the secret of the file.
    """
    file = tmp_path / "secret"
    assert make_webhooks(Settings()) == (None, None)
    assert make_webhooks(Settings(webhook_secret_file=file)) == (None, None)
    file.write_text(SECRET)
    settings = Settings(webhooks=SecretStr("http://a/1,http://b/2"), webhook_secret_file=file)
    webhooks, secret = make_webhooks(settings)
    assert webhooks is not None
    assert webhooks.waiting == {"a": 0, "b": 0}
    assert secret is not None
    assert secret.key == SECRET.encode()
