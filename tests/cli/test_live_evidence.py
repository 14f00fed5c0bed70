"""`cohort rollout --url` with servers that are odd, slow or hostile."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from socket import create_server, socket
from threading import Event, Thread
from typing import Any

import pytest

from cohort.cli.rollout_commands.live_evidence import (
    MAX_DESCRIBED_BYTES,
    EvidenceUnavailable,
    fetch_evidence,
)
from tests.waiting import PATIENCE

OK = b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n"
CANARY: dict[str, Any] = {
    "name": "canary",
    "version": "2",
    "share": 0.01,
    "ready": True,
    "rolled_back": False,
    "reason": "",
    "detail": "",
    "evidence": {},
}
ROLLOUT: dict[str, Any] = {"variants": [CANARY], "shadow": None, "guard": {"min_requests": 200}}


@contextmanager
def serving(answer: Callable[[socket], object]) -> Iterator[str]:
    """The address of a server that reads the head of one request and then calls `answer`."""

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            head = b""
            while b"\r\n\r\n" not in head:
                head += connection.recv(65536)
            with suppress(OSError):  # where the command has read enough
                answer(connection)

    with create_server(("127.0.0.1", 0)) as listener:
        thread = Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread.join(PATIENCE)


def body_of(**rollout: object) -> bytes:
    """An answer with a rollout in which these are otherwise."""
    return OK + json.dumps({"rollout": ROLLOUT | rollout}).encode()


def test_what_a_server_describes_is_read() -> None:
    """Versions become numbers."""
    with serving(lambda caller: caller.sendall(body_of())) as url:
        assert fetch_evidence(url, "digits")["variants"][0]["version"] == 2


def test_why_batching_is_lost_is_read_without_what_moves_a_cursor() -> None:
    """Names of operators are escaped, and an earlier server without the field is read."""
    canary = CANARY | {"batching_lost": "a\x1b[31mb"}
    with serving(lambda caller: caller.sendall(body_of(variants=[CANARY, canary]))) as url:
        earlier, later = fetch_evidence(url, "digits")["variants"]
    assert earlier["batching_lost"] == ""
    assert later["batching_lost"] == "a\\x1b[31mb"


@pytest.mark.parametrize(
    "answer",
    [
        b"\x1b[31mSSH-2.0\x07\r\n\r\n",
        OK + b"<html>",
        OK + b"\xff\xfe",
        OK + b"[]",
        OK + b"[" * 1_000_000,
        OK + b"1" * 5000,
        OK + b'{"rollout":' + b" " * MAX_DESCRIBED_BYTES + b"{}}",
        body_of(variants="x"),
        body_of(variants=[{}]),
        body_of(guard=None),
        body_of(shadow=[1]),
        body_of(ramp={"state": "soaking", "step": 0, "steps": [1], "soaked_seconds": 0}),
        body_of(variants=[CANARY | {"name": "\x1b]0;x\x07"}]),
        body_of(variants=[CANARY | {"evidence": {"errors": {"rate": 0.1}}}]),
    ],
    ids=lambda answer: repr(answer[-20:]),
)
def test_what_is_no_answer_of_cohort_is_told_in_a_sentence(answer: bytes) -> None:
    """No part of the answer reaches the terminal."""
    with (
        serving(lambda caller: caller.sendall(answer)) as url,
        pytest.raises(EvidenceUnavailable) as refused,
    ):
        fetch_evidence(url, "digits")
    assert str(refused.value) == f"{url} does not respond as a Cohort server"


def test_a_redirect_is_not_followed() -> None:
    """A redirect is not followed, and its body is not read."""
    answer = b"HTTP/1.1 301 x\r\nlocation: http://127.0.0.1:9/\r\n\r\n"
    with (
        serving(lambda caller: caller.sendall(answer)) as url,
        pytest.raises(EvidenceUnavailable, match=r"responded 301 .* set --url to the address"),
    ):
        fetch_evidence(url, "digits")


@pytest.mark.parametrize("begun", [b"HTTP/1.1 200 OK\r\nx: ", OK])
def test_an_answer_that_drips_is_given_up(begun: bytes) -> None:
    """Each byte of the head or body comes in time, but the last one never comes."""
    over = Event()

    def drip(caller: socket) -> None:
        caller.sendall(begun)
        while not over.wait(0.05):
            caller.sendall(b"1")

    with serving(drip) as url:
        with pytest.raises(EvidenceUnavailable, match=r"incomplete response after 0\.5 s"):
            fetch_evidence(url, "digits", seconds=0.5)
        over.set()


def test_spaces_around_a_key_are_no_part_of_it() -> None:
    """A file or a paste may add them."""
    with serving(lambda caller: caller.sendall(body_of())) as url:
        assert fetch_evidence(url, "digits", " a-key\n")


@pytest.mark.parametrize("key", ["se\ncret", "se\x00cret", "sécret"])
def test_a_key_that_no_header_takes_is_not_shown(key: str) -> None:
    """The error names the variable that holds the key."""
    with pytest.raises(EvidenceUnavailable, match="COHORT_API_KEY") as refused:
        fetch_evidence("http://127.0.0.1:9", "digits", key)
    assert "cret" not in str(refused.value)
