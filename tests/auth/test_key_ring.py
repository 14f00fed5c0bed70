"""Callers by their keys, and what they keep when the file is read again."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
import structlog

from cohort.auth import ApiKey, Caller, Issuer, KeyRing, KeyWatcher, digest_of, load_keys
from cohort.auth.jwks import parse_jwks
from cohort.errors import Forbidden, NotReady, Overloaded, Unauthorized
from tests.auth.issuing import AUDIENCE, ISSUER, claims, jwks, token


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
    """Another may enter once one ends; refusals are counted separately and do not enter."""
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
    """The refusal contains the time until a retry can succeed."""
    ring = KeyRing()
    ring.follow([key("web", "w", rate=0.001)])
    caller = found(ring, "w")
    assert not caller.enter()  # no end to report
    refused = refusal(caller)
    assert str(refused) == "key 'web' is over its 0.001 requests per second"
    assert 900 < refused.retry_after <= 1000
    assert caller.refused == {"rate": 1, "concurrency": 0}


def test_requests_refused_for_their_number_at_once_take_no_token() -> None:
    """Otherwise a client that retries would use up its rate with refused requests."""
    ring = KeyRing()
    ring.follow([key("web", "w", concurrency=1, rate=0.001)])
    caller = found(ring, "w")
    caller.enter()
    for _ in range(3):
        refusal(caller)
    assert caller.refused == {"rate": 0, "concurrency": 3}


# --- Reading the file again


def test_an_edit_keeps_counts_and_quotas() -> None:
    """A caller is found by its name, also with a new key; requests in progress still end."""
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
    """A change notifies those that remember decisions; the admin token stays valid."""
    ring, told = KeyRing("secret"), []
    ring.on_change(lambda: told.append("changed"))
    ring.follow([key("web", "w")])
    ring.follow([])
    assert ring.find("w") is None
    assert found(ring, "secret").name == "admin"
    assert told == ["changed", "changed"]


# --- Watching it


def write(path: Path, text: str) -> None:
    """Write a file with an old time, so that no watcher waits for its end."""
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
    """A change is read and logged once; an unchanged file is not read again."""
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
    """The watcher reports the problem until the file is good again. None removes the file."""
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
    assert not watcher.unready  # callers are identified as before
    write(file, entry("web", "v"))
    check(watcher)
    assert not watcher.problems
    assert ring.find("v")


def test_without_a_first_good_file_nobody_is_ready(file: Path) -> None:
    """The process waits for a good file and reports why."""
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


# --- Tokens


def ring_with_issuer(admin_token: str | None = None) -> KeyRing:
    """A ring that knows an issuer's keys."""
    ring = KeyRing(admin_token, issuer=Issuer(ISSUER, AUDIENCE))
    ring.trust(parse_jwks(jwks(), "jwks.json"))
    return ring


def test_a_token_is_its_subjects() -> None:
    """A token identifies its subject until it expires; keys that look like tokens remain keys."""
    ring = ring_with_issuer("admin.token.x")
    ring.follow([ApiKey("web", subject="alice"), key("dotted", "a.b.c")])
    until = int(time.time()) + 60
    identity = ring.find(token(claims(exp=until)))
    assert identity is not None
    assert (identity.caller.name, identity.until) == ("web", until)
    assert found(ring, "a.b.c").name == "dotted"
    assert found(ring, "admin.token.x").name == "admin"
    assert ring.find("no token") is None
    assert ring.find("a.b") is None
    assert ring.find("a.b.c.d") is None
    with pytest.raises(Unauthorized, match="the token's header"):
        ring.find("a.b.d")


def test_without_an_issuer_a_token_is_nobodys_key() -> None:
    """Subjects in the file do not matter then."""
    ring = KeyRing()
    ring.follow([ApiKey("web", subject="alice")])
    assert ring.find(token()) is None


def test_a_subject_of_its_own_comes_before_that_of_all() -> None:
    """`*` stands for other subjects; without it, they are Forbidden."""
    ring, bob = ring_with_issuer(), token(claims(sub="bob"))
    with pytest.raises(NotReady, match="API keys cannot be read yet"):
        ring.find(bob)
    ring.follow([ApiKey("web", subject="alice"), ApiKey("staff", subject="*")])
    names = [identity.caller.name for sent in (token(), bob) if (identity := ring.find(sent))]
    assert names == ["web", "staff"]
    ring.follow([ApiKey("web", subject="alice"), key("key", "k")])
    with pytest.raises(Forbidden, match="no entry"):
        ring.find(bob)


def test_new_keys_of_the_issuer_are_told_to_whoever_remembers() -> None:
    """A change is notified, and tokens of the former keys are refused."""
    ring, told = ring_with_issuer(), []
    ring.follow([ApiKey("web", subject="alice")])
    ring.on_change(lambda: told.append("changed"))
    assert ring.find(token())
    ring.trust({})
    assert told == ["changed"]
    with pytest.raises(Unauthorized, match="kid"):
        ring.find(token())


def test_an_entry_gives_its_priority() -> None:
    """An edit may change it."""
    ring = KeyRing()
    ring.follow([key("web", "w", priority=1)])
    assert found(ring, "w").priority == 1
    ring.follow([key("web", "w")])
    assert found(ring, "w").priority == 0
