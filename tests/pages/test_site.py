"""The documentation site: what `make site` refuses, and that what it built needs no network."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path
from threading import Thread

import pytest

from tests.pages.blocks import ROOT

SITE = ROOT / "build" / "site"
LOADS = frozenset(
    {"audio", "embed", "iframe", "img", "link", "object", "script", "source", "video"}
)

# Requests that Chromium makes for any page: the time, the signed-in user, updates.
ITS_OWN = re.compile(
    r"\w+ (?:https?://)?"
    r"(?:clients\d|accounts|update|optimizationguide-pa|content-autofill)\.google(?:apis)?\.com[:/]"
)
OUTSIDE = re.compile(r"(https?:)?//", re.IGNORECASE)


class Loaded(HTMLParser):
    """The resources that a page loads from elsewhere: its links for readers do not count."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if tag in LOADS and name in {"src", "href", "data", "srcset"} and value:
                self.found += [value] if OUTSIDE.match(value) else []


def loaded_from_elsewhere(page: str) -> list[str]:
    parser = Loaded()
    parser.feed(page)
    return parser.found + re.findall(r"(?:@import|url\()\s*['\"]?((?:https?:)?//[^'\")]+)", page)


def test_no_page_and_no_style_names_what_is_elsewhere() -> None:
    """Fonts, scripts, styles and pictures are the site's own, on every page."""
    files = [file for file in SITE.rglob("*") if file.suffix in {".html", ".css"}]
    assert len(files) > 50
    named = {file.name: loaded_from_elsewhere(file.read_text(encoding="utf-8")) for file in files}
    assert not {name: found for name, found in named.items() if found}
    assert loaded_from_elsewhere('<script src="https://cdn.example/x.js"></script>')
    assert loaded_from_elsewhere('<style>@import "//fonts.example/x.css"</style>')


@contextmanager
def recording_proxy() -> Iterator[tuple[int, list[str]]]:
    """Yield a proxy that refuses everything, and notes what it was asked for."""
    asked: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def listen() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    asked.append(connection.recv(4096).decode("latin-1").partition("\r\n")[0])

        Thread(target=listen, daemon=True).start()
        try:
            yield listener.getsockname()[1], asked
        finally:
            listener.shutdown(socket.SHUT_RDWR)


def read_in_a_browser(address: str, folder: Path) -> tuple[str, list[str]]:
    """Open a page in headless Chromium; give what it became, and what was asked of the network."""
    browser = shutil.which("chromium")
    assert browser, "needs chromium: apt-get install chromium"
    with recording_proxy() as (port, asked):
        done = subprocess.run(
            [
                *(browser, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"),
                *("--disable-background-networking", "--disable-component-update"),
                *("--disable-sync", "--disable-extensions", "--disable-default-apps"),
                f"--proxy-server=127.0.0.1:{port}",
                "--proxy-bypass-list=<-loopback>",
                f"--user-data-dir={folder}",
                "--virtual-time-budget=5000",
                "--dump-dom",
                address,
            ],
            capture_output=True,
            text=True,
            check=True,
            timeout=600,
        )
    return done.stdout, [line for line in asked if not ITS_OWN.match(line)]


@pytest.mark.parametrize(
    ("page", "shows"),
    [
        ("index.html", "Start here"),
        ("docs/guide/pipelines.html", '<div class="diagram"><svg'),
        ("docs/operations/monitoring.html", "_images/cohort-service.png"),
        ("search.html?q=canary", "from nothing to a canary"),
    ],
)
def test_a_browser_asks_the_network_for_nothing(page: str, shows: str, tmp_path: Path) -> None:
    """The first page, a diagram, pictures and the search come from the disk."""
    became, asked = read_in_a_browser(f"file://{SITE}/{page}", tmp_path)
    assert shows in became
    assert not asked


def test_a_page_that_asks_the_network_is_seen(tmp_path: Path) -> None:
    """The proxy records a script from elsewhere."""
    page = tmp_path / "page.html"
    page.write_text('<script src="http://cdn.example/x.js"></script>')
    _, asked = read_in_a_browser(f"file://{page}", tmp_path / "profile")
    assert asked == ["GET http://cdn.example/x.js HTTP/1.1"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("# Page\n\n[gone](gone.md)\n", "gone.md"),
        ("# Page\n\n[gone](../README.md#no-such-part)\n", "no-such-part"),
        ("# Page\n\n[gone](#no-such-part)\n", "no-such-part"),
        ("# Page\n\n[gone](../tests/no-such-folder)\n", "no-such-folder"),
        ("# Page\n\n![gone](gone.png)\n", "gone.png"),
        ("# Page\n\n```mermaid\nflowchart LR\n  a -->\n```\n", "ermaid"),
        ("# Page\n\n### Two levels down\n", "H1 to H3"),
    ],
)
def test_a_page_that_is_wrong_fails_the_site(text: str, said: str, tmp_path: Path) -> None:
    """A link to no page, part of one or folder, no picture, a diagram that cannot be drawn."""
    (tmp_path / "docs").mkdir()
    shutil.copy(ROOT / "docs" / "conf.py", tmp_path / "docs")
    (tmp_path / "README.md").write_text("# Readme\n")
    (tmp_path / "docs" / "index.md").write_text(text)
    done = subprocess.run(
        [
            *(ROOT / ".venv-docs/bin/python", "-m", "sphinx", "--quiet", "--fail-on-warning"),
            *("-c", "docs", "-b", "html", ".", "site"),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode != 0
    assert re.search(f"index.md.*{said}|{said}.*index.md", done.stderr), done.stderr
