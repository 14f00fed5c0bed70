"""Permission to load and unload models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

import httpx
import pytest
from fastapi import FastAPI
from pydantic import SecretStr

from cohort import create_app
from cohort.settings import Settings

AppOf = Callable[[str | None], FastAPI]

ROUTES = [
    f"{prefix}/models/iris/{verb}"
    for prefix in ("/admin", "/v2/repository")
    for verb in ("load", "unload")
]


@pytest.fixture(scope="module")
def app_of(tmp_path_factory: pytest.TempPathFactory) -> AppOf:
    """Make an application without models for an operator's token, once: it takes 0.3 s."""

    @cache
    def make(token: str | None) -> FastAPI:
        folder = tmp_path_factory.mktemp("models")
        return create_app(
            settings=Settings(models=folder, admin_token=SecretStr(token) if token else None)
        )

    return make


async def post(app: FastAPI, route: str, headers: Mapping[str, str | bytes]) -> httpx.Response:
    """POST to `route` of a server."""
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://cohort") as client:
        return await client.post(route, headers=httpx.Headers(dict(headers)))  # type: ignore[arg-type]


@pytest.mark.parametrize("route", ROUTES)
async def test_without_a_token_of_its_own_the_server_lets_nobody(app_of: AppOf, route: str) -> None:
    """403 and what to set, whatever is sent."""
    tries: list[dict[str, str]] = [
        {},
        {"authorization": "Bearer "},
        {"authorization": "Bearer None"},
    ]
    for headers in tries:
        answer = await post(app_of(None), route, headers)
        assert (answer.status_code, answer.json()["code"]) == (403, "Forbidden")
        assert "COHORT_ADMIN_TOKEN" in answer.json()["error"]


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (None, 401),
        ("", 401),
        ("open-sesame", 401),
        ("Basic open-sesame", 401),
        ("Bearer", 401),
        ("Bearer open", 403),
        ("Bearer open-sesame2", 403),
        (b"Bearer \xa9", 403),
    ],
)
async def test_others_do_not_get_through(
    app_of: AppOf, route: str, sent: str | bytes | None, status: int
) -> None:
    """Missing is 401 with the way to authenticate, wrong is 403."""
    headers = {} if sent is None else {"authorization": sent}  # bytes: not ASCII
    answer = await post(app_of("open-sesame"), route, headers)
    assert answer.status_code == status
    assert set(answer.json()) == {"error", "code"}
    assert ("www-authenticate" in answer.headers) is (status == httpx.codes.UNAUTHORIZED)
    assert "open-sesame" not in answer.text


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("sent", ["Bearer open-sesame", "bearer  open-sesame "])
async def test_the_token_lets_through(app_of: AppOf, route: str, sent: str) -> None:
    """The answer is that there is no such model."""
    answer = await post(app_of("open-sesame"), route, {"authorization": sent})
    assert answer.json()["code"] in {"ModelNotFound", "NotReady"}
