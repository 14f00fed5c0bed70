"""The comparison of first hours: what counts as explained, and the tables made of it."""

from __future__ import annotations

from benchmarks.first_hour.__main__ import explanation
from benchmarks.first_hour.tables import tables


def outcome(server: str, status: str, said: str, *, explained: bool) -> dict[str, object]:
    return {
        "server": server,
        "what": "no rows",
        "status": status,
        "said": said,
        "explained": explained,
    }


def test_the_tables_count_by_server() -> None:
    """Tables have lines of code, seconds and outcomes by server; long answers are cut."""
    found = [
        outcome("ours", "400", "a | b", explained=True),
        outcome("theirs", "500", "x" * 500, explained=False),
    ]
    times = {"ours": [1.0, 2.0, 6.0], "theirs": [3.0, 4.0, 5.0]}
    text = tables({"ours": 0, "theirs": 9}, times, found, "onnxruntime 1")
    assert "| lines of code to write | 0 | 9 |" in text
    assert "| 2.0, 1.0 to 6.0 | 4.0, 3.0 to 5.0 |" in text
    assert "| 1.0 | 2.0 |" in text
    assert "| mistakes explained, of 1 | 1 | 0 |" in text
    assert "| refused as a failure of the server's (500) | 0 | 1 |" in text
    assert "| no rows | ✓ 400: `a \\| b` | 500: `xxx" in text
    assert "x" * 200 not in text


def test_a_log_explains_by_what_it_says_not_by_the_source_in_a_traceback() -> None:
    """The reason explains a JSON line; if no line has the words, the last error does."""
    source = '    self.session = onnxruntime.InferenceSession("model.onnx")'
    log = f'{source}\n{{"event": "refused", "reason": "no onnx"}}\n\x1b[31mValueError: bad\x1b[0m'
    assert explanation(log, ["no onnx"]) == "refused: no onnx"
    assert explanation(log, ["model.onnx"]) == "ValueError: bad"
    assert not explanation("", ["x"])
