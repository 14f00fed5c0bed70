"""A wall clock that jumps by a day or years, forth and back, under load."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import httpx
import pytest

from tests.auth.issuing import AUDIENCE, ISSUER, claims, jwks, token
from tests.chaos.callers import Callers, callers, put, wait_for_no_problem
from tests.chaos.lengths import LONG
from tests.e2e.processes import Cohort, cohort
from tests.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has libfaketime")

ADMIN = {"authorization": "Bearer admin"}
KEY = {"authorization": "Bearer key"}

KEYS = f"""
- {{name: caller, sha256: {sha256(b"key").hexdigest()}}}
- {{name: anybody, subject: "*"}}
"""

ROLLOUT = "{{variants: {{old: {{version: 1, weight: 1}}, new: {{version: {new}, weight: 1}}}}}}"

NOT_NOW = {"+1d": 401, "-1d": 200, "+10y": 401, "-10y": 200}
"""The answer to a token that is good for ten minutes, by how far the clock jumps."""

JUMPS = NOT_NOW if LONG else ["+1d", "-10y"]


@dataclass
class Skewed:
    """A server whose wall clock is set by the file `clock`; its folder, callers, and a token."""

    server: Cohort
    folder: Path
    clock: Path
    heard: Callers
    token: str

    def asks(self) -> int:
        """The status of an answer to the token."""
        sent = {"authorization": f"Bearer {self.token}"}
        body = {"inputs": {"x": [[1, 2, 3]]}}
        url = f"{self.server.url}/models/times/versions/1/predict"
        return httpx.post(url, headers=sent, json=body, timeout=PATIENCE).status_code

    def new(self) -> dict[str, object]:
        """The description of the rollout's variant `new`."""
        url = f"{self.server.url}/models/times"
        rollout = httpx.get(url, headers=KEY, timeout=PATIENCE).raise_for_status().json()["rollout"]
        found: list[dict[str, object]] = rollout["variants"]
        return next(one for one in found if one["name"] == "new")

    def admin(self, action: str) -> None:
        """Roll back or clear the variant `new`."""
        url = f"{self.server.url}/admin/rollouts/times/{action}/new"
        answer = httpx.post(url, headers=ADMIN, timeout=PATIENCE)
        assert answer.raise_for_status().json()["saved"]


def on_clock(clock: Path) -> Sequence[str]:
    """Return a command for a server on a clock set by `clock`, which is read once a second."""
    (library,) = Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1")
    return [
        "env",
        f"LD_PRELOAD={library}",
        f"FAKETIME_TIMESTAMP_FILE={clock}",
        "FAKETIME_CACHE_DURATION=1",
        "FAKETIME_DONT_FAKE_MONOTONIC=1",
        "NO_FAKE_STAT=1",
    ]


@pytest.fixture(scope="module")
def skewed(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Iterator[Skewed]:
    folder = tmp_path_factory.mktemp("clock")
    for name, text in (("clock", "+0d"), ("keys.yaml", KEYS), ("jwks.json", jwks())):
        (folder / name).write_text(text)
    put(folder / "models", version=1)
    put(folder / "models", version=2)
    rollouts = folder / "models/rollouts.yaml"
    rollouts.write_text(f"times: {ROLLOUT.format(new=2)}\n")
    with (
        cohort(
            folder / "models",
            folder,
            under=on_clock(folder / "clock"),
            cache=cache,
            rollouts=rollouts,
            api_keys=folder / "keys.yaml",
            admin_token="admin",
            jwks=folder / "jwks.json",
            jwt_issuer=ISSUER,
            jwt_audience=AUDIENCE,
        ) as server,
        callers(server, headers=KEY) as heard,
    ):
        heard.more()
        yield Skewed(server, folder, folder / "clock", heard, token(claims(iat=None)))
        assert server.process.poll() is None
    assert set(heard.statuses) == {"200"}


@pytest.mark.parametrize("by", JUMPS)
def test_a_jump_ends_tokens_and_nothing_else(skewed: Skewed, by: str) -> None:
    """Callers are served, changed files are read as fast, and decisions stay."""
    server = skewed.server
    wait_until(lambda: skewed.asks() == 200)
    skewed.admin("rollback")
    skewed.clock.write_text(by)
    year = httpx.get(server.url + "/health/live").headers["date"]
    wait_until(lambda: httpx.get(server.url + "/health/live").headers["date"] != year)
    wait_until(lambda: skewed.asks() == NOT_NOW[by])
    skewed.heard.more()
    assert skewed.new()["rolled_back"]
    skewed.admin("clear")
    skewed.heard.more(of=2)

    put(skewed.folder / "models", version=3)
    rollouts = skewed.folder / "models/rollouts.yaml"
    rollouts.write_text(f"times: {ROLLOUT.format(new=3)}\n")
    skewed.heard.more(of=3)
    rollouts.write_text(f"times: {ROLLOUT.format(new=2)}\n")
    skewed.clock.write_text("+0d")
    skewed.heard.more(of=2)
    server.wait_for("/health/ready")
    wait_for_no_problem(server, KEY)
    # Deadlines by a clock that jumps pass at once or never: callers would get 504, or nothing.
    assert set(skewed.heard.statuses) == {"200"}
