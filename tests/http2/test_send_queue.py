"""The send queue of a stream: parts leave in their order, in frames of any size."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cohort.http2.send_queue import SendQueue

parts = st.lists(st.integers(0, 10_000).map(lambda size: bytes([size % 251]) * size), max_size=6)


@given(st.lists(st.one_of(parts, st.integers(1, 20_000)), max_size=12))
def test_all_of_it_leaves_in_its_order(steps: list[list[bytes] | int]) -> None:
    """This holds for any order of additions and takes, of any number of bytes."""
    queue, added, taken = SendQueue(), b"", b""
    for step in steps:
        if isinstance(step, list):
            queue.add(step)
            added += b"".join(step)
        else:
            size = min(step, queue.size)
            got = b"".join(queue.take(size))
            assert len(got) == size
            taken += got
        assert queue.size == len(added) - len(taken)
    taken += b"".join(queue.take(queue.size))
    assert taken == added


def test_large_parts_are_not_copied() -> None:
    """A tensor is sent from where it is."""
    queue, tensor = SendQueue(), b"x" * 100_000
    queue.add([b"a", b"b", memoryview(tensor), b"c"])
    taken = queue.take(50_002) + queue.take(50_001)
    assert [len(part) for part in taken] == [2, 50_000, 50_000, 1]
    assert taken[1].obj is taken[2].obj is tensor


def test_what_is_cleared_is_not_sent() -> None:
    """Data that was cleared, because its caller disconnected, is not sent."""
    queue = SendQueue()
    queue.add([b"x" * 100_000, b"y"])
    queue.clear()
    assert queue.size == 0
    queue.add([b"z"])
    assert b"".join(queue.take(1)) == b"z"
