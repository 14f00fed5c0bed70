"""Callers who continue through any fault and check each answer they get.

The models here multiply by `factor_of` their version, so each answer can be checked and shows the
version that gave it.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from threading import Event, Thread

import httpx

from tests import onnx_models
from tests.e2e.processes import Cohort
from tests.waiting import PATIENCE, POLL, wait_until

PAUSE = 0.005
"""Seconds between two requests of a caller: most faults need callers, not load."""


def factor_of(version: int) -> int:
    """Return the factor of a version."""
    return 10 + version


def put(models: Path, name: str = "times", version: int = 1, *, config: str = "") -> Path:
    """Add a version as a publisher does: written elsewhere, then renamed. Returns its folder."""
    folder = models / name / str(version)
    folder.parent.mkdir(parents=True, exist_ok=True)
    if config:
        (folder.parent / "config.yaml").write_text(config)
    writing = folder.with_name(f".{version}.writing")
    onnx_models.save(onnx_models.times(factor_of(version)), writing / "model.onnx")
    shutil.rmtree(folder, ignore_errors=True)
    return writing.rename(folder)


class Callers:
    """The answers of all callers together.

    factor_of: Returns the factor of a version.

    statuses: Counts of answers by status, and of lost requests by error.

    versions: Counts of right answers by version.

    wrong: Answers with 200 that were not right.

    A request without an answer within PATIENCE is lost to TimeoutError.
    """

    def __init__(self, factor_of: Callable[[int], int] = factor_of) -> None:
        self._factor_of = factor_of
        self.statuses: Counter[str] = Counter()
        self.versions: Counter[int] = Counter()
        self.wrong: list[str] = []

    @property
    def served(self) -> int:
        """Number of right answers."""
        return self.statuses["200"]

    def more(self, count: int = 50, *, of: int | None = None) -> None:
        """Wait for `count` more right answers; `of` one version, if one is given."""
        enough = self._count(of) + count
        wait_until(lambda: self._count(of) >= enough)

    def _count(self, version: int | None) -> int:
        return self.served if version is None else self.versions[version]

    def heard(self, x: list[float], status: int, text: bytes) -> None:
        """Check an answer to the request for the row `x`."""
        self.statuses[str(status)] += 1
        document = json.loads(text)
        if status == 200:
            version = int(document["version"])
            self.versions[version] += 1
            if document["outputs"]["y"] != [[value * self._factor_of(version) for value in x]]:
                self.wrong.append(f"{x}: {document}")
        elif not (document.get("error") and document.get("code")):
            self.wrong.append(f"{status}: {document}")


@contextmanager
def callers(
    server: Cohort,
    model: str = "times",
    *,
    count: int = 2,
    factor_of: Callable[[int], int] = factor_of,
    row: Sequence[float] = (0, 1),
    headers: Mapping[str, str] | None = None,
    **fields: object,
) -> Iterator[Callers]:
    """Run `count` callers of `model` in the background; at the end no answer was wrong.

    Each sends a number and `row` after it; `fields` are added to each request.
    """
    heard, over = Callers(factor_of), Event()
    path = f"/models/{model}/predict"
    address = httpx.URL(server.url)

    def ask() -> None:
        connection = HTTPConnection(address.host, address.port, timeout=PATIENCE)
        number = 0
        while not over.is_set():
            number = number % 1000 + 1
            x = [number, *row]
            document = {"inputs": {"x": [x]}, **fields}
            try:
                connection.request("POST", path, json.dumps(document), headers or {})
                response = connection.getresponse()
                heard.heard(x, response.status, response.read())
            except (OSError, HTTPException) as lost:
                heard.statuses[type(lost).__name__] += 1
                connection.close()
                over.wait(POLL)
            over.wait(PAUSE)
        connection.close()

    threads = [Thread(target=ask) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield heard
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert not heard.wrong


def wait_for_no_problem(server: Cohort, headers: Mapping[str, str] | None = None) -> None:
    """Wait until /health names no problem: a disk may be slow for a moment."""
    wait_until(lambda: httpx.get(server.url + "/health", headers=headers).json()["problems"] == [])


def problem(server: Cohort, words: str) -> Callable[[], bool]:
    """Return a check that /health names a problem with these words."""
    return lambda: any(words in one for one in httpx.get(server.url + "/health").json()["problems"])
