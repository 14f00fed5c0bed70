"""Answers in pieces through Ray's proxies, over HTTP and gRPC."""

from __future__ import annotations

import asyncio
import os
import queue
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import grpc
import httpx
from ray import serve
from starlette.types import Message, Receive, Scope, Send

from cohort.ray_serve.arguments import Arguments
from cohort.ray_serve.builder import deployment, settings_of
from cohort.ray_serve.ingress import Ingress
from cohort.ray_serve.replica import Replica
from cohort.rpc import inference_pb2 as messages
from tests.ray.cluster import ADDRESS, until, wait_for
from tests.waiting import until as until_soon

STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"


class Shown(Replica):
    """A replica that names itself in each answer, and has a stream.

    `GET /stream?folder=…` sends a piece, and the next one when the folder has a file `seen`. If its
    caller leaves, it makes a file `left`.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        inner = self.application

        async def application(scope: Scope, receive: Receive, send: Send) -> None:
            async def named(message: Message) -> None:
                if message["type"] == "http.response.start":
                    message["headers"] = [*message["headers"], (b"x-pid", b"%d" % os.getpid())]
                await send(message)

            if scope.get("path") == "/stream":
                await _stream(Path(parse_qs(scope["query_string"])[b"folder"][0].decode()), named)
            else:
                await inner(scope, receive, named)

        self.application: Any = application


async def _stream(folder: Path, send: Send) -> None:
    headers = [(b"content-type", b"text/event-stream")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True})
    try:
        await until_soon((folder / "seen").exists)
    except asyncio.CancelledError:
        (folder / "left").touch()
        raise
    await send({"type": "http.response.body", "body": b"data: 2\n\n", "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def run_shown(arguments: Mapping[str, Any]) -> None:
    """Run two replicas that name themselves."""
    given = Arguments.model_validate({**arguments, "replicas": 2, "max_replicas_per_node": 1})
    pool = deployment("Models", Shown, given).bind(settings_of(given))
    ingress = deployment("Cohort", Ingress, given, ingress=True)
    bound = ingress.bind(pool, {}, max_body=1 << 20, retries=5, multiplexed=False)
    serve.run(bound, name="cohort", route_prefix="/")
    wait_for(2)


def streams(arguments: Mapping[str, Any], *unused: object) -> dict[str, Any]:
    """Read each piece before the next one may be sent."""
    run_shown(arguments)
    folder = Path(arguments["models"]).parent / "stream"
    folder.mkdir()
    with httpx.Client(base_url=ADDRESS, timeout=60) as client:
        with client.stream("GET", "/stream", params={"folder": str(folder)}) as answer:
            pieces = answer.iter_text()
            events = [next(pieces)]
        until((folder / "left").exists)
        with client.stream("GET", "/stream", params={"folder": str(folder)}) as answer:
            pieces = answer.iter_text()
            events.append(next(pieces))
            (folder / "seen").touch()
            events += pieces
        with client.stream("GET", "/playground/data/live") as answer:
            live = next(answer.iter_lines())
        metrics = client.get("/metrics")
    return {
        "events": events,
        "live": live,
        "metrics": [metrics.status_code, metrics.text.startswith("# HELP")],
        "messages": conversation(),
    }


def conversation() -> list[Any]:
    """Send each message of a stream after the answer to the one before."""
    asked: queue.Queue[str | None] = queue.Queue()
    asked.put("iris")

    def requests() -> Iterator[messages.ModelInferRequest]:
        while (model := asked.get()) is not None:
            request = messages.ModelInferRequest(model_name=model, id=f"to {model}")
            given = request.inputs.add(name="features", datatype="FP32", shape=[1, 4])
            given.contents.fp32_contents.extend([5.1, 3.5, 1.4, 0.2])
            request.outputs.add(name="label")
            yield request

    found: list[Any] = []
    with grpc.insecure_channel("127.0.0.1:9000") as channel:
        call = channel.stream_stream(
            STREAM,
            request_serializer=messages.ModelInferRequest.SerializeToString,
            response_deserializer=messages.ModelStreamInferResponse.FromString,
        )
        answers = call(requests(), metadata=(("application", "cohort"),))
        for following in ("irs", "iris", None):
            answer = next(answers)
            found.append([answer.infer_response.id, answer.error_message])
            asked.put(following)
        found.append([answer.infer_response.id for answer in answers])
    return found
