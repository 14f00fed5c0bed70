"""Rollouts of a host of several workers: one judge, with the evidence of all."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import httpx

from tests.e2e.broken_digits import copy_digits, save_broken
from tests.e2e.load import encode
from tests.e2e.scrape import Scrape
from tests.e2e.test_rollouts import PATH, THIRD, TOKEN, bodies, write
from tests.waiting import until
from tests.workers.hosts import calling, connections_of, host, port_of, workers_of

STICKY = ", sticky: {header: x-user-id}"


def of_all() -> Iterator[bytes]:
    """Each request is of another caller: one counts once in a while."""
    return (encode(PATH, bodies()[0], {"x-user-id": str(number)}) for number in count())


def of(folder: Path, **settings: Any) -> dict[str, Any]:
    """Return the settings of a host with the rollouts of `folder`."""
    return {"rollouts": folder / "rollouts.yaml", "admin_token": "secret", **settings}


async def test_evidence_of_all_workers_is_added_up(tmp_path: Path) -> None:
    """Each request counts once, whichever worker had it; any of them shows all of it."""
    copy_digits(tmp_path / "models")
    half = "variants: {stable: {version: 1, weight: 1}, canary: {version: 2, weight: 1}}"
    write(tmp_path, half + STICKY + ", guard: {max_error_rate_increase: 1}")
    with host(tmp_path, 2, tmp_path / "models", **of(tmp_path)) as server:
        async with calling(server, of_all(), 8) as callers:
            port = port_of(server)
            for _ in range(10):
                assert {await one.ask() for one in callers} == {200}
            assert min(connections_of(pid, port) for pid in workers_of(server)) >= 2

            def counted() -> float:
                return Scrape(server.url).value("rollout_evidence_requests", limit="errors")

            await until(lambda: counted() == 80)
            seen = set()
            for _ in range(4):
                answer = httpx.get(f"{server.url}/admin/rollouts", headers=TOKEN).json()
                errors = answer["digits"]["variants"][1]["evidence"]["errors"]
                seen.add(errors["requests"])
            assert len(seen) == 1
            assert seen != {0}


async def test_a_bad_version_is_rolled_back_in_all_workers_at_once(tmp_path: Path) -> None:
    """One decision does it, which is counted, reported and recorded once.

    An operator's clear also holds in all.
    """
    copy_digits(tmp_path / "models")
    save_broken(tmp_path / "models", "raises")
    write(tmp_path, THIRD + STICKY + ", guard: {max_error_rate_increase: 0.01}")
    with host(tmp_path, 2, tmp_path / "models", **of(tmp_path)) as server:
        async with calling(server, of_all(), 8) as callers:
            decided = asyncio.Event()

            async def look() -> bool:
                return bool((await asyncio.to_thread(server.get, "/health")).json()["rolled_back"])

            asking = [asyncio.create_task(one.ask_until(decided)) for one in callers]
            await until(look)
            await until(lambda: server.logged.count('"event": "rolled back"') == 2)
            decided.set()
            await asyncio.gather(*asking)
        rolled_back = Scrape(server.url).value("rollout_rollbacks_total", model="digits")
        assert rolled_back == 1
        async with calling(server, of_all(), 8) as callers:
            for one in callers:
                assert {await one.ask() for _ in range(10)} == {200}
            clear = httpx.post(f"{server.url}/admin/rollouts/digits/clear", headers=TOKEN)
            assert clear.status_code == 200, clear.text
            assert not clear.json()["variants"][1]["rolled_back"]
            back = httpx.post(f"{server.url}/admin/rollouts/digits/rollback/canary", headers=TOKEN)
            assert back.status_code == 200, back.text
            for one in callers:
                assert {await one.ask() for _ in range(10)} == {200}
            assert server.logged.count('"decided_here": true') == 2
