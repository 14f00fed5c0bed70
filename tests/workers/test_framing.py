"""Messages between a worker and its parent."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cohort.workers.framing import Message, Unpacker, join_bodies, pack_message, split_bodies

heads = st.dictionaries(st.text(), st.integers() | st.text() | st.lists(st.booleans()))


@given(st.lists(st.tuples(heads, st.binary())), st.integers(1, 50))
def test_messages_arrive_as_they_were_sent(sent: list[Message], size: int) -> None:
    """The bytes may be cut anywhere on their way."""
    data = b"".join(pack_message(head, body) for head, body in sent)
    unpacker = Unpacker()
    read: list[Message] = []
    for start in range(0, len(data), size):
        read += unpacker.feed(data[start : start + size])
    assert read == sent


@given(st.lists(st.binary()))
def test_bodies_are_cut_as_they_were_joined(bodies: list[bytes]) -> None:
    """Joined bodies, empty ones included, are split into the same bodies."""
    assert split_bodies(*join_bodies(bodies)) == bodies
