"""`cohort bench`: a load test for any server of the Open Inference Protocol."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import rich_click as click

from cohort.cli.options import PROBLEMS, fail

if TYPE_CHECKING:
    from cohort.cli.bench_command.loops import LoadOutcome, Send

INTERRUPTED = 130
"""Exit code after Ctrl-C, as in shells."""


@click.command()
@click.argument("url", default="http://127.0.0.1:8000")
@click.option("--model", required=True, help="Model to send requests to.")
@click.option("--version", help="Model version; default: the server's choice.")
@click.option("--grpc", is_flag=True, help="URL is HOST:PORT of the server's gRPC port.")
@click.option(
    "--connections", "callers", default=8, show_default=True, type=click.IntRange(1, 10_000),
    help="Concurrent callers, each with its own connection.",
)  # fmt: skip
@click.option(
    "--rate", type=click.FloatRange(0.1, 1e6), metavar="PER_SECOND",
    help="Send requests at this rate without waiting for answers; default: wait.",
)  # fmt: skip
@click.option("--seconds", default=10.0, show_default=True, type=click.FloatRange(0.1, 86_400))
@click.option("--warm-up", default=1.0, show_default=True, type=click.FloatRange(0, 3600),
    help="Warm-up seconds, not counted.")  # fmt: skip
@click.option("--rows", default=1, show_default=True, type=click.IntRange(1, 1_000_000),
    help="Rows per request, if the model accepts any number.")  # fmt: skip
@click.option("--shape", "shapes", multiple=True, metavar="NAME=1,3,224,224",
    help="Shape of an input with variable dimensions; repeatable.")  # fmt: skip
@click.option(
    "--binary", is_flag=True, help="Send binary tensors instead of JSON (always on for gRPC)."
)
@click.option(
    "--chat", is_flag=True,
    help="Stream chats with a language model (OpenAI's API). The time between tokens is that "
    "between two reads, divided by the tokens of the second one.",
)  # fmt: skip
@click.option(
    "--prompt", default="Hello, how are you?", show_default=True, help="Message of a chat."
)
@click.option("--max-tokens", default=64, show_default=True, type=click.IntRange(1, 1_000_000),
    help="Tokens of a chat's answer.")  # fmt: skip
@click.option("--temperature", default=0.0, show_default=True, type=click.FloatRange(0, 100))
@click.option("--key", envvar="COHORT_API_KEY", help="API key; default: COHORT_API_KEY.")
@click.option("--seed", default=0, show_default=True, help="Random seed for values and times.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def bench(url: str, shapes: tuple[str, ...], *, as_json: bool, **asked: Any) -> None:
    """Benchmark a model on any Open Inference server at URL.

    \b
    cohort bench --model iris               8 callers, one request at a time each
    cohort bench --model iris --rate 500    500 requests/s at random times
    cohort bench 127.0.0.1:8001 --grpc --model iris
    cohort bench --chat --model smalltalk   tokens per second, and their times

    Ctrl-C stops early and reports the results so far.
    """
    from rich.console import Console

    from cohort.cli.bench_command.report import describe_outcome, draw_outcome
    from cohort.cli.bench_command.targets import TargetUnusable

    if asked["chat"] and (asked["grpc"] or asked["version"] or shapes):
        raise click.UsageError("--chat cannot be used with --grpc, --version or --shape")
    if not asked["grpc"] and not url.startswith(("http://", "https://")):
        url = f"http://{url}"
    console = Console(stderr=True)
    try:
        warm_up, seconds = asked["warm_up"], asked["seconds"]
        with console.status(f"Warming up for {warm_up:g} s, then measuring for {seconds:g} s"):
            outcome, rows, tokens = asyncio.run(_run(url, _shapes(shapes), asked))
    except TargetUnusable as error:
        fail(str(error))
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
    about = {
        "url": url,
        **{name: asked[name] for name in ("model", "version", "seconds")},
        "rows": rows,
        "connections": asked["callers"],
        "protocol": _protocol(asked),
        "loop": "open" if asked["rate"] else "closed",
        "rate": asked["rate"],
    }
    found = describe_outcome(about, outcome)
    if tokens is not None:
        found["tokens"] = tokens
    if as_json:
        click.echo(json.dumps(found, indent=2))
    else:
        Console().print(draw_outcome(found))
    if outcome.stopped:
        raise SystemExit(INTERRUPTED)
    if not outcome.latencies:
        raise SystemExit(PROBLEMS)


async def _run(
    url: str, shapes: dict[str, list[int]], asked: dict[str, Any]
) -> tuple[LoadOutcome, int, dict[str, Any] | None]:
    from time import perf_counter

    from cohort.cli.bench_command.chat_target import ChatOptions, chat_target
    from cohort.cli.bench_command.targets import grpc_target, http_target

    if asked["chat"]:
        options = ChatOptions(asked["prompt"], asked["max_tokens"], asked["temperature"])
        chats = chat_target(
            url, asked["model"], options, callers=asked["callers"], key=asked["key"]
        )
        async with chats as (send, streams):
            begins = perf_counter() + asked["warm_up"]
            outcome = await _load(send, asked)
            return outcome, 1, streams.describe(begins, outcome.seconds)
    common = {name: asked[name] for name in ("callers", "rows", "key", "seed")}
    where = url, asked["model"], asked["version"]
    target = (
        grpc_target(*where, shapes=shapes, **common)
        if asked["grpc"]
        else http_target(*where, shapes=shapes, binary=asked["binary"], **common)
    )
    async with target as (send, rows):
        return await _load(send, asked), rows, None


async def _load(send: Send, asked: dict[str, Any]) -> LoadOutcome:
    from cohort.cli.bench_command.loops import closed_loop, open_loop

    times = {name: asked[name] for name in ("callers", "seconds", "warm_up")}
    if asked["rate"]:
        return await open_loop(send, rate=asked["rate"], seed=asked["seed"], **times)
    return await closed_loop(send, **times)


def _protocol(asked: dict[str, Any]) -> str:
    if asked["chat"]:
        return "HTTP, streams of chats"
    if asked["grpc"]:
        return "gRPC"
    return "HTTP, binary" if asked["binary"] else "HTTP, JSON"


def _shapes(texts: tuple[str, ...]) -> dict[str, list[int]]:
    shapes = {}
    for text in texts:
        name, equals, sizes = text.partition("=")
        try:
            shapes[name] = [int(size) for size in sizes.split(",")] if sizes else []
        except ValueError:
            equals = ""
        if not (name and equals) or any(size < 0 for size in shapes.get(name, ())):
            raise click.UsageError(f"--shape must be NAME=SIZE,SIZE, got {text!r}")
    return shapes
