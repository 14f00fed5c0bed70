"""Bodies in chunks of a few bytes are read in turns, and as they are all the same."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cohort.connections.turns import Turns
from cohort.http.fast_path.reading import PIECE_BYTES
from tests.examples import examples
from tests.http.fakes import FakeServer
from tests.http.wire import chunked, request
from tests.waiting import until


async def test_who_waits_takes_turns() -> None:
    """Each runs in turn, with room for others in between; an unfinished one waits again."""
    turns, loop = Turns(), asyncio.get_running_loop()
    said: list[str] = []
    done = asyncio.Event()

    class Waiting:
        def __init__(self, name: str, count: int) -> None:
            self.name, self.left = name, count
            turns.wait(self, loop)

        def take_turn(self) -> None:
            self.left -= 1
            said.append(self.name)
            if self.left:
                turns.wait(self, loop)
            elif len(said) == 6:
                done.set()

    for name, count in (("a", 3), ("b", 1), ("c", 2)):
        Waiting(name, count)
    assert said == []
    await done.wait()
    assert said == ["a", "b", "c", "a", "c", "a"]
    Waiting("d", 1)  # after a rest
    await until(lambda: said[-1] == "d")


async def test_a_turn_that_fails_is_nobody_elses() -> None:
    """The event loop's handler gets the error, and the next turn follows."""
    turns, loop = Turns(), asyncio.get_running_loop()
    heard: list[object] = []
    loop.set_exception_handler(lambda _, context: heard.append(context["exception"]))
    said: list[str] = []

    class Failing:
        def take_turn(self) -> None:
            raise ZeroDivisionError

    class Working:
        def take_turn(self) -> None:
            said.append("mine")

    for one in (Failing(), Working()):
        turns.wait(one, loop)
    await until(lambda: not turns.waiting)
    assert said == ["mine"]
    assert [type(one) for one in heard] == [ZeroDivisionError]


SIZES = st.lists(
    st.tuples(st.sampled_from([1, 2, 7, 60, 500, 20_000]), st.integers(1, 6000)),
    min_size=1, max_size=4,
)  # fmt: skip
"""Chunk sizes and counts; a few bytes less than 300 KB in all."""


@pytest.mark.parametrize("path", ["/hot", "/ordinary"])
@settings(max_examples=examples(40), deadline=None)
@given(sizes=SIZES, cut=st.integers(1, 300_000), behind=st.booleans())
def test_a_body_is_what_was_sent(
    path: str, sizes: Sequence[tuple[int, int]], cut: int, behind: bool
) -> None:
    """This holds for any chunk sizes and segments, and for a request after it."""
    asyncio.run(check_body(path, sizes, cut, behind=behind))


async def check_body(
    path: str, sizes: Sequence[tuple[int, int]], cut: int, *, behind: bool
) -> None:
    parts = [
        os.urandom(size) for size, count in sizes for _ in range(min(count, 75_000 // size or 1))
    ]
    sent = request(path, chunked(*parts), "transfer-encoding: chunked")
    if behind:
        sent += request("/ordinary", b"behind")
    server = FakeServer()
    for at in range(0, len(sent), cut):
        await until(server.transport.reads)  # as the event loop does
        server.send(sent[at : at + cut])
    answered = 1 + behind

    async def all_answered() -> bool:
        await server.answer_all()
        return len(server.transport.answers) == answered

    await until(all_answered)
    bodies = [answer.body for answer in server.transport.answers]
    assert bodies == [b"".join(parts), b"behind"][:answered]
    assert server.transport.reads()


async def test_only_many_small_parts_wait() -> None:
    """Bodies of known length, large chunks and successive requests do not wait."""
    row = request("/hot", b"1")
    for sent, waits in (
        (request("/hot", b"1" * 200_000), False),
        (request("/hot", chunked(*[b"1" * 1000] * 200), "transfer-encoding: chunked"), False),
        (request("/hot", chunked(*[b"1"] * 20_000), "transfer-encoding: chunked"), True),
        (request("/hot", chunked(*[b"1"] * 2000), "transfer-encoding: chunked"), False),
        (row * (3 * PIECE_BYTES // len(row)), False),
    ):
        server = FakeServer()
        server.send(sent)
        assert server.hot.turns.waiting == waits


async def test_a_connection_that_is_lost_takes_no_turn() -> None:
    """Requests of a lost connection get no turn and no response."""
    server = FakeServer()
    server.send(request("/hot", chunked(*[b"1"] * 20_000), "transfer-encoding: chunked"))
    server.lose()
    await until(lambda: not server.hot.turns.waiting)
    assert not server.plane.waiting
