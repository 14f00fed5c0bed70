"""`cohort top`: live view of a server in a terminal."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING

import rich_click as click

from cohort.cli.options import OK, fail

if TYPE_CHECKING:
    from cohort.cli.top_command.scraped import Scrape

MAX_SCRAPES = 120
SCRAPE_SECONDS = 10.0
MAX_BYTES = 256 * 2**20


@click.command()
@click.argument("url", default="http://127.0.0.1:8000")
@click.option(
    "--every", default=1.0, show_default=True, type=click.FloatRange(0.2, 3600), metavar="SECONDS",
    help="Seconds between updates.",
)  # fmt: skip
@click.option("--once", is_flag=True, help="Print once and exit.")
@click.option(
    "--key", envvar="COHORT_METRICS_KEY",
    help="Key for /metrics, if the server requires one; default: COHORT_METRICS_KEY.",
)  # fmt: skip
def top(url: str, every: float, *, once: bool, key: str | None) -> None:
    """Show live requests, latencies, batches, queues and variants of the server at URL.

    Reads /metrics. Shows all workers of one host together, or one replica. Ctrl-C quits.
    """
    from rich.console import Console
    from rich.live import Live

    from cohort.cli.top_command.screen import screen

    if not url.startswith(("http://", "https://")):
        url = f"http://{url}"
    console = Console()
    history: deque[Scrape] = deque(maxlen=MAX_SCRAPES)
    history.append(_scrape_or_fail(url, key))
    try:
        if once or not console.is_terminal:
            while True:
                time.sleep(every)
                history.append(_scrape_or_fail(url, key))
                console.print(screen(url, list(history), ""))
                if once:
                    return
        with Live(
            screen(url, list(history), ""), console=console, auto_refresh=False, screen=True
        ) as live:
            while True:
                time.sleep(every)
                problem = ""
                try:
                    history.append(_scrape(url, key))
                except _Unavailable as error:
                    problem = str(error)
                live.update(screen(url, list(history), problem), refresh=True)
    except KeyboardInterrupt:
        raise SystemExit(OK) from None


class _Unavailable(Exception):
    """Reason why metrics cannot be read."""


def _scrape_or_fail(url: str, key: str | None) -> Scrape:
    try:
        return _scrape(url, key)
    except _Unavailable as error:
        fail(str(error))


def _scrape(url: str, key: str | None) -> Scrape:
    import httpx

    from cohort.cli.top_command.scraped import NotCohort, read_scrape

    headers = {"authorization": f"Bearer {key.strip()}"} if key else {}
    parts, size, began = [], 0, time.monotonic()
    try:
        address = f"{url.rstrip('/')}/metrics"
        with httpx.stream("GET", address, headers=headers, timeout=SCRAPE_SECONDS) as response:
            if response.status_code == httpx.codes.UNAUTHORIZED:
                raise _Unavailable(f"{url} requires a key for /metrics: set COHORT_METRICS_KEY")
            if response.status_code != httpx.codes.OK:
                raise _Unavailable(f"{url} responded {response.status_code} for /metrics")
            for part in response.iter_bytes():
                parts.append(part)
                size += len(part)
                if size > MAX_BYTES or time.monotonic() - began > SCRAPE_SECONDS:
                    raise _Unavailable(f"{url} sends /metrics too slowly, or too much")
        return read_scrape(b"".join(parts).decode("utf-8", "replace"), time.monotonic())
    except NotCohort as error:
        raise _Unavailable(f"{url} does not respond as a Cohort server: {error}") from None
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
        raise _Unavailable(f"{url} cannot be reached: {error}") from None
