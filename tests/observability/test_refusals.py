"""Refused and failed requests, on every API."""

from __future__ import annotations

import re

import pytest
import structlog
from structlog.testing import capture_logs

from cohort.errors import CohortError, DeadlineExceeded, InferenceFailed, InvalidInput, LoadFailed
from cohort.observability.refusals import LineLimit, known_error, log_refusal
from cohort.observability.request_ids import new_request_id, readable

LOG = structlog.get_logger("test")


@pytest.fixture(autouse=True)
def full_allowance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the lines of the tests before, which may have used up those of this second."""
    monkeypatch.setattr("cohort.observability.refusals._lines", LineLimit())


@pytest.mark.parametrize("error", [InvalidInput("no"), DeadlineExceeded(0.1)])
def test_a_refusal_is_logged_at_info(error: CohortError) -> None:
    """The line has no traceback: the server did what it should."""
    with capture_logs() as lines:
        log_refusal(LOG, error, "a1", path="/predict")
    (line,) = lines
    assert (line["event"], line["log_level"]) == ("refused", "info")
    assert (line["code"], line["path"], line["request_id"]) == (error.code, "/predict", "a1")
    assert "exc_info" not in line


@pytest.mark.parametrize("error", [InferenceFailed("no"), LoadFailed("no"), CohortError("no")])
def test_a_failure_is_logged_at_error(error: CohortError) -> None:
    """The line has a traceback, since an operator has to investigate."""
    with capture_logs() as lines:
        log_refusal(LOG, error, "a1", method="ModelInfer")
    (line,) = lines
    assert (line["event"], line["log_level"]) == ("failed", "error")
    assert line["exc_info"] is error


def test_of_many_lines_of_a_kind_some_are_left_out_and_counted() -> None:
    """Each second has a limit of lines; the next line contains the number of those left out."""
    lines = LineLimit(per_second=2)
    assert [lines.take("Overloaded", 10.0 + part) for part in (0.0, 0.1, 0.2, 0.9)] == [
        *(0, 0),
        *(None, None),
    ]
    assert lines.take("NotFound", 10.9) == 0
    assert [lines.take("Overloaded", 11.0), lines.take("Overloaded", 11.1)] == [2, 0]
    assert lines.take("Overloaded", 11.2) is None


def test_a_line_says_how_many_were_left_out_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flood of refusals costs no flood of lines."""
    monkeypatch.setattr("cohort.observability.refusals._lines", LineLimit(per_second=1))
    clock = iter([5.0, 5.1, 5.2, 6.0])
    monkeypatch.setattr("cohort.observability.refusals.monotonic", lambda: next(clock))
    with capture_logs() as lines:
        for _ in range(4):
            log_refusal(LOG, InvalidInput("no"), "a1", path="/predict")
    assert [line.get("left_out") for line in lines] == [None, "2"]


def test_what_was_sent_stays_out_of_the_log() -> None:
    """The sentence for the log is the redacted one."""
    with capture_logs() as lines:
        log_refusal(LOG, InvalidInput("input 'x' must be FP32, got 'secret'"), "a1")
    assert "secret" not in str(lines)


def test_a_bug_is_told_without_its_words() -> None:
    """The caller learns that the server failed; the log gets the bug itself."""
    bug = ZeroDivisionError("secret")
    error = known_error(bug)
    assert isinstance(error, InferenceFailed)
    assert "secret" not in str(error)
    assert error.__cause__ is bug
    assert known_error(error) is error


@pytest.mark.parametrize("value", [None, b"", b"two words", b"x" * 129, b"\xe4", b"a\n"])
def test_what_cannot_be_passed_on_is_no_id(value: bytes | None) -> None:
    """It goes into headers and log lines as it is."""
    assert readable(value) == b""


def test_ids_differ() -> None:
    """Ids differ, and can be passed on themselves."""
    first, second = new_request_id(), new_request_id()
    assert first != second
    assert re.fullmatch(rb"[0-9a-f]{8}-[0-9a-f]+", first)
    assert readable(first) == first
