"""`cohort bench --chat`: tokens a second, and the times of tokens."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from itertools import groupby
from pathlib import Path
from time import perf_counter

import httpx
import pytest

from cohort.cli.bench_command.chat_target import ChatOptions, Streams, chat_target, read_answer
from cohort.cli.bench_command.loops import closed_loop
from cohort.cli.bench_command.targets import TargetUnusable
from cohort.cli.options import MISUSED
from cohort.errors import InferenceFailed
from tests.aviary import listening, open_aviary
from tests.cli.test_cli import run
from tests.waiting import iterations, until

CHAT = ChatOptions("one two three four", 3, 0.0)


def test_figures_are_those_of_the_period() -> None:
    """Parts before its beginning and after its end do not count; an answer's tokens are spread."""
    streams = Streams()
    streams.add(9.0, [9.5, 10.5, 11.0], {"prompt_tokens": 7, "completion_tokens": 6})
    streams.add(10.0, [10.25, 12.5], {"prompt_tokens": 8, "completion_tokens": 2})
    found = streams.describe(10.0, 2.0)
    assert found["tokens_per_second"] == 2.5
    assert found["prompt_tokens_per_second"] == 4.0
    assert found["first_token_ms"]["p99"] == 250.0
    assert found["between_tokens_ms"]["p50"] == 250.0
    assert found["between_tokens_ms"]["p99"] == 500.0
    assert found["between_tokens_ms"]["mean"] == 375.0


def test_parts_of_one_read_share_its_time() -> None:
    """Two parts that arrive together each took half the time since the read before."""
    streams = Streams()
    streams.add(9.0, [10.0, 10.5, 10.5, 11.0, 11.0], {"completion_tokens": 5})
    found = streams.describe(9.0, 3.0)["between_tokens_ms"]
    assert set(found.values()) == {250.0}


class TwoReads(httpx.AsyncByteStream):
    """A stream whose events arrive in two reads."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for finish in (None, "stop"):
            for _ in range(3):
                choice = {"delta": {"content": "one"}, "finish_reason": finish}
                yield f"data: {json.dumps({'choices': [choice]})}\n\n".encode()
            await iterations(1)


async def test_events_of_one_read_have_one_time() -> None:
    """Each has its own HTTP chunk, but the client reads all that have arrived."""
    parts, _, problem = await read_answer(httpx.Response(200, stream=TwoReads()))
    assert not problem
    assert [len(list(same)) for _, same in groupby(parts)] == [3, 3]


async def test_chats_are_streamed_and_counted(tmp_path: Path) -> None:
    """Each answer has as many tokens as the server counts; the callers' streams are complete."""
    async with (
        open_aviary(tmp_path) as aviary,
        listening(aviary),
        chat_target(aviary.url, "m", CHAT, callers=2, key=None) as (send, streams),
    ):
        begins = perf_counter()
        outcome = await closed_loop(send, callers=2, seconds=0.3, warm_up=0)
        found = streams.describe(begins - 60, 120)
        answers = len(aviary.parrot.said)
    assert not outcome.failures
    assert len(streams.first) == answers
    assert sum(count for _, count in streams.tokens) == 3 * answers
    assert found["first_token_ms"]["p50"] > 0


async def test_a_cut_stream_is_a_failure_with_its_cause(tmp_path: Path) -> None:
    """Its tokens do not count."""
    async with (
        open_aviary(tmp_path) as aviary,
        listening(aviary),
        chat_target(aviary.url, "m", CHAT, callers=1, key=None) as (send, streams),
    ):
        aviary.parrot.pauses_after = 1
        sending = asyncio.ensure_future(send(0))
        await until(lambda: len(aviary.parrot.said) == 2)
        aviary.parrot.said[1].fail(InferenceFailed("the device is lost"))
        assert "the device is lost" in await sending
        assert len(streams.first) == 1


async def test_a_model_that_does_not_chat_is_named(tmp_path: Path) -> None:
    """The server's sentence is the reason."""
    async with open_aviary(tmp_path) as aviary, listening(aviary):
        with pytest.raises(TargetUnusable, match=r"a chat with other: 404 .*other"):
            async with chat_target(aviary.url, "other", CHAT, callers=1, key=None):
                """It is not opened."""


def test_options_of_tensors_do_not_fit() -> None:
    """A chat has no version, shapes or gRPC."""
    done = run("bench", "--chat", "--grpc", "--model", "m")
    assert done.exit_code == MISUSED
    assert "--chat cannot be used with" in done.output
