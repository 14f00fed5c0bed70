"""System shared memory over REST and gRPC, with Triton's own clients, on a real server."""

from __future__ import annotations

import itertools
import os
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException, shared_memory, triton_to_np_dtype

from cohort.auth.keys import digest_of
from tests import onnx_models
from tests.e2e.processes import Cohort, cohort, free_port

FOLDER = Path("/dev/shm")
PREFIX = f"/cohort_test_{uuid4().hex[:8]}_"
SIZE = 8
ROW = np.array([[1.5, -2.5]], "f4")
FLOATS = 4 << 20

pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="this system has no /dev/shm")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shared") / "models"
    onnx_models.save(onnx_models.two_inputs(), folder / "pair/1/model.onnx")
    onnx_models.save(onnx_models.identity("FP32", ("N", "M")), folder / "same/1/model.onnx")
    onnx_models.save(onnx_models.strings(), folder / "strings/1/model.onnx")
    return folder


@pytest.fixture(scope="module")
def server(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cohort]:
    with cohort(
        models,
        tmp_path_factory.mktemp("server"),
        grpc_port=free_port(),
        shared_memory=PREFIX,
        max_body_mb=32,
    ) as started:
        yield started


@pytest.fixture(autouse=True)
def no_left_overs() -> Iterator[None]:
    yield
    for file in FOLDER.glob(f"{PREFIX[1:]}*"):
        file.unlink()


@pytest.fixture(params=["http", "grpc"])
def wire(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@contextmanager
def connected(server: Cohort, wire: str) -> Iterator[tuple[Any, Any]]:
    """Triton's client, and its module."""
    module: Any = {"http": tritonclient.http, "grpc": tritonclient.grpc}[wire]
    address = server.url.removeprefix("http://") if wire == "http" else server.grpc
    with module.InferenceServerClient(address) as client:
        client.unregister_system_shared_memory()
        client.unregister_cuda_shared_memory()
        yield client, module
        client.unregister_system_shared_memory()


def made(name: str, data: bytes) -> str:
    """Create shared memory, and give its key."""
    key = PREFIX + name
    (FOLDER / key[1:]).write_bytes(data)
    return key


def in_region(module: Any, name: str, region: str, size: int = SIZE, offset: int = 0) -> Any:
    tensor = module.InferInput(name, [1, 2], "FP32")
    tensor.set_shared_memory(region, size, offset)
    return tensor


def to_region(module: Any, name: str, region: str, size: int = SIZE, offset: int = 0) -> Any:
    output = module.InferRequestedOutput(name)
    output.set_shared_memory(region, size, offset)
    return output


def names_of(status: Any) -> list[str]:
    if isinstance(status, list):
        return [one["name"] for one in status]
    return sorted(status.regions)


def test_tritons_example_runs(server: Cohort, wire: str) -> None:
    """It does what simple_http_shm_client.py and simple_grpc_shm_client.py do."""
    with connected(server, wire) as (client, module), ExitStack() as stack:
        handles = {}
        for part in ("in", "out"):
            key = f"{PREFIX}{part}"
            handle = shared_memory.create_shared_memory_region(f"{part}_data", key, 2 * SIZE)
            stack.callback(shared_memory.destroy_shared_memory_region, handle)
            client.register_system_shared_memory(f"{part}_data", key, 2 * SIZE)
            handles[part] = handle
        shared_memory.set_shared_memory_region(handles["in"], [ROW, ROW * 2])
        status = client.get_system_shared_memory_status()
        assert sorted(names_of(status)) == ["in_data", "out_data"]
        result = client.infer(
            "pair",
            [in_region(module, "a", "in_data"), in_region(module, "b", "in_data", SIZE, SIZE)],
            outputs=[
                to_region(module, "sum", "out_data"),
                to_region(module, "difference", "out_data", SIZE, SIZE),
            ],
        )
        for place, (name, expected) in enumerate((("sum", ROW * 3), ("difference", -ROW))):
            output = result.get_output(name)
            datatype, shape = (
                (output["datatype"], output["shape"])
                if wire == "http"
                else (output.datatype, output.shape)
            )
            got = shared_memory.get_contents_as_numpy(
                handles["out"], triton_to_np_dtype(datatype), shape, place * SIZE
            )
            assert np.array_equal(got, expected)
        assert names_of(client.get_system_shared_memory_status("in_data")) == ["in_data"]
        client.unregister_system_shared_memory("in_data")
        assert names_of(client.get_system_shared_memory_status()) == ["out_data"]
        del got  # a view of the memory


def test_some_tensors_may_be_elsewhere(server: Cohort, wire: str) -> None:
    """Others are in the request; each is read and written in its place."""
    key = made("mixed", ROW.tobytes() + bytes(SIZE))
    with connected(server, wire) as (client, module):
        client.register_system_shared_memory("r", key, 2 * SIZE)
        sent = module.InferInput("b", [1, 2], "FP32")
        sent.set_data_from_numpy(ROW * 2)
        result = client.infer(
            "pair",
            [in_region(module, "a", "r"), sent],
            outputs=[
                to_region(module, "sum", "r", SIZE, SIZE),
                module.InferRequestedOutput("difference"),
            ],
        )
        assert np.array_equal(result.as_numpy("difference"), -ROW)
        assert (FOLDER / key[1:]).read_bytes()[SIZE:] == (ROW * 3).tobytes()


def test_large_tensors_and_texts(server: Cohort, wire: str) -> None:
    """Sixteen megabytes go in and out, and so do BYTES with their lengths."""
    data = np.arange(FLOATS, dtype="f4").reshape(1, FLOATS)
    key, texts = made("large", data.tobytes() * 2), made("texts", b"\2\0\0\0ab" + bytes(30))
    with connected(server, wire) as (client, module):
        client.register_system_shared_memory("large", key, 2 * data.nbytes)
        client.register_system_shared_memory("texts", texts, 36)
        (FOLDER / key[1:]).write_bytes(data.tobytes() + bytes(data.nbytes))
        tensor = module.InferInput("x", [1, FLOATS], "FP32")
        tensor.set_shared_memory("large", data.nbytes)
        output = to_region(module, "y", "large", data.nbytes, data.nbytes)
        client.infer("same", [tensor], outputs=[output])
        assert (FOLDER / key[1:]).read_bytes()[data.nbytes :] == data.tobytes()
        name = client.get_model_metadata("strings")
        inputs = name["inputs"] if wire == "http" else name.inputs
        text = module.InferInput(
            inputs[0]["name"] if wire == "http" else inputs[0].name, [1, 1], "BYTES"
        )
        text.set_shared_memory("texts", 6)
        assert client.infer("strings", [text]) is not None


def refused(server: Cohort, wire: str, says: str, ask: Callable[[Any, Any], object]) -> None:
    with connected(server, wire) as (client, module):
        with pytest.raises(InferenceServerException) as error:
            ask(client, module)
        assert says in error.value.message(), error.value.message()
        assert client.is_server_ready()


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("/other_memory", "does not begin with"),
        ("cohort", "does not begin with"),
        (PREFIX + "../../../etc/passwd", "is not a valid key of shared memory"),
        (PREFIX + "\0a", "is not a valid key of shared memory"),
        ("/" + PREFIX, "is not a valid key of shared memory"),
        (PREFIX + "x" * 300, "is not a valid key of shared memory"),
        (PREFIX + "missing", "no such file"),
        (PREFIX + "link", "cannot be opened"),
        (PREFIX + "folder", "cannot be opened"),
        (PREFIX + "pipe", "is not shared memory"),
        (PREFIX + "twice", "has a second name"),
    ],
    ids=itertools.count(),  # the prefix is another one in each process
)
def test_only_own_memory_is_registered(
    server: Cohort, wire: str, key: str, says: str, tmp_path: Path
) -> None:
    """Another prefix, a path, a link, a folder and a pipe are refused."""
    secret, folder = tmp_path / "secret", FOLDER / (PREFIX[1:] + "folder")
    secret.write_bytes(bytes(SIZE))
    (FOLDER / (PREFIX[1:] + "link")).symlink_to(secret)
    folder.mkdir()
    os.mkfifo(FOLDER / (PREFIX[1:] + "pipe"))
    made("twice", bytes(SIZE))
    os.link(FOLDER / (PREFIX[1:] + "twice"), FOLDER / (PREFIX[1:] + "again"))
    try:
        refused(
            server, wire, says, lambda client, _: client.register_system_shared_memory("r", key, 8)
        )
    finally:
        folder.rmdir()


@pytest.mark.parametrize(
    ("size", "offset", "says"),
    [
        (9, 0, "is too small"),
        (SIZE, 1, "is too small"),
        (2**63 - 1, 2**63 - 1, "is too small"),
        (0, 0, "byte_size must be > 0"),
    ],
)
def test_regions_lie_in_the_memory(
    server: Cohort, wire: str, size: int, offset: int, says: str
) -> None:
    """Any other numbers are refused."""
    key = made("small", bytes(SIZE))
    refused(
        server,
        wire,
        says,
        lambda client, _: client.register_system_shared_memory("r", key, size, offset),
    )


@pytest.mark.parametrize(
    ("size", "offset", "says"),
    [
        (SIZE, 9, "which has 16 bytes"),
        (SIZE, -8, "must be a whole number >= 0"),
        (-8, 0, "must be a whole number >= 0"),
        (17, 0, "which has 16 bytes"),
        (4, 0, "needs 8 bytes"),
        (2**62, 2**62, "shared memory"),
    ],
)
def test_tensors_lie_in_their_region(
    server: Cohort, wire: str, size: int, offset: int, says: str
) -> None:
    """An input or output that does not fit its region is refused."""
    key = made("region", bytes(16))

    def ask(client: Any, module: Any, *, out: bool) -> None:
        client.register_system_shared_memory("r", key, 16)
        a, b = (in_region(module, name, "r") for name in "ab")
        outputs = [to_region(module, "sum", "r", size, offset)] if out else None
        client.infer(
            "pair", [a, b] if out else [in_region(module, "a", "r", size, offset), b],
            outputs=outputs,
        )  # fmt: skip

    refused(server, wire, says, lambda client, module: ask(client, module, out=False))
    refused(server, wire, says, lambda client, module: ask(client, module, out=True))


@pytest.mark.parametrize("done", ["shortened", "removed", "replaced", "unregistered"])
def test_memory_that_goes_away_is_an_error(server: Cohort, wire: str, done: str) -> None:
    """It may change after registration, for inputs and outputs; the server continues."""
    key = made("gone", ROW.tobytes())
    file = FOLDER / key[1:]

    def ask(client: Any, module: Any) -> None:
        client.register_system_shared_memory("r", key, SIZE)
        a = in_region(module, "a", "r")
        b = module.InferInput("b", [1, 2], "FP32")
        b.set_data_from_numpy(ROW)
        assert np.array_equal(client.infer("pair", [a, b]).as_numpy("sum"), ROW * 2)
        if done == "shortened":
            os.truncate(file, 3)
        elif done == "unregistered":
            client.unregister_system_shared_memory("r")
        else:
            file.unlink()
            if done == "replaced":
                file.write_bytes(bytes(SIZE))
        a2 = module.InferInput("a", [1, 2], "FP32")
        a2.set_data_from_numpy(ROW)
        with pytest.raises(InferenceServerException):
            client.infer("pair", [a2, b], outputs=[to_region(module, "sum", "r")])
        client.infer("pair", [a, b])

    says = {"shortened": "is too small: it has 3 bytes, and 8", "unregistered": "is not registered"}
    refused(server, wire, says.get(done, "was removed"), ask)


def test_more_than_a_request_may_have_is_not_read(server: Cohort, wire: str) -> None:
    """A sparse region of a terabyte takes no memory, and gives none."""
    key = made("sparse", b"")
    size = 1 << 40
    try:
        os.truncate(FOLDER / key[1:], size)
    except OSError:
        pytest.skip("/dev/shm takes no such file")

    def ask(client: Any, module: Any) -> None:
        client.register_system_shared_memory("r", key, size)
        tensor = module.InferInput("x", [1, size // 4], "FP32")
        tensor.set_shared_memory("r", size)
        client.infer("same", [tensor])

    refused(server, wire, "COHORT_MAX_BODY_MB", ask)


def test_the_number_of_regions_is_bounded(server: Cohort) -> None:
    """Each takes a descriptor."""
    key = made("many", bytes(SIZE))
    with connected(server, "http") as (client, _):
        for number in range(256):
            client.register_system_shared_memory(f"r{number}", key, SIZE)
        with pytest.raises(InferenceServerException, match="The limits are"):
            client.register_system_shared_memory("one too many", key, SIZE)
        with pytest.raises(InferenceServerException, match="The limits are"):
            client.register_system_shared_memory("r0 again", key, SIZE)
        client.unregister_system_shared_memory()
        client.register_system_shared_memory("r0", key, SIZE)
        with pytest.raises(InferenceServerException, match="registered already"):
            client.register_system_shared_memory("r0", key, SIZE)


def test_descriptors_are_given_back(server: Cohort) -> None:
    """Repeated registrations leave no descriptor open."""
    key = made("often", bytes(SIZE))
    descriptors = Path(f"/proc/{server.process.pid}/fd")
    with connected(server, "http") as (client, _):
        before = len(list(descriptors.iterdir()))
        for _ in range(50):
            client.register_system_shared_memory("r", key, SIZE)
            client.unregister_system_shared_memory("r")
        assert len(list(descriptors.iterdir())) < before + 10


def test_memory_of_cuda_is_refused(server: Cohort, wire: str) -> None:
    """The error is a sentence; there are no such regions to show or unregister."""

    def ask(client: Any, _: Any) -> None:
        assert names_of(client.get_cuda_shared_memory_status()) == []
        client.unregister_cuda_shared_memory("r")
        client.register_cuda_shared_memory("r", b64encode(bytes(64)), 0, SIZE)

    refused(server, wire, "CUDA's shared memory is not supported", ask)


@pytest.mark.parametrize("place", ["in", "out"])
def test_memory_may_overlap_itself(server: Cohort, wire: str, place: str) -> None:
    """An output may overlap its input or another output: each is written whole."""
    key = made("overlap", np.arange(6, dtype="f4").tobytes())
    with connected(server, wire) as (client, module):
        client.register_system_shared_memory("r", key, 24)
        inputs = [in_region(module, name, "r", SIZE, 4 * n) for n, name in enumerate("ab")]
        outputs = [to_region(module, "sum", "r", SIZE, 4)]
        if place == "out":
            outputs.append(to_region(module, "difference", "r", SIZE, 8))
        client.infer("pair", inputs, outputs=outputs)
    got = np.frombuffer((FOLDER / key[1:]).read_bytes(), "f4").tolist()
    assert got == ([0, 1, 3, 3, 4, 5] if place == "in" else [0, 1, -1, -1, 4, 5])


def test_without_the_setting_registering_is_refused(models: Path, tmp_path: Path) -> None:
    """The error names the setting; several workers refuse it as well."""
    key = made("off", bytes(SIZE))
    with cohort(models, tmp_path, grpc_port=free_port()) as server:
        for wire in ("http", "grpc"):
            refused(
                server,
                wire,
                "COHORT_SHARED_MEMORY is not set",
                lambda client, _: client.register_system_shared_memory("r", key, SIZE),
            )
    with cohort(models, tmp_path, workers=2, shared_memory=PREFIX) as server:
        refused(
            server,
            "http",
            "COHORT_WORKERS",
            lambda client, _: client.register_system_shared_memory("r", key, SIZE),
        )


def test_callers_with_keys_see_their_own(models: Path, tmp_path: Path) -> None:
    """Their regions, and memory whose key has their name; an operator's may have any."""
    keys = {name: f"key-of-{name}-0000000000" for name in ("ann", "bob")}
    (tmp_path / "keys.yaml").write_text(
        "".join(
            f"- name: {name}\n  sha256: {digest_of(key).hex()}\n  admin: {name == 'bob'}\n".lower()
            for name, key in keys.items()
        )
    )
    mine, plain = made("ann:x", ROW.tobytes()), made("plain", bytes(SIZE))
    with cohort(models, tmp_path, api_keys=tmp_path / "keys.yaml", shared_memory=PREFIX) as server:

        def post(who: str, path: str, **body: object) -> httpx.Response:
            headers = {"authorization": f"Bearer {keys[who]}"}
            return httpx.post(f"{server.url}/v2/{path}", json=body, headers=headers, timeout=60)

        register = "systemsharedmemory/region/r/register"
        assert httpx.post(f"{server.url}/v2/{register}", json={}).status_code == 401
        assert post("ann", register, key=plain, byte_size=SIZE).status_code == 403
        assert post("ann", register, key=mine, byte_size=SIZE).status_code == 200
        used = {"shared_memory_region": "r", "shared_memory_byte_size": SIZE}
        tensor = {"name": "x", "datatype": "FP32", "shape": [1, 2], "parameters": used}
        answer = post("ann", "models/same/infer", inputs=[tensor])
        assert answer.json()["outputs"][0]["data"] == ROW[0].tolist()
        assert "not registered" in post("bob", "models/same/infer", inputs=[tensor]).text
        assert post("bob", "systemsharedmemory/unregister").status_code == 200
        assert post("bob", register, key=plain, byte_size=SIZE).status_code == 200
        assert post("ann", "models/same/infer", inputs=[tensor]).json() == answer.json()
