"""Log records of structlog and of the standard library, in one form."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import Iterator
from datetime import datetime
from io import StringIO
from types import SimpleNamespace

import pytest
import structlog
from structlog.typing import EventDict

from cohort.observability.access_log import MAX_WAITING, AccessLog, Facts, json_lines
from cohort.process import logs
from cohort.process.logs import LogWriter
from tests.pipes import fill
from tests.waiting import PATIENCE, until


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Leave logging as it was."""
    root, uvicorn = logging.getLogger(), logging.getLogger("uvicorn")
    handlers, level, uvicorn_level = root.handlers, root.level, uvicorn.level
    config = structlog.get_config()
    yield
    structlog.configure(**config)
    root.handlers = handlers
    root.setLevel(level)
    uvicorn.setLevel(uvicorn_level)


def test_json_has_an_object_per_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Both kinds of loggers write to standard error with the same keys."""
    with logs.configured("json"):
        structlog.get_logger("tests.process").info("version ready", model="m", seconds=0.5)
        logging.getLogger("tests.process").warning("from %s", "elsewhere")
    captured = capsys.readouterr()
    assert captured.out == ""
    ours, theirs = [json.loads(line) for line in captured.err.splitlines()]
    assert (ours["event"], ours["model"], ours["seconds"]) == ("version ready", "m", 0.5)
    assert (theirs["event"], theirs["level"]) == ("from elsewhere", "warning")
    assert ours["level"] == "info"
    assert ours["logger"] == theirs["logger"] == "tests.process"
    assert ours["timestamp"].endswith("Z")
    assert theirs["timestamp"].endswith("Z")


def test_json_has_a_traceback_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """A record with an exception is still one object."""
    with logs.configured("json"):
        for log in (structlog.get_logger("tests.process"), logging.getLogger("tests.process")):
            try:
                raise ValueError("no such thing")
            except ValueError:
                log.exception("failed")
    ours, theirs = map(json.loads, capsys.readouterr().err.splitlines())
    assert "ValueError: no such thing" in ours["exception"]
    assert "ValueError: no such thing" in theirs["exception"]


def test_console_is_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    """Text without colours where standard error is not a terminal."""
    with logs.configured("console"):
        structlog.get_logger("tests.process").info("version ready", model="m")
    line = capsys.readouterr().err
    assert "version ready" in line
    assert "model=m" in line
    assert "\x1b" not in line


def test_debug_and_uvicorns_information_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    """uvicorn's own lines repeat what Cohort logs; its warnings are kept."""
    with logs.configured("json"):
        logging.getLogger("tests.process").debug("detail")
        logging.getLogger("uvicorn.error").info("Started server process")
        logging.getLogger("uvicorn.error").warning("limit reached")
    assert [json.loads(line)["event"] for line in capsys.readouterr().err.splitlines()] == [
        "limit reached"
    ]


def log_record(text: str) -> logging.LogRecord:
    return logging.makeLogRecord({"name": "tests", "levelname": "INFO", "msg": text})


def test_full_pipe_holds_nobody_up_and_the_gap_is_named_once_it_flows() -> None:
    """Lines past the limit are dropped and counted; those that waited are written in order."""
    reading, writing = os.pipe()
    fill(writing, b".")
    with os.fdopen(reading, "rb") as pipe, os.fdopen(writing, "w") as stream:
        writer = LogWriter(stream, json.dumps, limit=100)
        for number in range(1000):
            writer.handle(log_record(str(number)))
        assert writer.dropped >= 1000 - 100 - logs.LINES_AT_ONCE
        assert not writer.flush_within(0)
        lines = (json.loads(line.lstrip(b".")) for line in pipe)
        written: list[int] = []
        missing = 0
        while len(written) + missing < 1000:
            line = next(lines)
            if line["event"] == "log lines were dropped":
                missing += line["lines"]
            else:
                written.append(int(line["event"]))
        assert written == sorted(set(written))
        assert missing == writer.dropped


def test_value_that_cannot_be_shown_costs_its_own_line_only() -> None:
    """The line contains the reason; the next one is written."""
    stream = StringIO()

    def render(event: EventDict) -> str:
        if event["event"] == "bad":
            raise ValueError("no such form")
        return str(event["event"]) + str(event.get("reason", ""))

    writer = LogWriter(stream, render)
    for text in ("bad", "good"):
        writer.handle(log_record(text))
    assert writer.flush_within(PATIENCE)
    first, second = stream.getvalue().splitlines()
    assert "ValueError: no such form" in first
    assert second == "good"


def test_stream_that_nobody_will_read_counts_its_lines() -> None:
    """A broken pipe ends neither the writer nor the process."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as stream:
        writer = LogWriter(stream, json.dumps)
        writer.handle(log_record("lost"))
        assert writer.flush_within(PATIENCE)
        assert writer.dropped == 1


def test_lines_of_requests_are_bounded_and_what_finds_no_room_is_counted() -> None:
    """The event loop continues if the pipe is not read; the log later counts missing lines."""
    reading, writing = os.pipe()
    fill(writing, b".")
    with os.fdopen(reading, "rb") as pipe, os.fdopen(writing, "w") as stream:
        writer = LogWriter(stream, json.dumps, limit=100)
        access_log = logs.access_log(writer, "json")
        facts = Facts("POST", b"/predict", 200, "iris", "1")

        async def add(count: int) -> None:
            for _ in range(count):
                access_log.add((1.0, 0.5, 10, b"", facts, ""))
            access_log.flush()

        asyncio.run(add(1500))
        assert writer.dropped == 1400
        lines = (json.loads(line.lstrip(b".")) for line in pipe)
        seen = [next(lines)["event"] for _ in range(101)]
    assert seen.count("request") == 100


def test_a_line_of_a_request_says_what_is_known_and_no_more() -> None:
    """Keys without a value are left out; a path loses its query and its controls."""
    text = json_lines([(2.5, 2.0, 7, 'a"b', Facts("GET", "/x\n?key=1", 404), "")])
    line = json.loads(text)
    assert text.count("\n") == 1
    del line["timestamp"], line["event"], line["logger"], line["level"]
    expected = {"method": "GET", "path": "/x\\n", "status": 404}
    assert line == {"ms": 500.0, "bytes": 7, "request_id": 'a"b', **expected}


def test_each_line_has_its_own_time_and_facts() -> None:
    """What the line before had is used again only where it is the same."""
    found, missing = Facts("POST", "/predict", 200, "m", "1"), Facts("GET", "/x", 404)
    asked = [(at, at, 7, b"", facts, "") for at in (1.0, 1.0004, 61.5, 61.5)
             for facts in (found, missing, missing)]  # fmt: skip
    lines = [json.loads(line) for line in json_lines(asked).splitlines()]
    assert [line["status"] for line in lines] == [200, 404, 404] * 4
    times = [datetime.fromisoformat(line["timestamp"]).timestamp() for line in lines]
    since = [at - times[0] for at in times]
    assert since == pytest.approx([0.0] * 6 + [60.5] * 6, abs=0.0021)


def test_a_line_is_of_the_time_of_its_answer() -> None:
    """The timestamp is wall-clock time."""
    now = time.monotonic()
    for ago in (0.0, 5000.0):
        line = json.loads(json_lines([(now - ago, now - ago, 7, b"", Facts("GET", "/x", 404), "")]))
        said = datetime.fromisoformat(line["timestamp"]).timestamp()
        assert abs(time.time() - ago - said) < PATIENCE


@pytest.mark.parametrize("text", ['a"b', "a\\b", "plain", 'both\\"'])
def test_any_request_id_is_valid_json(text: str) -> None:
    """Log lines are valid JSON with any request id that a caller sends."""
    line = json.loads(json_lines([(1.0, 1.0, 7, text, Facts("GET", "/x", 404), "")]))
    assert line["request_id"] == text


def test_facts_are_those_of_what_answered() -> None:
    """If no version answered, there is no model."""
    lease = SimpleNamespace(model="m", version="2", variant="canary")
    assert Facts.of("POST", "/predict", 200, lease, "web") == Facts(
        "POST", "/predict", 200, "m", "2", "canary", "web"
    )
    assert Facts.of("POST", "/predict", 404, None, "") == Facts("POST", "/predict", 404)


async def test_lines_go_together_after_a_while_or_once_they_are_many() -> None:
    """The thread that writes them is woken once for all."""
    written: list[int] = []
    access_log = AccessLog(lambda lines: written.append(len(lines)))
    answered = (1.0, 0.5, 10, b"", Facts("POST", b"/predict", 200), "")
    for _ in range(MAX_WAITING):
        assert written == []
        access_log.add(answered)
    assert written == [MAX_WAITING]
    for _ in range(3):
        access_log.add(answered)
    assert written == [MAX_WAITING]
    await until(lambda: len(written) > 1)
    assert written == [MAX_WAITING, 3]
    AccessLog(lambda lines: written.append(len(lines))).add(answered)
    await until(lambda: written[2:] == [1])


def test_lines_of_requests_for_people_are_text(capsys: pytest.CaptureFixture[str]) -> None:
    """They have the form of all other lines."""

    async def add(access_log: AccessLog) -> None:
        access_log.add((2.5, 2.0, 7, b"", Facts("GET", "/x", 404), ""))
        access_log.flush()

    with logs.configured("console") as writer:
        asyncio.run(add(logs.access_log(writer, "console")))
    assert "status=404" in capsys.readouterr().err


def test_level_is_the_least_that_is_logged(capsys: pytest.CaptureFixture[str]) -> None:
    """This holds for our lines and those of libraries; admin requests are always logged."""
    with logs.configured("json", "error"):
        for name in ("tests.process", "cohort.admin"):
            structlog.get_logger(name).info("a line")
        logging.getLogger("tests.process").warning("from elsewhere")
        structlog.get_logger("tests.process").error("failed")
    events = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(one["logger"], one["event"]) for one in events] == [
        ("cohort.admin", "a line"),
        ("tests.process", "failed"),
    ]
