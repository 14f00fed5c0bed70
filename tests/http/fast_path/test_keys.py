"""Callers' keys on the fast path and on FastAPI's: both answer the same, byte by byte."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from cohort.auth import digest_of
from tests.e2e.processes import MODELS, cohort
from tests.http.fast_path.test_protocol import Servers, ask_both, ordinary
from tests.http.wire import LAST, request

ROW = [[5.1, 3.5, 1.4, 0.2]]
KEYS = ("web", "all", "spent")


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """Two models, one of which `web` may not see, under both protocols."""
    folder = tmp_path_factory.mktemp("hot-keys")
    for model in ("iris", "digits"):
        shutil.copytree(MODELS / model, folder / "models" / model)
    more = {"web": ", models: [iris]", "all": "", "spent": ", rate: 0.001"}
    (folder / "keys.yaml").write_text(
        "".join(f"- {{name: {k}, sha256: {digest_of(k).hex()}{more[k]}}}\n" for k in KEYS)
    )
    options: dict[str, Any] = {"api_keys": str(folder / "keys.yaml"), "watch_seconds": "0"}
    options["max_body_mb"] = "1"
    models: Path = folder / "models"
    with cohort(models, folder, **options) as hot, ordinary(models, folder, options) as plain:
        yield Servers(hot, plain)


PATHS = (
    "/predict",
    "/models/iris/predict",
    "/models/digits/predict",
    "/models/nobody/predict",
    "/models/iris/versions/1/predict",
    "/v1/models/digits:predict",
    "/v2/models/iris/infer",
    "/v2/models/digits/infer",
    "/v2/models/digits/versions/7/infer",
)
BODIES: tuple[object, ...] = (
    {"input": ROW},
    {"model": "digits", "input": ROW},
    {"model": "iris", "input": ROW},
    {"instances": ROW},
    b"{",
)
HEADERS: tuple[tuple[str, ...], ...] = (
    (),
    ("x-api-key: web",),
    ("X-Api-Key: all",),
    ("authorization: Bearer web",),
    ("authorization: Bearer web", "x-api-key: all"),
    ("x-api-key: wrong",),
    ("x-api-key:",),
)


@pytest.mark.parametrize("path", PATHS)
def test_single_requests_are_answered_the_same(servers: Servers, path: str) -> None:
    """They are the same for every kind of body and key, and for the next request."""
    for body, headers in product(BODIES, HEADERS):
        hot, plain = ask_both(servers, request(path, body, *headers))
        assert hot == plain, (body, headers)


@pytest.mark.parametrize("length", [0, 60_000, 70_000, 2**20 + 1, 10**15])
def test_requests_refused_by_their_heads_are_answered_the_same(
    servers: Servers, length: int
) -> None:
    """They are answered before the body arrives; if it is long, the connection ends."""
    small = length <= 64 * 1024
    body = b"x" * length if small else b""
    sent = request("/models/iris/predict", body, f"content-length: {length}")
    hot, plain = ask_both(servers, sent, last=LAST if small else b"")
    assert hot == plain
    assert hot[0][0] == 401


def test_pipelined_requests_are_answered_the_same(servers: Servers) -> None:
    """Each has its key's answer, in order, in one segment and in many."""
    parts = [
        request(path, {"input": ROW}, *headers) for path, headers in product(PATHS[:4], HEADERS)
    ]
    for sent in (parts, [b"".join(parts)], [b"".join(parts[:5]), b"".join(parts[5:])]):
        hot, plain = ask_both(servers, *sent)
        assert hot == plain
        assert len(hot) == len(parts) + 1


def test_requests_over_a_quota_are_answered_the_same(servers: Servers) -> None:
    """The first passes; the others get the same wait, and the connection stays open."""
    sent = request("/models/iris/predict", {"input": ROW}, "x-api-key: spent")
    hot, plain = ask_both(servers, sent, sent, sent)
    statuses = [[answer[0] for answer in answers] for answers in (hot, plain)]
    assert statuses == [[200, 429, 429, 200]] * 2
    # The seconds until the next token differ by those between the two servers' first requests.
    assert [answer[2] for answer in hot] == [answer[2] for answer in plain]
    assert [sorted(answer[1]) for answer in hot] == [sorted(answer[1]) for answer in plain]  # type: ignore[call-overload]
