"""Log records of structlog and of the standard library, in one form."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from app.main import logs


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
    """From both kinds of loggers, on standard error, with the same keys."""
    logs.configure("json")
    structlog.get_logger("tests.main").info("version ready", model="m", seconds=0.5)
    logging.getLogger("tests.main").warning("from %s", "elsewhere")
    captured = capsys.readouterr()
    assert captured.out == ""
    ours, theirs = [json.loads(line) for line in captured.err.splitlines()]
    assert (ours["event"], ours["model"], ours["seconds"]) == ("version ready", "m", 0.5)
    assert (theirs["event"], theirs["level"]) == ("from elsewhere", "warning")
    assert ours["level"] == "info"
    assert ours["logger"] == theirs["logger"] == "tests.main"
    assert ours["timestamp"].endswith("Z")
    assert theirs["timestamp"].endswith("Z")


def test_json_has_a_traceback_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """A record with an exception is still one object."""
    logs.configure("json")
    try:
        raise ValueError("no such thing")
    except ValueError:
        structlog.get_logger("tests.main").exception("failed")
    (line,) = capsys.readouterr().err.splitlines()
    assert "ValueError: no such thing" in json.loads(line)["exception"]


def test_console_is_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    """Text without colours where standard error is not a terminal."""
    logs.configure("console")
    structlog.get_logger("tests.main").info("version ready", model="m")
    line = capsys.readouterr().err
    assert "version ready" in line
    assert "model=m" in line
    assert "\x1b" not in line


def test_debug_and_uvicorns_information_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    """uvicorn's own lines repeat what Cohort logs; its warnings are kept."""
    logs.configure("json")
    logging.getLogger("tests.main").debug("detail")
    logging.getLogger("uvicorn.error").info("Started server process")
    logging.getLogger("uvicorn.error").warning("limit reached")
    assert [json.loads(line)["event"] for line in capsys.readouterr().err.splitlines()] == [
        "limit reached"
    ]
