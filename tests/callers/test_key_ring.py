"""Callers by their keys, and what they keep when the file is read again."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
import structlog

from app.callers import ApiKey, Caller, KeyRing, KeyWatcher, digest_of, load_keys
from app.errors import Overloaded


def key(name: str, secret: str, **more: object) -> ApiKey:
    return ApiKey(name, digest_of(secret).hex(), **more)  # type: ignore[arg-type]


def found(ring: KeyRing, secret: str) -> Caller:
    identity = ring.find(secret)
    assert identity is not None
    assert identity.until is None
    return identity.caller


def refusal(caller: Caller) -> Overloaded:
    with pytest.raises(Overloaded) as caught:
        caller.enter()
    return caught.value


# --- Quotas


def test_requests_at_once_are_bounded() -> None:
    """Until one of them ends; what is refused is counted apart, and has not entered."""
    ring = KeyRing()
    ring.follow([key("web", "w", concurrency=2)])
    caller = found(ring, "w")
    assert caller.enter()
    assert caller.enter()
    assert str(refusal(caller)) == "key 'web' already has 2 requests in progress"
    caller.leave()
    assert caller.enter()
    assert (caller.requests, caller.in_flight) == (3, 2)
    assert caller.refused == {"rate": 0, "concurrency": 1}


def test_requests_per_second_are_bounded() -> None:
    """The refusal says when to try again."""
    ring = KeyRing()
    ring.follow([key("web", "w", rate=0.001)])
    caller = found(ring, "w")
    assert not caller.enter()  # there is no end to be told of
    refused = refusal(caller)
    assert str(refused) == "key 'web' is over its 0.001 requests per second"
    assert 900 < refused.retry_after <= 1000
    assert caller.refused == {"rate": 1, "concurrency": 0}


def test_requests_refused_for_their_number_at_once_take_no_token() -> None:
    """Otherwise whoever retries would use the rate up with nothing."""
    ring = KeyRing()
    ring.follow([key("web", "w", concurrency=1, rate=0.001)])
    caller = found(ring, "w")
    caller.enter()
    for _ in range(3):
        refusal(caller)
    assert caller.refused == {"rate": 0, "concurrency": 3}


# --- Reading the file again


def test_an_edit_keeps_counts_and_quotas() -> None:
    """A caller goes on by its name, with a new key too; requests in progress still end."""
    ring = KeyRing()
    ring.follow([key("web", "w", rate=0.001, concurrency=2)])
    caller = found(ring, "w")
    caller.enter()
    ring.follow([key("web", "new", rate=0.001, concurrency=5), key("other", "o")])
    assert ring.find("w") is None
    assert found(ring, "new") is caller
    assert (caller.in_flight, caller.concurrency) == (1, 5)
    assert "requests per second" in str(refusal(caller))
    ring.follow([key("web", "new", concurrency=5)])
    assert caller.enter()


def test_a_caller_that_the_file_leaves_out_is_nobody() -> None:
    """Whoever remembers decisions is told; the admin token stays."""
    ring, told = KeyRing("secret"), []
    ring.on_change(lambda: told.append("changed"))
    ring.follow([key("web", "w")])
    ring.follow([])
    assert ring.find("w") is None
    assert found(ring, "secret").name == "admin"
    assert told == ["changed", "changed"]


# --- Watching it


def write(path: Path, text: str) -> None:
    """Write a file that is not new, so that nobody waits for the rest of it."""
    path.write_text(text)
    stamp = write.stamp = getattr(write, "stamp", 1_000_000_000) + 1  # type: ignore[attr-defined]
    os.utime(path, (stamp, stamp))


def entry(name: str, secret: str) -> str:
    return f'- {{name: {name}, sha256: "{digest_of(secret).hex()}"}}\n'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys.yaml"


def watching(file: Path, ring: KeyRing, reserved: str = "") -> KeyWatcher[Sequence[ApiKey]]:
    load = partial(load_keys, reserved=reserved)
    return KeyWatcher(file, "API keys", load=load, follow=ring.follow)


def check(watcher: KeyWatcher[Sequence[ApiKey]]) -> list[str]:
    """Look at the file; the events that were logged."""
    with structlog.testing.capture_logs() as logged:
        asyncio.run(watcher.check_file())
    return [one["event"] for one in logged]


def test_a_changed_file_is_followed(file: Path) -> None:
    """Once; nothing is read or said while it stays the same."""
    ring = KeyRing()
    watcher = watching(file, ring)
    write(file, entry("web", "w"))
    assert check(watcher) == ["API keys read"]
    assert check(watcher) == []
    write(file, entry("web", "v"))
    assert check(watcher) == ["API keys read"]
    assert ring.find("w") is None
    assert ring.find("v")


@pytest.mark.parametrize("bad", ["- {name: web}", "", "{", None])
def test_a_bad_edit_keeps_the_last_good_one(file: Path, bad: str | None) -> None:
    """And says so, until the file is good again; None: it was removed."""
    ring = KeyRing()
    watcher = watching(file, ring)
    write(file, entry("web", "w"))
    check(watcher)
    if bad is None:
        file.unlink()
    else:
        write(file, bad)
    assert check(watcher) == ["API keys file invalid"]
    assert ring.find("w")
    assert watcher.problems
    assert not watcher.unready  # callers are told apart as before
    write(file, entry("web", "v"))
    check(watcher)
    assert not watcher.problems
    assert ring.find("v")


def test_without_a_first_good_file_nobody_is_ready(file: Path) -> None:
    """The process waits for one, and says why."""
    ring = KeyRing()
    watcher = watching(file, ring, reserved="admin")
    check(watcher)
    assert watcher.unready == "the file of API keys is invalid: keys.yaml: is missing"
    write(file, entry("admin", "a"))
    check(watcher)
    assert "COHORT_ADMIN_TOKEN" in watcher.unready
    write(file, entry("web", "w"))
    check(watcher)
    assert not watcher.unready
