"""Cohort's server, started as users start it, asked for streams of server-sent events over HTTP."""

import asyncio
import json
import sys
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

from one_at_a_time import now, work

from benchmarks.usage import cpu_seconds
from tests.e2e.processes import cohort

folder, threads, most = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
CONFIG = f"session: {{intra_op_threads: {threads}}}\ngeneration: {{max_sequences: {most}}}\n"


async def stream(host, port, prompt, tokens, reached):
    """Return the time of the request, and those of the pieces of its answer."""
    body = json.dumps({
        "model": "bench", "prompt": prompt, "max_tokens": tokens, "temperature": 0,
        "stream": True, "ignore_eos": True,
    }).encode()  # fmt: skip
    reader, writer = await asyncio.open_connection(host, port)
    head = f"POST /v1/completions HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
    asked, times = now(), []
    writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    seen = b""
    while b"[DONE]" not in seen:
        more = await reader.read(65536)
        if not more:
            raise RuntimeError(seen.decode(errors="replace")[-300:])
        at = now()
        before = seen.count(b"data: {")
        seen += more
        times += [at] * (seen.count(b"data: {") - before)
        reached(len(times))
    writer.close()
    return asked, times


async def answer(host, port, prompts, tokens, late):
    joined = asyncio.Event()

    def reached(count):
        if late is not None and count >= late:
            joined.set()

    async def ask(caller):
        if late is not None and caller == len(prompts) - 1:
            await joined.wait()
        first = reached if caller == 0 else lambda count: None
        return await stream(host, port, prompts[caller], tokens, first)

    found = await asyncio.gather(*map(ask, range(len(prompts))))
    return [asked for asked, _ in found], [times for _, times in found]


def main():
    with tempfile.TemporaryDirectory() as name:
        models = Path(name) / "models" / "bench"
        models.mkdir(parents=True)
        (models / "1").symlink_to(folder.absolute())
        (models / "config.yaml").write_text(CONFIG)
        command = [sys.executable, "-m", "cohort"]
        with cohort(models.parent, Path(name), under=["setsid"], program=command) as server:
            where = urlsplit(server.url)
            loop = asyncio.new_event_loop()
            asked = (where.hostname, where.port)
            work(
                lambda *one: loop.run_until_complete(answer(*asked, *one)),
                cpu=lambda: cpu_seconds(server.process.pid),
            )


main()
