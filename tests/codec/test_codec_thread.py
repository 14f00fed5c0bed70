"""The threads on which large bodies are read."""

from __future__ import annotations

from threading import Event

from cohort.codec.codec_thread import SLOW_WORK, decoding
from tests.waiting import PATIENCE


def test_nobody_waits_behind_slow_work() -> None:
    """What takes as long as JSON does has another thread."""
    began, go_on = Event(), Event()

    def wait() -> bool:
        began.set()
        return go_on.wait(PATIENCE)

    slow = decoding(SLOW_WORK + 1).submit(wait)
    assert began.wait(PATIENCE)
    try:
        assert decoding(SLOW_WORK).submit(lambda: 1).result(PATIENCE) == 1
        assert not slow.done()
    finally:
        go_on.set()
    assert slow.result(PATIENCE)
