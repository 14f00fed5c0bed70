"""The page's files and data, from outside."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from urllib.parse import quote

import httpx
import onnx
import pytest

from cohort.http.playground.routes import _unpacked
from tests import onnx_models
from tests.e2e.processes import MODELS, Cohort, cohort
from tests.waiting import PATIENCE, wait_until

BROWSER = {"accept": "text/html"}
KEY = "0123456789abcdef0123456789abcdef"


def test_the_page_is_the_servers_own(bundled: Cohort) -> None:
    """It uses only its own scripts, styles and connections, and cannot be framed."""
    page = httpx.get(f"{bundled.url}/playground").raise_for_status()
    policy = dict(
        one.strip().split(" ", 1) for one in page.headers["content-security-policy"].split(";")
    )
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert policy["script-src"].split()[0] == policy["connect-src"] == "'self'"
    assert "unsafe-inline" not in page.headers["content-security-policy"]
    assert page.headers["cross-origin-opener-policy"] == "same-origin"
    assert page.headers["cross-origin-embedder-policy"] == "require-corp"
    assert re.findall(r"<script[^>]*>(.*?)</script>", page.text, re.DOTALL) == [""]
    assert not re.search(r"\son\w+=|style=", page.text)


def test_its_files_are_kept_and_the_page_is_not(bundled: Cohort) -> None:
    """A file's address changes with its content; at another release's address it is not kept."""
    page = httpx.get(f"{bundled.url}/playground/models/digits").raise_for_status()
    assert page.headers["cache-control"] == "no-cache"
    (script,) = re.findall(r'src="([^"]+)"', page.text)
    file = httpx.get(page.url.join(script)).raise_for_status()
    assert "immutable" in file.headers["cache-control"]
    assert file.headers["content-type"] == "text/javascript; charset=utf-8"
    assert file.headers["content-encoding"] == "gzip"
    plain = httpx.get(file.url, headers={"accept-encoding": "identity"}).raise_for_status()
    assert "content-encoding" not in plain.headers
    assert plain.content == file.content
    other = httpx.get(f"{bundled.url}/playground/files/0123/main.js").raise_for_status()
    assert other.text == file.text
    assert other.headers["cache-control"] == "no-cache"


@pytest.mark.parametrize(
    "path",
    [
        "/playground/files/0/index.html",
        "/playground/files/0/..%2f__init__.py",
        "/playground/files/0/%2e%2e/settings.py",
        "/playground/files/0/nothing.js",
        "/playground/data/nothing/1",
        "/playground/data/digits/9",
        "/playground/nothing",
        "/playground/runtime/0.0.0/ort-wasm-simd-threaded.wasm",
        "/playground/runtime/0.0.0/package.json",
    ],
)
def test_nothing_else_lies_there(bundled: Cohort, path: str) -> None:
    """Other files and unknown versions are not found."""
    response = httpx.get(bundled.url + path)
    assert response.status_code == httpx.codes.NOT_FOUND
    assert response.json()["error"]


@pytest.mark.parametrize(
    "path",
    ["/playground", "/playground/", "/playground/live", "/playground/models/digits"],
)
def test_it_can_lie_below_any_path_of_a_proxy(bundled: Cohort, path: str) -> None:
    """All addresses in it are relative: a proxy may take a part of the path away."""
    page = httpx.get(bundled.url + path).raise_for_status()
    addresses = re.findall(r'(?:src|href)="([^"#]*)"', page.text)
    assert len(addresses) > 5
    for address in set(addresses) - {"data:,"}:
        assert address.startswith("."), address
        outside = httpx.URL(f"http://proxy/below/this{path}").join(address)
        assert outside.path.startswith("/below/this/"), address
        inside = outside.path.removeprefix("/below/this")
        assert httpx.get(bundled.url + inside).status_code == httpx.codes.OK


def test_it_can_be_left_out_whole(tmp_path: Path) -> None:
    """`/` leads to the API's documentation, as it did, and nothing of the page is there."""
    with cohort(MODELS, tmp_path, playground="off") as server:
        front = httpx.get(server.url, headers=BROWSER)
        assert front.headers["location"] == "./docs"
        for path in ("/playground", "/playground/models/digits", "/playground/files/0/main.js"):
            assert httpx.get(server.url + path).status_code == httpx.codes.NOT_FOUND


def test_where_keys_are_asked_for_the_page_is_open_and_what_it_shows_is_not(
    tmp_path: Path,
) -> None:
    """The page has nothing of a model in it; what it asks for needs the caller's key."""
    keys = tmp_path / "keys.yaml"
    digest = sha256(KEY.encode()).hexdigest()
    keys.write_text(f'- {{name: me, sha256: "{digest}", models: [iris]}}\n')
    with cohort(MODELS, tmp_path, api_keys=keys) as server:
        for path in ("/playground", "/playground/models/digits", "/playground/live"):
            page = httpx.get(server.url + path).raise_for_status().text
            assert "digits" not in page
        assert httpx.get(f"{server.url}/playground/data/iris/1").status_code == 401
        key = {"authorization": f"Bearer {KEY}"}
        seen = httpx.get(f"{server.url}/playground/data/iris/1", headers=key)
        assert list(seen.raise_for_status().json()["example"]) == ["features"]
        hidden = httpx.get(f"{server.url}/playground/data/digits/1", headers=key)
        assert hidden.status_code == httpx.codes.NOT_FOUND


def test_a_graph_is_sent_as_gzip_where_that_is_allowed(bundled: Cohort) -> None:
    """A client that forbids gzip gets the same document uncompressed."""
    url = f"{bundled.url}/playground/data/digits/2/graph"
    packed = httpx.get(url, headers={"accept-encoding": "br, gzip;q=0.5"}).raise_for_status()
    plain = httpx.get(url, headers={"accept-encoding": "gzip;q=0"}).raise_for_status()
    assert packed.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in plain.headers
    assert packed.json() == plain.json()


def test_a_file_that_a_visitor_has_is_not_sent_again(bundled: Cohort) -> None:
    """Its tag gets 304; another tag gets the file."""
    url = f"{bundled.url}/playground/data/digits/1/files/model.onnx"
    given = httpx.get(url).raise_for_status()
    again = httpx.get(url, headers={"if-none-match": given.headers["etag"]})
    assert (again.status_code, again.content) == (httpx.codes.NOT_MODIFIED, b"")
    assert again.headers["etag"] == given.headers["etag"]
    other = httpx.get(url, headers={"if-none-match": '"other"'})
    assert other.raise_for_status().content == given.content


def test_only_the_files_that_serve_are_given_and_drawn(tmp_path: Path) -> None:
    """Others that lie there are not, before anybody looks as after; a file may have any name."""
    models = tmp_path / "models"
    file = onnx_models.save_with_external_data(onnx_models.mlp(), models / "plain/1/model.onnx")
    odd, (weights,) = "sub dir#?é.bin", [one for one in file.parent.iterdir() if one != file]
    weights.rename(file.parent / odd)
    file.write_bytes(_with_location(file, odd))
    (models / "plain/config.yaml").write_text("playground: {download: true}\n")
    with cohort(models, tmp_path, watch_seconds=3600) as server:
        data = f"{server.url}/playground/data/plain/1"
        given = httpx.get(f"{data}/files/{quote(odd)}").raise_for_status()
        assert given.content == (file.parent / odd).read_bytes()
        before = httpx.get(f"{data}/graph").raise_for_status().json()
        assert before["graphs"]
        onnx_models.save(onnx_models.reciprocal(), file)
        for path in ("files/model.onnx", f"files/{quote(odd)}"):
            refused = httpx.get(f"{data}/{path}")
            assert refused.status_code == httpx.codes.NOT_FOUND
            assert "no longer on disk" in refused.json()["error"]
        assert httpx.get(f"{data}/graph").json() == before


def _with_location(file: Path, name: str) -> bytes:
    """Return the model with its weights in a file of this name."""
    model = onnx.load(file, load_external_data=False)
    for weight in model.graph.initializer:
        for entry in weight.external_data:
            if entry.key == "location":
                entry.value = name
    return model.SerializeToString()


def test_a_viewer_whose_key_has_gone_is_told_no_more(tmp_path: Path) -> None:
    """This holds for models: visibility is checked with every sample."""
    keys, other = tmp_path / "keys.yaml", "f" * 32
    both = [
        f'- {{name: key{place}, sha256: "{sha256(key.encode()).hexdigest()}"}}\n'
        for place, key in enumerate((KEY, other))
    ]
    keys.write_text("".join(both))
    with cohort(MODELS, tmp_path, api_keys=keys, watch_seconds=0.1) as server:
        headers = {"authorization": f"Bearer {KEY}"}

        def told(lines: Iterator[str]) -> list[str]:
            """Return the models of the next sample with a request."""
            row = {"inputs": {"features": [[5.1, 3.5, 1.4, 0.2]]}}
            url, sender = f"{server.url}/models/iris/predict", {"authorization": f"Bearer {other}"}
            httpx.post(url, json=row, headers=sender).raise_for_status()
            samples = json.loads(next(one for one in lines if one.startswith("data: [{"))[6:])
            return [one["model"] for sample in samples for one in sample["versions"]]

        url = f"{server.url}/playground/data/live"
        with httpx.stream("GET", url, headers=headers, timeout=PATIENCE) as response:
            lines = response.iter_lines()
            wait_until(lambda: told(lines))
            keys.write_text(both[1])
            known = f"{server.url}/models/iris"
            wait_until(lambda: httpx.get(known, headers=headers).status_code == 401)
            told(lines)  # it may hold a part from before
            assert [told(lines) for _ in range(2)] == [[], []]


@pytest.mark.parametrize("size", [0, 1, 1 << 16, 3_000_000])
def test_what_is_packed_is_unpacked_in_pieces(size: int) -> None:
    """This holds for any size, and no piece is large."""

    async def pieces() -> list[bytes]:
        return [piece async for piece in _unpacked(gzip.compress(b"x" * size))]

    found = asyncio.run(pieces())
    assert b"".join(found) == b"x" * size
    assert max(map(len, found)) <= 1 << 16
