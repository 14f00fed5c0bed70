"""Benchmark targets: a model on any Open Inference server, over HTTP or gRPC."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

import numpy as np

from cohort.cli.bench_command.loops import Send
from cohort.codec import to_bytes
from cohort.extras import how_to_install
from cohort.tensors import BY_NAME, Array

if TYPE_CHECKING:
    import httpx

REPLY_SECONDS = 60.0
WORDS = ("a", "model", "reads", "this")


class TargetUnusable(Exception):
    """Reason why no request can be sent to the target."""


InputShapes = Mapping[str, Sequence[int]]


class LoadTarget(NamedTuple):
    """Target of a benchmark.

    send: Sends one request.
    rows: Rows per request.
    """

    send: Send
    rows: int


def make_inputs(
    inputs: Sequence[tuple[str, str, Sequence[int]]], rows: int, shapes: InputShapes, seed: int
) -> dict[str, Array]:
    """Make arrays for inputs, given as (name, datatype, shape); -1 is a variable dimension.

    rows: Size of the first dimension, if it is variable.
    shapes: Shapes from the user, by input.

    Floats are between 0 and 1 and integers are 0 or 1; most models accept these. Raises
    TargetUnusable.
    """
    drawn = np.random.default_rng(seed)
    made: dict[str, Array] = {}
    for name, datatype, declared in inputs:
        if datatype not in BY_NAME:
            raise TargetUnusable(f"input {name} has datatype {datatype}, which cannot be generated")
        free = [rows if place == 0 else 1 for place in range(len(declared))]
        shape = tuple(
            int(size) if int(size) >= 0 else other
            for size, other in zip(declared, free, strict=True)
        )
        if rows > 1 and name not in shapes and shape[:1] != (rows,):
            raise TargetUnusable(
                f"input {name} has shape {list(declared)}, which does not allow --rows {rows}"
            )
        shape = tuple(shapes.get(name, shape))
        if datatype == "BYTES":
            made[name] = np.array(
                [WORDS[i % len(WORDS)] for i in range(int(np.prod(shape)))], object
            )
            made[name] = made[name].reshape(shape)
        elif (dtype := BY_NAME[datatype].dtype).kind in "iub":
            made[name] = drawn.integers(0, 2, shape).astype(dtype)
        else:
            made[name] = drawn.random(shape).astype(dtype)
    unknown = sorted(set(shapes) - {name for name, _, _ in inputs})
    if unknown:
        raise TargetUnusable(
            f"the model has no input {unknown[0]}; it has {', '.join(n for n, _, _ in inputs)}"
        )
    return made


def v2_body(
    arrays: Mapping[str, Array], datatypes: Mapping[str, str], *, binary: bool
) -> tuple[bytes, dict[str, str]]:
    """Return a body for `/v2/models/{model}/infer`, and its headers."""
    parts: list[bytes] = []
    inputs: list[dict[str, Any]] = []
    for name, array in arrays.items():
        one: dict[str, Any] = {
            "name": name,
            "datatype": datatypes[name],
            "shape": list(array.shape),
        }
        if binary:
            parts.append(bytes(to_bytes(array)))
            one["parameters"] = {"binary_data_size": len(parts[-1])}
        else:
            one["data"] = array.reshape(-1).tolist()
        inputs.append(one)
    head = json.dumps({"inputs": inputs}).encode()
    if not binary:
        return head, {"content-type": "application/json"}
    return b"".join([head, *parts]), {
        "content-type": "application/octet-stream",
        "inference-header-content-length": str(len(head)),
    }


@asynccontextmanager
async def open_clients(
    headers: Mapping[str, str], *, callers: int, key: str | None
) -> AsyncIterator[Sequence[httpx.AsyncClient]]:
    """Open a client for each caller, with these headers and the key. Raises TargetUnusable.

    Proxies from the environment are ignored, since they would be measured as well. Each connection
    has its own client: httpx scans all connections and waiting requests of a pool at each request.
    """
    import httpx

    sent = {**headers, **({"authorization": f"Bearer {_key(key)}"} if key else {})}
    trusted = httpx.create_ssl_context()
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(
                httpx.AsyncClient(
                    headers=sent, timeout=REPLY_SECONDS, verify=trusted, trust_env=False
                )
            )
            for _ in range(callers)
        ]


@asynccontextmanager
async def http_target(
    url: str,
    model: str,
    version: str | None,
    *,
    callers: int,
    rows: int,
    shapes: InputShapes,
    binary: bool,
    key: str | None,
    seed: int,
) -> AsyncIterator[LoadTarget]:
    """Open an HTTP target with a connection for each caller. Raises TargetUnusable."""
    import httpx

    path = f"{url.rstrip('/')}/v2/models/{quote(model, '')}" + (
        f"/versions/{quote(version, '')}" if version else ""
    )
    headers = {"accept-encoding": "identity"}  # as most clients send
    async with open_clients(headers, callers=callers, key=key) as clients:
        idle = asyncio.Queue[httpx.AsyncClient]()
        for client in clients:
            idle.put_nowait(client)
        try:
            described = await client.get(path)
            if described.status_code != httpx.codes.OK:
                raise TargetUnusable(
                    f"{path} responded {described.status_code}: {described.text[:200]}"
                )
            inputs = [
                (one["name"], one["datatype"], one["shape"]) for one in described.json()["inputs"]
            ]
        except httpx.RemoteProtocolError as error:
            raise TargetUnusable(
                f"{url} does not speak HTTP ({error}); use --grpc for a gRPC port"
            ) from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise TargetUnusable(
                f"{url} cannot be reached: {str(error) or type(error).__name__}"
            ) from None
        except (ValueError, KeyError, TypeError):
            raise TargetUnusable(f"{path} does not return Open Inference model metadata") from None
        arrays = make_inputs(inputs, rows, shapes, seed)
        body, sent = v2_body(arrays, {name: kind for name, kind, _ in inputs}, binary=binary)

        async def send(_: int) -> str:
            one = await idle.get()
            try:
                answer = await one.post(f"{path}/infer", content=body, headers=sent)
            except httpx.HTTPError as error:
                return type(error).__name__
            finally:
                idle.put_nowait(one)
            return "" if answer.status_code == httpx.codes.OK else f"HTTP {answer.status_code}"

        try:
            first = await client.post(f"{path}/infer", content=body, headers=sent)
        except httpx.HTTPError as error:
            raise _refused(path, type(error).__name__) from None
        if first.status_code != httpx.codes.OK:
            raise _refused(path, f"{first.status_code}: {first.text[:200]}")
        yield LoadTarget(send, _rows(arrays))


@asynccontextmanager
async def grpc_target(
    address: str,
    model: str,
    version: str | None,
    *,
    callers: int,
    rows: int,
    shapes: InputShapes,
    key: str | None,
    seed: int,
) -> AsyncIterator[LoadTarget]:
    """Open a gRPC target, without TLS. Raises TargetUnusable."""
    try:
        from grpc import StatusCode, aio
    except ImportError:
        raise TargetUnusable(f"--grpc needs grpcio: {how_to_install('bench')}") from None

    from cohort.rpc import inference_pb2 as messages

    metadata = (("authorization", f"Bearer {_key(key)}"),) if key else ()
    service = "/inference.GRPCInferenceService/"
    async with AsyncExitStack() as stack:
        channels = [
            await stack.enter_async_context(
                aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])
            )
            for _ in range(callers)
        ]
        describe: Any = channels[0].unary_unary(
            f"{service}ModelMetadata",
            response_deserializer=messages.ModelMetadataResponse.FromString,
        )
        asked = messages.ModelMetadataRequest(name=model, version=version or "")
        try:
            described = await describe(
                asked.SerializeToString(), timeout=REPLY_SECONDS, metadata=metadata
            )
        except aio.AioRpcError as error:
            hint = "; is this the gRPC port? It differs from the HTTP port"
            raise TargetUnusable(
                f"{address}: {error.code().name}: {error.details()}"
                + hint * (error.code() is StatusCode.UNAVAILABLE)
            ) from None
        inputs = [(one.name, one.datatype, list(one.shape)) for one in described.inputs]
        request = messages.ModelInferRequest(model_name=model, model_version=version or "")
        arrays = make_inputs(inputs, rows, shapes, seed)
        for name, array in arrays.items():
            datatype = next(kind for one, kind, _ in inputs if one == name)
            request.inputs.add(name=name, datatype=datatype, shape=array.shape)
            request.raw_input_contents.append(bytes(to_bytes(array)))
        body = request.SerializeToString()
        calls: list[Any] = [channel.unary_unary(f"{service}ModelInfer") for channel in channels]

        async def send(caller: int) -> str:
            try:
                await calls[caller](body, timeout=REPLY_SECONDS, metadata=metadata)
            except aio.AioRpcError as error:
                return str(error.code().name)
            return ""

        try:
            await calls[0](body, timeout=REPLY_SECONDS, metadata=metadata)
        except aio.AioRpcError as error:
            raise _refused(address, f"{error.code().name}: {error.details()}") from None
        yield LoadTarget(send, _rows(arrays))


def _rows(arrays: Mapping[str, Array]) -> int:
    return next((len(array) for array in arrays.values() if array.ndim), 1)


def _key(key: str) -> str:
    if not key.strip().isascii():
        raise TargetUnusable("the key must be ASCII")
    return key.strip()


def _refused(where: str, reason: str) -> TargetUnusable:
    return TargetUnusable(
        f"{where} rejected the generated inputs ({reason}); set input shapes with --shape NAME=1,3"
    )
