"""Measure chats next to one caller's long prompts: `python -m benchmarks.generative.fairness`.

Four chats are measured alone, and then while another caller has 100 prompts of 1,000 tokens. All
are streams of `cohort serve`, and each of the two callers has a key.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from random import Random
from time import perf_counter
from urllib.parse import urlsplit

import numpy as np

from benchmarks.generative.shapes import SHAPES, draw_prompts
from benchmarks.machine import describe
from benchmarks.servers import BUILD, ROOT
from models.decoder import write_decoder
from tests.e2e.processes import cohort

REPORT = ROOT / "benchmarks" / "results" / "generative-fairness.md"
SHAPE = replace(SHAPES["56 M"], context=1536)
CHATS, CHAT_PROMPT, CHAT_TOKENS = 4, 32, 96
LONG_PROMPTS, LONG_PROMPT, LONG_TOKENS = 100, 1000, 16
CONFIG = "session: {intra_op_threads: 2}\n"


@dataclass
class Measured:
    """Measurements of the chats in one phase, in seconds.

    first: Times to the first token.
    between: Times between tokens.
    prompts: Tokens of the long prompts that had their first token, a second.
    """

    first: list[float] = field(default_factory=list)
    between: list[float] = field(default_factory=list)
    prompts: float = 0.0

    def percentiles(self) -> list[float]:
        """Return p50 and p99 of both times, in milliseconds."""
        pairs = [np.percentile(one or [0.0], (50, 99)) for one in (self.first, self.between)]
        return [float(value) * 1000 for pair in pairs for value in pair]


async def stream(
    where: tuple[str, int], key: str, prompt: list[int], tokens: int
) -> tuple[float, list[float]]:
    """Return the time of a request, and those of the events of its answer."""
    body = json.dumps({
        "model": "bench", "prompt": prompt, "max_tokens": tokens, "temperature": 0,
        "stream": True, "ignore_eos": True,
    }).encode()  # fmt: skip
    reader, writer = await asyncio.open_connection(*where)
    head = (
        f"POST /v1/completions HTTP/1.1\r\nhost: {where[0]}\r\nauthorization: Bearer {key}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    asked, times = perf_counter(), []
    try:
        writer.write(head.encode() + body)
        last = b""
        while b"[DONE]" not in last:
            line = await reader.readline()
            if line.startswith(b"data: {"):
                times.append(perf_counter())
            elif not line or line.startswith((b"HTTP/1.1 4", b"HTTP/1.1 5")):
                raise RuntimeError(f"{line!r}{await reader.read(500)!r}")
            last = line
    finally:
        writer.close()
    return asked, times


async def chat(where: tuple[str, int], found: Measured, draws: Random) -> None:
    """Chat until cancelled."""
    while True:
        prompt = draw_prompts(draws, 1, CHAT_PROMPT, SHAPE.vocabulary)[0]
        asked, times = await stream(where, "chats", prompt, CHAT_TOKENS)
        found.first.append(times[0] - asked)
        found.between += np.diff(times).tolist()


async def measure(where: tuple[str, int], seconds: float, draws: Random) -> tuple[Measured, ...]:
    """Measure the chats alone, and next to the long prompts."""

    async def beside(other: Callable[[Measured], Awaitable[None]]) -> Measured:
        found = Measured()
        chats = [asyncio.create_task(chat(where, found, draws)) for _ in range(CHATS)]
        await asyncio.sleep(1)
        found.first.clear()
        found.between.clear()
        await other(found)
        for one in chats:
            one.cancel()
        failed = await asyncio.gather(*chats, return_exceptions=True)
        for error in failed:
            if isinstance(error, Exception):
                raise error
        return found

    async def long_prompts(found: Measured) -> None:
        done = 0

        async def ask(prompt: list[int]) -> None:
            nonlocal done
            await stream(where, "long", prompt, LONG_TOKENS)
            done += 1

        since = perf_counter()
        prompts = draw_prompts(draws, LONG_PROMPTS, LONG_PROMPT, SHAPE.vocabulary)
        tasks = [asyncio.create_task(ask(prompt)) for prompt in prompts]
        await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
        found.prompts = done * LONG_PROMPT / (perf_counter() - since)
        for one in tasks:
            one.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, RuntimeError):
                raise result

    alone = await beside(lambda _: asyncio.sleep(seconds / 2))
    return alone, await beside(long_prompts)


def main() -> None:
    """Measure, print the table, and write it if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=30, help="the time for long prompts")
    parser.add_argument("--write", action="store_true")
    chosen = parser.parse_args()
    version = BUILD / "generative" / "56m-fp32-long" / "1"
    if not (version / "tokenizer_config.json").exists():
        write_decoder(version, SHAPE)
    draws = Random(7)
    facts = describe()
    lines = [
        f"Measured on {datetime.now(UTC).date()}: {facts['machine']}, Python {facts['python']}.",
        f"Cohort {facts['cohort']}; 56 M parameters, FP32, 2 threads.",
        "",
        "| round | chats | TTFT p50 ms | p99 | TBT p50 ms | p99 | long prompts, tokens/s |",
        "|---|---|---|---|---|---|---|",
    ]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        models = folder / "models" / "bench"
        models.mkdir(parents=True)
        (models / "1").symlink_to(version.absolute())
        (models / "config.yaml").write_text(CONFIG)
        keys = folder / "keys.yaml"
        named = [{"name": k, "sha256": sha256(k.encode()).hexdigest()} for k in ("chats", "long")]
        keys.write_text(json.dumps(named))
        with cohort(
            models.parent,
            folder,
            program=[sys.executable, "-m", "cohort"],
            api_keys=keys,
            timeout_ms=600_000,
        ) as server:
            place = urlsplit(server.url)
            where = str(place.hostname), int(place.port or 0)
            for number in range(1, chosen.rounds + 1):
                phases = asyncio.run(measure(where, chosen.seconds, draws))
                for title, one in zip(("alone", "next to long prompts"), phases, strict=True):
                    times = " | ".join(f"{value:,.1f}" for value in one.percentiles())
                    lines.append(f"| {number} | {title} | {times} | {one.prompts:,.0f} |")
                    print(lines[-1], flush=True)
    if chosen.write:
        REPORT.write_text("\n".join([HEAD, *lines, ""]), encoding="utf-8")
        print(f"wrote {REPORT}")


HEAD = """\
# Chats next to one caller's long prompts

Written by `python -m benchmarks.generative.fairness --write`; do not edit.
TTFT is the time to the first token, and TBT the time between the events of a stream.
"""


if __name__ == "__main__":
    main()
