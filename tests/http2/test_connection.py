"""A connection of ours and one of the h2 library understand each other, however bytes arrive."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import h2.settings
import hpack
import hyperframe.frame
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cohort.http2.announced import CONNECTION_WINDOW, STREAMS_PER_CONNECTION
from cohort.http2.connection import PING_SECONDS, PING_TIMEOUT_SECONDS
from cohort.http2.frames import PREFACE, ConnectionFault, ErrorCode
from cohort.http2.streams import STREAM_WINDOW
from cohort.http2.useless_frames import (
    MAX_OF_ADDRESS,
    MAX_USELESS,
    OWN_SHARE,
    UselessOfAddresses,
)
from tests.examples import examples
from tests.http2.peers import HEADERS, Caller, Served, SmallEcho, message
from tests.waiting import iterations, until

cuts = st.lists(st.integers(1, 40), max_size=60)
sizes = st.one_of(st.integers(0, 30), st.sampled_from([16_379, 16_384, 70_000]))
calls = st.lists(st.lists(sizes, max_size=4), min_size=1, max_size=4)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def send_all(caller: Caller, rest: dict[int, bytes]) -> None:
    """Send of each stream what its window lets, and end it with its last byte."""
    for number, data in list(rest.items()):
        at = 0
        while size := min(caller.h2.local_flow_control_window(number), 16_384, len(data) - at):
            at += size
            caller.h2.send_data(number, data[at - size : at], end_stream=at == len(data))
        rest[number] = data[at:]
        if at == len(data):
            del rest[number]


@settings(deadline=None, max_examples=examples(60))
@given(
    calls,
    cuts,
    st.sampled_from([65_535, 1, 9, 20_000]),
    st.integers(0, 255),
    st.sampled_from([float("inf"), 1, 5000]),
)
def test_messages_arrive_whole_and_in_order(
    calls: list[list[int]], cuts: list[int], window: int, padding: int, full: float
) -> None:
    """This holds for any cuts and padding of frames, and any pace of the caller and the kernel."""

    async def exchange() -> None:
        served = Served(full)
        caller = Caller(served)
        caller.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window})
        await caller.exchange(cuts)
        expected, rest = {}, {}
        total = sum(sum(call) for call in calls)
        shrunk = [[size if total < 2000 or window > 9 else size % 31 for size in c] for c in calls]
        for lengths in shrunk:
            number = caller.h2.get_next_available_stream_id()
            data = b"".join(message(bytes([place]) * size) for place, size in enumerate(lengths))
            caller.h2.send_headers(number, HEADERS, end_stream=not data)
            expected[number] = data
            if data:
                small_data = len(data) + padding < 8000 and padding
                if small_data:
                    caller.h2.send_data(number, data, end_stream=True, pad_length=padding)
                else:
                    rest[number] = data
        moved = True
        while moved and len(caller.ended) < len(expected):
            send_all(caller, rest)
            moved = await caller.exchange(cuts)
        assert caller.ended == dict.fromkeys(expected, "0")
        assert {n: bytes(caller.answers.get(n, b"")) for n in expected} == expected
        assert not served.connection.streams
        assert served.open == served.memory.used == 0
        assert caller.goaway is None

    run(exchange())


@settings(deadline=None)
@given(st.data())
def test_whatever_arrives_ends_no_more_than_its_connection(data: st.DataObject) -> None:
    """Changed, cut, doubled and missing bytes raise no error and leave no state."""

    async def exchange() -> None:
        served = Served()
        caller = Caller(served)
        for number in (1, 3, 5):
            caller.h2.send_headers(number, HEADERS)
            caller.h2.send_data(number, message(b"x" * 30), end_stream=number == 3)
        caller.h2.reset_stream(5)
        caller.h2.ping(b"12345678")
        caller.h2.increment_flow_control_window(1000)
        caller.h2.increment_flow_control_window(1000, 1)
        caller.h2.end_stream(1)
        sent = bytearray(caller.h2.data_to_send())
        begin = len(PREFACE) if data.draw(st.booleans()) else 0
        for _ in range(data.draw(st.integers(1, 8))):
            at = data.draw(st.integers(begin, len(sent) - 1))
            kind = data.draw(st.integers(0, 3))
            if kind == 0:
                sent[at] = data.draw(st.integers(0, 255))
            elif kind == 1:
                sent[at] ^= 1 << data.draw(st.integers(0, 7))
            elif kind == 2:
                del sent[at : at + data.draw(st.integers(1, 12))]
            else:
                sent[at:at] = data.draw(st.binary(max_size=20))
            if len(sent) <= begin + 1:
                break
        await served.feed(bytes(sent), data.draw(cuts))
        if not served.wire.closed:
            served.connection.tick(asyncio.get_running_loop().time())
        served.lose()
        assert served.open == served.memory.used == served.connections == 0
        assert not served.connection.streams

    run(exchange())


def raw(*frames: hyperframe.frame.Frame) -> bytes:
    return b"".join([frame.serialize() for frame in frames])


SETTLED = PREFACE + raw(hyperframe.frame.SettingsFrame())


def headers_of(number: int, block: bytes = b"", flags: tuple[str, ...] = ()) -> Any:
    block = block or hpack.Encoder().encode(HEADERS)
    return hyperframe.frame.HeadersFrame(number, block, flags=["END_HEADERS", *flags])


FAULTS: dict[str, tuple[bytes, int]] = {
    "no settings first": (PREFACE + raw(hyperframe.frame.PingFrame(0, b"12345678")), 1),
    "data of no stream": (SETTLED + raw(hyperframe.frame.DataFrame(1, b"x")), 1),
    "an even stream": (SETTLED + raw(headers_of(2)), 1),
    "continuation of nothing": (SETTLED + b"\0\0\1\x09\x04\0\0\0\1x", 1),
    "another frame within a block": (
        SETTLED + b"\0\0\1\1\0\0\0\0\1\x88" + raw(hyperframe.frame.PingFrame(0, b"12345678")),
        1,
    ),
    "another stream's continuation": (
        SETTLED + b"\0\0\1\1\0\0\0\0\1\x88\0\0\1\x09\4\0\0\0\3\x88",
        1,
    ),
    "padding longer than its frame": (
        SETTLED + raw(headers_of(1)) + b"\0\0\2\0\x08\0\0\0\1\x05x",
        1,
    ),
    "a window of nothing": (SETTLED + b"\0\0\4\x08\0\0\0\0\0\0\0\0\0", 1),
    "a window of no stream": (SETTLED + b"\0\0\4\x08\0\0\0\0\x09\0\0\0\1", 1),
    "too wide a window": (SETTLED + b"\0\0\4\x08\0\0\0\0\0\x7f\xff\xff\xff", 3),
    "a short window": (SETTLED + b"\0\0\3\x08\0\0\0\0\0\0\0\1", 6),
    "a short ping": (SETTLED + b"\0\0\1\x06\0\0\0\0\0x", 6),
    "a ping of a stream": (SETTLED + b"\0\0\x08\x06\0\0\0\0\x0112345678", 1),
    "a reset of no stream": (SETTLED + b"\0\0\4\3\0\0\0\0\1\0\0\0\x08", 1),
    "odd settings": (SETTLED + b"\0\0\5\4\0\0\0\0\0\0\1\0\0\0", 6),
    "settings of a stream": (SETTLED + b"\0\0\0\4\0\0\0\0\1", 1),
    "an acknowledgement of more": (SETTLED + b"\0\0\6\4\1\0\0\0\0\0\1\0\0\0\0", 6),
    "a push": (SETTLED + b"\0\0\4\5\4\0\0\0\1\0\0\0\2", 1),
    "too large a frame": (SETTLED + b"\x04\0\1\0\0\0\0\0\1", 6),
    "too large a ping": (SETTLED + b"\0\x40\1\6\0\0\0\0\1", 6),
    "a priority of no stream": (SETTLED + b"\0\0\5\2\0\0\0\0\0\0\0\0\0\0", 1),
    "a stream that depends on itself": (SETTLED + b"\0\0\5\1\x24\0\0\0\1\0\0\0\1\0", 1),
    "an initial window too wide": (SETTLED + b"\0\0\6\4\0\0\0\0\0\0\4\x80\0\0\0", 3),
    "frames too small": (SETTLED + b"\0\0\6\4\0\0\0\0\0\0\5\0\0\1\0", 1),
    "a header block of too many parts": (
        SETTLED + b"\0\0\1\1\0\0\0\0\1\x88" + b"\0\0\1\x09\0\0\0\0\1\x88" * 2001,
        11,
    ),
    "a header block too long": (
        SETTLED
        + b"\0\x40\0\1\0\0\0\0\1"
        + bytes(16_384)
        + (b"\0\x40\0\x09\0\0\0\0\1" + bytes(16_384)) * 6,
        11,
    ),
    "frames too large": (SETTLED + b"\0\0\6\4\0\0\0\0\0\0\5\1\0\0\0", 1),
    "no push setting": (SETTLED + b"\0\0\6\4\0\0\0\0\0\0\2\0\0\0\2", 1),
}


@pytest.mark.parametrize("name", FAULTS)
async def test_faults_of_a_connection_end_it_with_their_code(name: str) -> None:
    """The codes are those of https://www.rfc-editor.org/rfc/rfc9113#section-5.4.1"""
    data, code = FAULTS[name]
    served = Served()
    await served.feed(data)
    await until(lambda: served.wire.closed)  # on a busy machine it is read in several turns
    at = bytes(served.wire.written).rindex(b"\x07\0\0\0\0\0")  # GOAWAY
    assert int.from_bytes(served.wire.written[at + 10 : at + 14]) == code


async def test_the_largest_frames_may_be_announced() -> None:
    """Frames of that size are sent: messages that fit one are not cut smaller."""
    served = Served()
    await served.feed(SETTLED + b"\0\0\6\4\0\0\0\0\0\0\5\0\xff\xff\xff")
    assert not served.wire.closed
    served.wire.take()
    data = message(bytes(50_000))
    whole = [
        hyperframe.frame.DataFrame(1, data[at : at + 16_384]) for at in range(0, 50_005, 16_384)
    ]
    await served.feed(raw(headers_of(1), *whole))
    assert b"\0\xc3\x55\0\0\0\0\0\1" in served.wire.take()  # DATA of 50,005 bytes


async def test_nothing_is_answered_behind_a_fault() -> None:
    """Calls are over, and what still comes is not read."""
    served = Served()
    await served.feed(SETTLED + raw(headers_of(1)))
    served.connection.fail(ErrorCode.NO_ERROR, "enough")
    written = len(served.wire.written)
    await served.feed(raw(headers_of(3), hyperframe.frame.PingFrame(0, b"12345678")))
    served.connection.fail(ErrorCode.NO_ERROR, "again")
    assert len(served.wire.written) == written
    assert [call.left for call in served.calls] == [True]


async def test_long_header_blocks_give_way_to_others() -> None:
    """A turn ends by time: a few kilobytes of Huffman codes take as long as hundreds of frames."""
    served = Served()
    block = hpack.Encoder().encode([*HEADERS, ("x", "y" * 12_000)], huffman=True)
    served.connection.data_received(
        SETTLED + raw(*[headers_of(number, block) for number in range(1, 61, 2)])
    )
    assert 1 <= len(served.calls) <= 16
    await iterations(100)
    assert len(served.calls) == 30


@pytest.mark.parametrize("window", [65_535, 300, 9, 0])
@pytest.mark.parametrize("shared", [65_535, 100])
@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("full", [float("inf"), 1])
async def test_small_calls_are_answered_as_far_as_windows_let_them(
    window: int, shared: int, early: bool, full: float
) -> None:
    """Each call gets its own answer, whole or in parts; a call that was not ended is reset."""
    served = Served(full, serve=SmallEcho)
    caller = Caller(served)
    caller.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window})
    await caller.exchange()
    numbers = [1, 3, 5, 7]
    for number in numbers:
        caller.h2.send_headers(number, HEADERS)
    await caller.exchange()
    for call in served.calls:
        assert isinstance(call, SmallEcho)
        call.early = early
    served.connection.out.window = shared
    for number in numbers:
        caller.h2.send_data(number, message(b"%d" % number * 200), end_stream=not early)
    await caller.exchange()
    came = {number: bytes(caller.answers.get(number, b"")) for number in numbers}
    assert sum(map(len, came.values())) <= min(4 * window, shared)
    for number in numbers:
        assert message(b"%d" % number * 200).startswith(came[number])
        assert len(came[number]) <= window
        if number not in caller.ended:
            caller.h2.increment_flow_control_window(1000, number)
    served.connection.out.widen(10_000)
    while await caller.exchange():
        pass
    assert caller.answers == {number: message(b"%d" % number * 200) for number in numbers}
    assert caller.ended == dict.fromkeys(numbers, "0")
    assert served.open == served.memory.used == 0


@pytest.mark.parametrize(
    "sent",
    [
        b"\0\0\0\0\2x",
        b"\0\1\0\0\1x",
        b"\0\0\0\0\0x",
        b"\1\0\0\0\1x",
        b"\0\0\0\0\1xy",
        b"\0\0",
        b"",
        message(bytes(1001)),
    ],
)
async def test_what_is_not_one_small_message_is_not_taken_for_one(sent: bytes) -> None:
    """It has too few or too many bytes, another length, is compressed, or is long."""
    served = Served(serve=SmallEcho)
    caller = Caller(served)
    caller.h2.send_headers(1, HEADERS)
    caller.h2.send_data(1, sent, end_stream=True)
    await caller.exchange()
    assert caller.ended == {1: "3"}


@pytest.mark.parametrize("size", [1, 5000, 70_000])
async def test_messages_take_turns_with_windows(size: int) -> None:
    """What was sent counts, however it is sent: no more goes out than the peer takes."""
    served, kept = Served(), 0
    caller = Caller(served)
    await caller.exchange()
    caller.h2.increment_flow_control_window(1 << 24)
    caller.h2.send_headers(1, HEADERS)
    while kept < 70_000:
        before = sum(map(len, caller.answers.values()))
        for at in range(0, size + 5, 16_384):
            caller.h2.send_data(1, message(bytes(size))[at : at + 16_384])
            await caller.exchange(taken=lambda _: 0)
        kept += size + 5
        assert sum(map(len, caller.answers.values())) == min(kept, 65_535) >= before
    assert served.calls[0].stream.waits == kept - 65_535


async def test_a_connection_may_go_on_for_ever() -> None:
    """Its window is given back as it is used, and no stream's is exceeded."""
    served = Served()
    caller = Caller(served)
    for number in range(1, 81, 2):
        caller.h2.send_headers(number, HEADERS)
        rest = {number: message(bytes(700_000))}
        while number not in caller.ended:
            send_all(caller, rest)
            assert await caller.exchange()
    assert set(caller.ended.values()) == {"0"}
    assert len(caller.ended) == 40


async def test_another_protocol_is_told_nothing() -> None:
    """Other protocols do not get an HTTP/2 answer."""
    served = Served()
    written = len(served.wire.written)
    await served.feed(b"GET / HTTP/1.1\r\n\r\n")
    assert served.wire.closed
    assert len(served.wire.written) == written


@pytest.mark.parametrize(
    ("headers", "ended"),
    [
        ([*HEADERS, ("connection", "close")], "reset 1"),
        ([*HEADERS, ("Upper", "1")], "reset 1"),
        ([*HEADERS[:-2], ("te", "gzip"), HEADERS[-1]], "reset 1"),
        ([HEADERS[-1], *HEADERS[:-1]], "reset 1"),
        (HEADERS[1:], "reset 1"),
        ([*HEADERS[:2], (":path", ""), *HEADERS[3:]], "reset 1"),
        ([HEADERS[0], *HEADERS], "reset 1"),
        ([HEADERS[0], *HEADERS[2:]], "reset 1"),
        ([("x-a", "1"), *HEADERS], "reset 1"),
        ([*HEADERS, ("x", "a\nb")], "reset 1"),
        ([*HEADERS, *[(f"x-{number}", "x" * 500) for number in range(31)]], "8"),
    ],
)
async def test_malformed_requests_end_their_stream(
    headers: list[tuple[str, str]], ended: str
) -> None:
    """The next stream is served. https://www.rfc-editor.org/rfc/rfc9113#section-8.1.1"""
    served = Served()
    caller = Caller(served)
    await caller.exchange()
    caller.h2.send_headers(1, HEADERS)  # which opens it, for the library
    caller.h2.data_to_send()
    await served.feed(raw(headers_of(1, hpack.Encoder().encode(headers))))
    caller.h2.send_headers(3, HEADERS)
    caller.h2.send_data(3, message(b"x"), end_stream=True)
    block = hpack.Encoder().encode(HEADERS)
    caller.h2.data_to_send()
    data = hyperframe.frame.DataFrame(3, message(b"x"), flags=["END_STREAM"])
    await served.feed(raw(headers_of(3, block), data))
    await caller.exchange()
    assert caller.ended == {1: ended, 3: "0"}


async def test_more_streams_than_there_may_be_are_refused() -> None:
    """They may be retried: REFUSED_STREAM means that they were not processed."""
    served = Served()
    caller = Caller(served)
    await caller.exchange()
    caller.h2.remote_settings[h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS] = 5000
    caller.h2.remote_settings.acknowledge()
    for number in range(STREAMS_PER_CONNECTION + 1):
        caller.h2.send_headers(2 * number + 1, HEADERS)
    await caller.exchange()
    await caller.exchange()
    assert caller.ended == {2 * STREAMS_PER_CONNECTION + 1: "reset 7"}


async def test_a_caller_that_sends_more_than_its_window_is_reset() -> None:
    """Too many bytes on a stream reset that stream and leave the connection open."""
    served = Served()
    await served.feed(SETTLED + raw(headers_of(1)))
    frame = hyperframe.frame.DataFrame(1, message(bytes(1 << 22))[:16_384]).serialize()
    rest = hyperframe.frame.DataFrame(1, bytes(16_384)).serialize()
    # The message is not whole, so that its window is given back, but never more than there is.
    await served.feed(frame + rest * (STREAM_WINDOW // 16_384 * 4))
    assert served.calls[0].stream.received > STREAM_WINDOW
    served = Served()
    await served.feed(SETTLED + raw(headers_of(1)))
    whole = hyperframe.frame.DataFrame(1, message(b"")).serialize()
    call = served.calls[0]
    call.arrived = lambda: None  # type: ignore[method-assign]  # it takes nothing
    await served.feed(whole + rest * (STREAM_WINDOW // 16_384 + 1))
    assert call.left
    assert served.memory.used == 0
    assert not served.wire.closed
    assert CONNECTION_WINDOW > STREAM_WINDOW


@pytest.mark.parametrize(
    ("frame", "cost"),
    [
        (b"\0\0\x08\x06\0\0\0\0\x0012345678", 1),
        (b"\0\0\0\4\0\0\0\0\0", 20),
        (b"\0\0\x05\2\0\0\0\0\1\0\0\0\0\0", 1),
        (b"\0\0\0\0\0\0\0\0\1", 1),
        (b"\0\0\0\xfe\0\0\0\0\0", 1),
        (b"\0\0\1\0\x08\0\0\0\1\0", 1),  # padding only
    ],
)
async def test_floods_of_frames_that_bring_nothing_end_the_connection(
    frame: bytes, cost: int
) -> None:
    """The limit counts frames in a second; the same number in each second is fine."""
    served = Served()
    now = asyncio.get_running_loop().time()
    await served.feed(SETTLED + raw(headers_of(1)))
    for _ in range(3):
        for _ in range(10):
            await served.feed(frame * ((MAX_USELESS // cost - 30) // 10))
            served.wire.take()
        assert not served.wire.closed
        served.connection.tick(now)
    for _ in range(12):
        await served.feed(frame * (MAX_USELESS // cost // 10))
        if served.wire.closed:
            break
    assert served.wire.closed
    assert b"too many useless frames" in served.wire.written


def test_an_address_has_so_many_frames_that_bring_nothing_of_all_its_connections() -> None:
    """Connections with few frames stay open at the address's limit; Unix sockets have no limit."""
    counts = UselessOfAddresses()
    for _ in range(MAX_OF_ADDRESS // 50):
        counts.count("1.2.3.4", 50, 50)
        counts.count("", 50, MAX_USELESS)
    counts.count("1.2.3.4", 1, OWN_SHARE)
    counts.count("5.6.7.8", 1, MAX_USELESS)
    with pytest.raises(ConnectionFault, match="from this address"):
        counts.count("1.2.3.4", 1, OWN_SHARE + 1)
    counts.tick()
    counts.count("1.2.3.4", 1, MAX_USELESS)


def reset_calls(number: int) -> bytes:
    """A call that is reset at once."""
    return raw(headers_of(number)) + rst(number)


def rst(number: int) -> bytes:
    return b"\0\0\4\3\0" + number.to_bytes(4, "big") + b"\0\0\0\x08"


@pytest.mark.parametrize(
    "make",
    [
        reset_calls,
        lambda number: rst(1),
        lambda number: b"\0\0\1\0\0\0\0\0\1x",
        lambda number: b"\0\0\1\0\x08\0\0\0\1\0",
        lambda number: b"\0\0\4\x08\0\0\0\0\0\0\0\0\1" * 2,
        lambda number: b"\0\0\4\x08\0\0\0\0\1\0\0\0\1" * 2,
    ],
    ids=["calls", "resets", "data", "padding", "windows", "windows of one"],
)
async def test_calls_that_are_reset_and_frames_of_what_is_over_are_counted(
    make: Callable[[int], bytes],
) -> None:
    """They count like pings: each costs more than the peer pays for it.

    Data ends the connection.
    """
    served = Served()
    await served.feed(SETTLED + reset_calls(1))
    flood = b"".join(make(number) for number in range(3, 3 + 2 * (MAX_USELESS + 500), 2))
    await served.feed(flood)
    await iterations(100)
    assert served.wire.closed
    reasons = (b"too many useless frames", b"frame on a closed stream")
    assert any(reason in served.wire.written for reason in reasons)
    assert not served.connection.streams


async def test_windows_that_are_widened_for_what_was_sent_are_not_counted() -> None:
    """A peer may do so for each frame that it reads, however small."""
    served = Served(serve=SmallEcho)
    caller = Caller(served)
    for _ in range(MAX_USELESS + 500):
        number = caller.h2.get_next_available_stream_id()
        caller.h2.send_headers(number, HEADERS)
        caller.h2.send_data(number, message(b"a"), end_stream=True)
        caller.h2.increment_flow_control_window(1)
        caller.h2.increment_flow_control_window(1, number)
        await caller.exchange()
    assert set(caller.ended.values()) == {"0"}
    assert caller.goaway is None


async def test_a_stream_of_small_answers_goes_on_from_its_first_second() -> None:
    """gRPC's own library widens both windows for each answer, at thousands a second."""
    served = Served()
    text = message(b"as small as the answer of a model is")
    data = hyperframe.frame.DataFrame(1, text)
    widened = [hyperframe.frame.WindowUpdateFrame(one, len(text)) for one in (0, 1)]
    await served.feed(SETTLED + raw(headers_of(1)))
    for _ in range(2 * MAX_USELESS // 10):
        await served.feed(raw(data, *widened) * 10)
    assert not served.wire.closed
    assert served.wire.written.count(text) == 2 * MAX_USELESS


@pytest.mark.parametrize("size", [16_384, 20_000, 64 * 1024])
@pytest.mark.parametrize("piece", [100, 16_384, 1 << 17])
@pytest.mark.parametrize("huffman", [False, True])
async def test_long_metadata_ends_its_call_alone(size: int, piece: int, huffman: bool) -> None:
    """Its call ends for frames of the largest announced size and of a hundred bytes."""
    served = Served()
    encoder = hpack.Encoder()
    fields = [*HEADERS, ("token", "x" * (size // 2)), ("other", "y" * (size // 2))]
    block = encoder.encode(fields, huffman=huffman)
    await served.feed(SETTLED + raw(headers_of(1)))
    served.wire.take()
    kind, flags = 1, 1
    for at in range(0, len(block), piece):
        part = block[at : at + piece]
        flags |= 4 * (at + piece >= len(block))
        head = bytes((*len(part).to_bytes(3, "big"), kind, flags, 0, 0, 0, 3))
        await served.feed(head + part)
        kind, flags = 9, 0
    assert b"grpc-status\x018" in served.wire.take()
    await served.feed(raw(headers_of(5)))
    assert [*served.connection.streams] == [1, 5]


async def test_a_peer_that_is_not_there_any_more_is_forgotten() -> None:
    """It is asked after a while, and has a while to answer."""
    served = Served()
    await served.feed(SETTLED + raw(headers_of(1)))
    served.wire.take()
    now = asyncio.get_running_loop().time()
    served.connection.tick(now + PING_SECONDS - 1)
    assert not served.wire.written
    served.connection.tick(now + PING_SECONDS + 1)
    assert served.wire.take()[3] == 6
    served.connection.tick(now + PING_SECONDS + PING_TIMEOUT_SECONDS)
    assert not served.wire.aborted
    await served.feed(b"\0\0\x08\x06\1\0\0\0\0are you?")
    served.connection.tick(now + PING_SECONDS + PING_TIMEOUT_SECONDS + 2)
    assert not served.wire.aborted
    served.connection.tick(now + PING_SECONDS + 2 * PING_TIMEOUT_SECONDS + 3)
    assert served.wire.aborted


async def test_who_never_speaks_and_who_is_idle_is_let_go() -> None:
    """A silent connection is aborted, and an idle one is closed with a reason."""
    now = asyncio.get_running_loop().time()
    silent = Served()
    silent.connection.tick(now + 10)
    assert not silent.wire.closed
    silent.connection.tick(now + 21)
    assert silent.wire.aborted
    idle = Served()
    await idle.feed(SETTLED)
    idle.wire.take()
    idle.connection.tick(now + 61)
    assert idle.wire.closed
    assert not idle.wire.aborted
    assert b"idle" in idle.wire.written


async def test_draining_takes_what_is_on_its_way_and_nothing_after() -> None:
    """It sends two GOAWAYs with a ping between them, and closes with its last call."""
    served = Served()
    caller = Caller(served)
    caller.h2.send_headers(1, HEADERS)
    await caller.exchange()
    served.connection.drain()
    caller.h2.send_headers(3, HEADERS)  # sent before GOAWAY was read
    caller.h2.send_data(3, message(b"late"), end_stream=True)
    await served.feed(caller.h2.data_to_send())
    came = served.wire.take()
    assert came.count(b"shutting down") == 1
    assert b"draining" in came
    assert 3 not in served.connection.streams
    await served.feed(b"\0\0\x08\x06\1\0\0\0\0draining")
    await served.feed(raw(headers_of(5)))
    assert [call.stream.number for call in served.calls] == [1, 3]
    states = [served.wire.closed]
    await served.feed(
        hyperframe.frame.DataFrame(1, message(b"x"), flags=["END_STREAM"]).serialize()
    )
    assert [*states, served.wire.closed] == [False, True]
    assert message(b"x") in bytes(served.wire.written)


async def test_a_call_that_has_its_answer_takes_no_more() -> None:
    """Its caller is asked to stop, and later bytes are not kept."""
    served = Served()
    await served.feed(SETTLED + raw(headers_of(1)))
    served.calls[0].stream.finish(3, "enough")
    assert served.connection.streams == {}
    await served.feed(hyperframe.frame.DataFrame(1, message(bytes(10_000))).serialize())
    assert served.memory.used == 0
    assert not served.wire.closed


async def test_a_connection_too_many_is_closed() -> None:
    """It is closed at once, and its place is freed."""
    served = Served(room=0)
    assert served.wire.aborted
    served.lose()
    assert served.connections == 0
