"""The service's reports about itself, its limits, its start and its stop."""

from __future__ import annotations

import asyncio
import shutil
import signal
import socket
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from grpc import StatusCode, aio
from grpc_health.v1.health_pb2 import HealthCheckResponse
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest as Asked
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionResponse

from cohort.rpc import inference_pb2 as messages
from tests.e2e.processes import MODELS, Cohort, cohort, free_port
from tests.e2e.scrape import Scrape
from tests.rpc.client import SERVICE, Client, connected, raw_request, told
from tests.waiting import PATIENCE

SERVING, NOT_SERVING = HealthCheckResponse.SERVING, HealthCheckResponse.NOT_SERVING
IRIS = {"features": np.array([[5.1, 3.5, 1.4, 0.2]], "f4")}


@pytest.fixture
def iris(models: Path) -> Path:
    """A folder with one model."""
    shutil.copytree(MODELS / "iris", models / "iris")
    return models


# --- Reports


async def test_health_answers_for_the_process_and_the_service(client: Client) -> None:
    """Both serve; of any other service nothing is known."""
    for service in ("", SERVICE.full_name):
        assert (await client.check(service)).status == SERVING
    with pytest.raises(aio.AioRpcError) as caught:
        await client.check("other")
    assert caught.value.code() is StatusCode.NOT_FOUND


async def test_one_watcher_who_leaves_ends_no_other(client: Client) -> None:
    """Every watcher is notified, whatever other watchers come and go."""
    first, second = (client.watch() for _ in range(2))
    assert (await told(first)).status == SERVING
    assert (await told(second)).status == SERVING
    first.cancel()
    third = client.watch("other")
    assert (await told(third)).status == HealthCheckResponse.SERVICE_UNKNOWN
    assert not second.done()
    second.cancel()
    third.cancel()


REFLECTIONS = ["grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection"]


def test_reflection_describes_every_service(server: Cohort) -> None:
    """A client that has no .proto finds the services, their calls and their messages."""
    with grpc.insecure_channel(server.grpc) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        assert set(database.get_services()) == {
            SERVICE.full_name,
            "grpc.health.v1.Health",
            *REFLECTIONS,
        }
        pool = DescriptorPool(database)
        described: Any = {
            name: pool.FindServiceByName(name)  # type: ignore[no-untyped-call]
            for name in database.get_services()
        }
    assert list(described[SERVICE.full_name].methods_by_name) == list(SERVICE.methods_by_name)
    for name, service in described.items():
        assert not service.file.dependencies, "a client is sent one file, and none that it imports"
        for method in service.methods:
            assert method.input_type.full_name.startswith(name.rpartition(".")[0])


FOUND = [
    Asked(file_by_filename="app/cohort/rpc/inference.proto"),
    Asked(file_containing_symbol="inference.ModelInferRequest"),
    Asked(file_containing_symbol="inference.GRPCInferenceService.ModelInfer"),
]
UNKNOWN = [
    Asked(file_by_filename="no.proto"),
    Asked(file_containing_symbol="inference.No"),
    Asked(file_containing_symbol=""),
    Asked(all_extension_numbers_of_type="inference.No"),
    Asked(file_containing_extension={"containing_type": "inference.No", "extension_number": 1}),
    Asked(
        file_containing_extension={
            "containing_type": "inference.ModelInferRequest",
            "extension_number": 1,
        }
    ),
]


@pytest.mark.parametrize("service", REFLECTIONS)
def test_reflection_answers_each_kind_of_request(server: Cohort, service: str) -> None:
    """Answers come on one stream, in order, by both names; an unknown name fails alone."""
    numbers = Asked(all_extension_numbers_of_type="inference.ModelInferRequest")
    asked = [*FOUND, *UNKNOWN, numbers, Asked(host="me"), Asked(list_services="*")]
    with grpc.insecure_channel(server.grpc) as channel:
        call = channel.stream_stream(
            f"/{service}/ServerReflectionInfo",
            request_serializer=Asked.SerializeToString,
            response_deserializer=ServerReflectionResponse.FromString,
        )
        answers = list(call(iter(asked), timeout=PATIENCE))
    assert [one.original_request for one in answers] == asked
    described, unknown = answers[: len(FOUND)], answers[len(FOUND) : -3]
    (sent,) = {one.file_descriptor_response.file_descriptor_proto[0] for one in described}
    assert FileDescriptorProto.FromString(sent).package == "inference"
    code = StatusCode.NOT_FOUND.value[0]
    assert [one.error_response.error_code for one in unknown] == [code] * len(UNKNOWN)
    extensions, nothing, services = answers[-3:]
    base = extensions.all_extension_numbers_response
    assert (base.base_type_name, list(base.extension_number)) == (
        "inference.ModelInferRequest",
        [],
    )
    assert nothing.valid_host == "me"
    assert nothing.error_response.error_code == StatusCode.INVALID_ARGUMENT.value[0]
    names = [one.name for one in services.list_services_response.service]
    assert names == sorted(names)
    assert service in names


async def test_metadata_config_and_index(client: Client) -> None:
    """Names, datatypes and shapes are the model's; -1 stands for any length."""
    described = await client.call("ModelMetadata", messages.ModelMetadataRequest(name="iris"))
    assert (described.platform, list(described.versions)) == ("onnxruntime_onnx", ["1"])
    tensors = [(one.name, one.datatype, list(one.shape)) for one in described.inputs]
    assert tensors == [("features", "FP32", [-1, 4])]
    answer = await client.call("ModelConfig", messages.ModelConfigRequest(name="iris"))
    assert answer.config.max_batch_size > 1
    assert answer.config.input[0].data_type == messages.TYPE_FP32
    assert list(answer.config.input[0].dims) == [4], "the rows are max_batch_size's"
    index = await client.call("RepositoryIndex", messages.RepositoryIndexRequest())
    assert ("iris", "1", "READY") in {(one.name, one.version, one.state) for one in index.models}
    kind = await client.call("ModelMetadata", messages.ModelMetadataRequest(name="sequence"))
    assert kind.outputs[0].datatype.startswith("seq("), "named, if not transportable"


async def test_model_ready_is_an_answer_not_an_error(client: Client) -> None:
    """It is false for unknown models."""
    for name, version, ready in (("iris", "", True), ("iris", "7", False), ("no", "", False)):
        request = messages.ModelReadyRequest(name=name, version=version)
        assert (await client.call("ModelReady", request)).ready is ready


async def test_statistics_count_what_was_answered(iris: Path, tmp_path: Path) -> None:
    """Requests, rows and runs of each version; of everything where no model is named."""
    with cohort(iris, tmp_path, grpc_port=free_port()) as server:
        async with connected(server.grpc) as client:
            for _ in range(3):
                await client.infer("iris", IRIS)
            answer = await client.call("ModelStatistics", messages.ModelStatisticsRequest())
    (stats,) = answer.model_stats
    assert (stats.name, stats.version, stats.inference_count) == ("iris", "1", 3)
    assert stats.inference_stats.success.count == 3
    assert stats.inference_stats.success.ns > 0


# --- The operator's calls


async def test_only_the_token_loads_and_unloads(iris: Path, tmp_path: Path) -> None:
    """No token gets UNAUTHENTICATED, a wrong one PERMISSION_DENIED, the right one unloads."""
    unload = messages.RepositoryModelUnloadRequest(model_name="iris")
    load = messages.RepositoryModelLoadRequest(model_name="iris")
    ready = messages.ModelReadyRequest(name="iris")
    right = (("authorization", "Bearer secret"),)
    with cohort(iris, tmp_path, grpc_port=free_port(), admin_token="secret") as server:
        async with connected(server.grpc) as client:
            for metadata, status in (
                ((), StatusCode.UNAUTHENTICATED),
                ((("authorization", "Bearer wrong"),), StatusCode.PERMISSION_DENIED),
                ((("authorization", "Basic secret"),), StatusCode.UNAUTHENTICATED),
            ):
                with pytest.raises(aio.AioRpcError) as caught:
                    await client.call("RepositoryModelUnload", unload, metadata=metadata)
                assert caught.value.code() is status
            assert (await client.call("ModelReady", ready)).ready
            await client.call("RepositoryModelUnload", unload, metadata=right)
            assert not (await client.call("ModelReady", ready)).ready
            await client.call("RepositoryModelLoad", load, metadata=right)
            assert (await client.call("ModelReady", ready)).ready


async def test_without_a_token_the_operators_calls_are_off(client: Client) -> None:
    """No client loads or unloads on a server without a token."""
    request = messages.RepositoryModelLoadRequest(model_name="iris")
    with pytest.raises(aio.AioRpcError) as caught:
        await client.call("RepositoryModelLoad", request)
    assert caught.value.code() is StatusCode.PERMISSION_DENIED


# --- Limits: the server of these tests takes 2 MiB


async def test_a_message_over_the_limit_is_refused(client: Client) -> None:
    """It is refused by its length, before it is read; the connection continues."""
    request = raw_request("identity_fp32", {"x": np.zeros((2**20, 3), "f4")})
    with pytest.raises(aio.AioRpcError) as caught:
        await client.call("ModelInfer", request)
    assert caught.value.code() is StatusCode.RESOURCE_EXHAUSTED
    assert (await client.call("ServerLive", messages.ServerLiveRequest())).live


async def test_a_message_that_grows_over_the_limit_is_refused(client: Client) -> None:
    """The limit is on what comes out of the compression."""
    request = raw_request("identity_fp32", {"x": np.zeros((2**20, 3), "f4")})
    with pytest.raises(aio.AioRpcError) as caught:
        await client.call("ModelInfer", request, compression=grpc.Compression.Gzip)
    assert caught.value.code() is StatusCode.RESOURCE_EXHAUSTED
    small = raw_request("identity_fp32", {"x": np.zeros((9, 3), "f4")})
    assert await client.call("ModelInfer", small, compression=grpc.Compression.Gzip)


async def test_an_answer_over_the_limit_is_told(client: Client) -> None:
    """Both outputs together are more than the server sends; one of them is not."""
    request = raw_request("strings", {"text": np.full((200_000, 1), "x", np.object_)})
    with pytest.raises(aio.AioRpcError) as caught:
        await client.call("ModelInfer", request)
    assert caught.value.code() is StatusCode.INVALID_ARGUMENT
    assert "the response has" in (caught.value.details() or "")
    request.outputs.add(name="same")
    assert await client.call("ModelInfer", request)


# --- Starting and stopping


def test_a_port_in_use_is_told_in_one_line(iris: Path, tmp_path: Path) -> None:
    """The process names the port, and exits with status 1."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with (
            pytest.raises(AssertionError, match="ended with 1") as caught,
            cohort(iris, tmp_path, grpc_port=port),
        ):
            raise AssertionError("it started")
    assert (
        f"cannot listen on 127.0.0.1:{port}: address already in use; "
        "choose another port with --grpc-port or COHORT_GRPC_PORT"
    ) in str(caught.value)
    assert "Traceback" not in str(caught.value)


def test_a_port_taken_meanwhile_is_told_in_one_line(iris: Path, tmp_path: Path) -> None:
    """Free when the process began, in use when its models were ready: it ends with status 1."""
    port = free_port()
    aside = iris.rename(tmp_path / "aside")
    iris.mkdir()
    with cohort(iris, tmp_path, ready=False, grpc_port=port) as server:
        with socket.create_server(("127.0.0.1", port)):
            (aside / "iris").rename(iris / "iris")
            assert server.process.wait(PATIENCE) == 1
        assert server.logged.count(f"cannot listen on 127.0.0.1:{port}: ") == 1
        assert "Traceback" not in server.logged


def test_where_http_cannot_start_grpc_ends_quietly(iris: Path, tmp_path: Path) -> None:
    """The only reported error is HTTP's."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with (
            pytest.raises(AssertionError, match="the server ended") as caught,
            cohort(iris, tmp_path, port=port, grpc_port=free_port()),
        ):
            raise AssertionError("it started")
    assert "address already in use" in str(caught.value)
    assert "Traceback" not in str(caught.value)


async def test_sigterm_tells_watchers_serves_on_and_ends_streams(
    iris: Path, tmp_path: Path
) -> None:
    """Watchers get NOT_SERVING at once; the notice is served; idle streams hold nothing up."""
    settings: dict[str, Any] = {"drain_seconds": 3600, "drain_notice_seconds": 3600}
    with cohort(iris, tmp_path, grpc_port=free_port(), **settings) as server:
        async with connected(server.grpc) as client:
            watch = client.watch()
            assert (await told(watch)).status == SERVING
            stream = client.stream()
            request = raw_request("iris", IRIS).SerializeToString()
            await stream.write(request)
            assert (await told(stream)).infer_response.model_name == "iris"
            server.process.send_signal(signal.SIGTERM)
            assert (await told(watch)).status == NOT_SERVING
            assert await client.infer("iris", IRIS)
            await stream.write(request)
            assert (await told(stream)).infer_response.model_name == "iris"
    settings["drain_notice_seconds"] = 0
    with cohort(iris, tmp_path, grpc_port=free_port(), **settings) as server:
        async with connected(server.grpc) as client:
            stream = client.stream()
            await stream.write(request)
            assert (await told(stream)).infer_response.model_name == "iris"
            server.process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(server.process.wait, PATIENCE) == 0, server.logged
            with pytest.raises(aio.AioRpcError) as caught:
                await stream.read()
            assert caught.value.code() is StatusCode.UNAVAILABLE


async def test_calls_count_like_those_of_any_face(iris: Path, tmp_path: Path) -> None:
    """The metrics have what clients saw."""
    with cohort(iris, tmp_path, grpc_port=free_port()) as server:
        async with connected(server.grpc) as client:
            await client.infer("iris", IRIS)
            with pytest.raises(aio.AioRpcError):
                await client.infer("iris", {})
        counted = Scrape(server.url).by("model_inference_total", "code", model="iris")
    assert counted == {"OK": 1, "InvalidInput": 1}
