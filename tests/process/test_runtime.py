"""Models in a program of one's own: a runtime without HTTP, and the application under a prefix."""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import hypercorn
import hypercorn.asyncio
import numpy as np
import onnxruntime
import pytest
import structlog
import uvicorn
from fastapi import FastAPI

import cohort
from cohort import Runtime, create_app
from cohort.errors import DeadlineExceeded, InvalidInput, ModelNotFound, NotReady, VersionNotFound
from cohort.settings import SettingsInvalid
from tests import onnx_models
from tests.waiting import PATIENCE, iterations, until, wait_until

ROWS = np.array([[0.5, -1.25, 3.0, 0.001], [1.0, 2.0, 3.0, 4.0]], np.float32)


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A folder with the model "mlp"."""
    onnx_models.save(onnx_models.mlp(), tmp_path / "models/mlp/1/model.onnx")
    return tmp_path / "models"


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, Any]:
    """Separate folders for its state and cache."""
    return {"state": tmp_path / "state", "cache": tmp_path / "cache"}


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    """What a runtime does to logging is this test's alone."""
    yield
    structlog.reset_defaults()


def only(answer: dict[str, Any]) -> Any:
    (output,) = answer.values()
    return output


def expected(models: Path, rows: Any) -> Any:
    session = onnxruntime.InferenceSession(str(models / "mlp/1/model.onnx"))
    (output,) = session.run(None, {session.get_inputs()[0].name: rows})
    return output


async def test_tasks_get_what_the_model_gives(models: Path, folders: dict[str, Any]) -> None:
    """Each gets the outputs of its rows as if they ran alone, though they share runs."""
    async with Runtime(models=models, **folders) as runtime:
        rows = [ROWS[:1] * factor for factor in range(1, 33)]
        answers = await asyncio.gather(*(runtime.infer("mlp", {"x": one}) for one in rows))
        for one, answer in zip(rows, answers, strict=True):
            np.testing.assert_allclose(only(answer), expected(models, one), rtol=1e-5)


async def test_lists_are_taken_and_the_only_model_needs_no_name(
    models: Path, folders: dict[str, Any]
) -> None:
    """This is as over HTTP; an output may be chosen, and a version pinned."""
    async with Runtime(models=models, **folders) as runtime:
        answer = await runtime.infer(None, {"x": ROWS.tolist()}, version="1", timeout=60)
        np.testing.assert_allclose(only(answer), expected(models, ROWS), rtol=1e-5)
        assert [*await runtime.infer("mlp", {"x": ROWS}, outputs=[*answer])] == [*answer]


async def test_an_answer_keeps_no_others_rows(models: Path, folders: dict[str, Any]) -> None:
    """A task may keep it for long, and may write to it."""
    async with Runtime(models=models, **folders) as runtime:
        asked = [runtime.infer("mlp", {"x": ROWS[:1]}) for _ in range(8)]
        for answer in await asyncio.gather(*asked):
            output = only(answer)
            assert output.base is None or output.base.nbytes <= 2 * output.nbytes


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        ({"model": "nobody", "inputs": {}}, ModelNotFound),
        ({"model": "mlp", "inputs": {"x": ROWS}, "version": "7"}, VersionNotFound),
        ({"model": "mlp", "inputs": {}}, InvalidInput),
        ({"model": "mlp", "inputs": {"x": ROWS.astype(np.float64)}}, InvalidInput),
        ({"model": "mlp", "inputs": {"x": ROWS}, "outputs": ["z"]}, InvalidInput),
        ({"model": "mlp", "inputs": {"x": ROWS}, "version": 7}, VersionNotFound),
        ({"model": "mlp", "inputs": {"x": [[1, 2], [3]]}}, InvalidInput),
        ({"model": "mlp", "inputs": {"x": [["1", "2", "3", "4"]]}}, InvalidInput),
        ({"model": "mlp", "inputs": {"x": [[{}] * 4]}}, InvalidInput),
        ({"model": "mlp", "inputs": {"x": [[1e300] * 4]}}, InvalidInput),
        ({"model": "mlp", "inputs": {"x": object()}}, InvalidInput),
        ({"model": "mlp", "inputs": {"x": ROWS}, "timeout": float("nan")}, InvalidInput),
        ({"model": "mlp", "inputs": {"x": ROWS}, "timeout": 0.0}, DeadlineExceeded),
    ],
)
async def test_errors_are_those_of_every_api(
    models: Path, folders: dict[str, Any], asked: dict[str, Any], error: type[Exception]
) -> None:
    """They are raised where they are awaited, and the runtime continues."""
    async with Runtime(models=models, **folders) as runtime:
        with pytest.raises(error):
            await runtime.infer(**asked)
        assert await runtime.infer("mlp", {"x": ROWS})


async def test_a_request_that_fails_in_a_rollout_is_freed_without_the_garbage_collector(
    tmp_path: Path, folders: dict[str, Any]
) -> None:
    """Its error, which the rollout counts, refers to its inputs."""
    for version in (1, 2):
        onnx_models.save(onnx_models.table(), tmp_path / f"models/table/{version}/model.onnx")
    rollouts = tmp_path / "rollouts.yaml"
    rollouts.write_text(
        "table: {variants: {a: {version: 1, weight: 1}, b: {version: 2, weight: 1}}}\n"
    )
    async with Runtime(models=tmp_path / "models", rollouts=rollouts, **folders) as runtime:
        asked = []
        gc.disable()
        try:
            for _ in range(5):
                index = np.array([[9]])
                asked.append(weakref.ref(index))
                with suppress(InvalidInput):
                    await runtime.infer("table", {"index": index})
            del index
            await iterations()
            assert [inputs() for inputs in asked] == [None] * 5
        finally:
            gc.enable()


async def test_a_runtime_that_has_ended_takes_nothing(
    models: Path, folders: dict[str, Any]
) -> None:
    """A wrong setting is reported before it begins."""
    runtime = Runtime(models=models, **folders)
    async with runtime:
        pass
    with pytest.raises((NotReady, ModelNotFound)):
        await runtime.infer("mlp", {"x": ROWS})
    with pytest.raises(SettingsInvalid, match="COHORT_MAX_CONCURRENCY"):
        Runtime(models=models, max_concurrency="many")


async def test_an_error_of_the_program_stays_what_it_is(
    models: Path, folders: dict[str, Any]
) -> None:
    """A program catches what it raised, or what a model did, around the runtime."""
    with pytest.raises(ModelNotFound):
        async with Runtime(models=models, **folders) as runtime:
            await runtime.infer("nobody", {})


async def test_a_runtime_is_entered_once(models: Path, folders: dict[str, Any]) -> None:
    """A second time is refused, and does not end the first."""
    async with Runtime(models=models, **folders) as runtime:
        with pytest.raises(RuntimeError, match="can be entered only once"):
            async with runtime:
                pass
        assert await runtime.infer("mlp", {"x": ROWS})


async def test_who_gives_up_entering_leaves_no_task(models: Path, folders: dict[str, Any]) -> None:
    """What had begun is ended."""
    before = asyncio.all_tasks()
    entering = asyncio.create_task(Runtime(models=models, **folders).__aenter__())
    await until(lambda: len(asyncio.all_tasks() - before) > 1)
    entering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await entering
    await until(lambda: asyncio.all_tasks() <= before)


async def test_what_it_logs_is_the_programs(
    models: Path, folders: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """It logs with the standard library; nothing is printed."""
    caplog.set_level("INFO", logger="cohort")
    async with Runtime(models=models, **folders):
        pass
    assert any(line.startswith("version ready model=mlp version=1") for line in caplog.messages)


def test_only_what_is_public_is_offered() -> None:
    """The rest is found where it is."""
    assert cohort.__all__ == ["Runtime", "create_app"]
    with pytest.raises(AttributeError, match="no attribute 'serve'"):
        _ = cohort.serve


async def test_texts_are_taken_as_numpy_has_them(tmp_path: Path, folders: dict[str, Any]) -> None:
    """Arrays of one width, arrays of objects and lists give the same answer."""
    onnx_models.save(onnx_models.strings(), tmp_path / "models/pets/1/model.onnx")
    texts = [["cat"], ["ox"], ["dog"]]
    async with Runtime(tmp_path / "models", **folders) as runtime:
        for given in (np.array(texts), np.array(texts, object), texts):
            answer = await runtime.infer("pets", {"text": given}, outputs=["code"])
            assert answer["code"].tolist() == [[1], [-1], [2]]


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ((1, {"x": ROWS}), {}),
        (("mlp", ROWS), {}),
        (("mlp", {1: ROWS}), {}),
        (("mlp", {"x": ROWS}), {"outputs": "y"}),
        (("mlp", {"x": ROWS}), {"outputs": b"y"}),
        (("mlp", {"x": ROWS}), {"outputs": {"y"}}),
        (("mlp", {"x": ROWS}), {"outputs": 1}),
    ],
)
async def test_a_slip_in_the_types_of_arguments_is_named(
    models: Path, folders: dict[str, Any], arguments: tuple[Any, Any], options: dict[str, Any]
) -> None:
    """Python's name is used; otherwise a name's letters would be looked up as outputs."""
    async with Runtime(models, **folders) as runtime:
        with pytest.raises(TypeError, match=r"model must|inputs must|input's name|outputs must"):
            await runtime.infer(*arguments, **options)


@pytest.mark.parametrize("digits", [400, 5000])
async def test_an_integer_that_no_json_has_is_an_invalid_input(
    models: Path, folders: dict[str, Any], digits: int
) -> None:
    """It is the program's mistake, not the server's; a message does not write out its digits."""
    async with Runtime(models, **folders) as runtime:
        with pytest.raises(InvalidInput, match="number out of range"):
            await runtime.infer("mlp", {"x": [[1, 2, 3, 10**digits]]})


def mounted(inner: FastAPI) -> FastAPI:
    """Return a user's application, which has it under /ml."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with inner.router.lifespan_context(inner):
            yield

    outer = FastAPI(lifespan=lifespan)

    @outer.get("/predict")
    async def predict() -> str:
        """Return a separate route with the name of one of Cohort's."""
        return "mine"

    outer.mount("/ml", inner)
    return outer


@contextmanager
def serving(app: FastAPI) -> Iterator[str]:
    """Yield the application under uvicorn, as people start it; gives its address."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_until(lambda: server.started)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(PATIENCE)


@contextmanager
def serving_by_hypercorn(app: FastAPI) -> Iterator[str]:
    """The application under an ASGI server that shares nothing with uvicorn; gives its address."""
    config = hypercorn.Config()
    stop = threading.Event()

    async def stopped() -> None:
        await asyncio.to_thread(stop.wait)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        config.bind = [f"fd://{listener.fileno()}"]
        port = listener.getsockname()[1]
        run = hypercorn.asyncio.serve(app, config, shutdown_trigger=stopped)  # type: ignore[arg-type]
        thread = threading.Thread(target=asyncio.run, args=(run,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            stop.set()
            thread.join(PATIENCE)
            listener.detach()  # the server has closed it


@pytest.mark.parametrize("serving_by", [serving, serving_by_hypercorn])
def test_it_is_mounted_in_another_application(
    models: Path,
    folders: dict[str, Any],
    serving_by: Callable[[FastAPI], AbstractContextManager[str]],
) -> None:
    """Its paths do not depend on the prefix; the other routes stay the others'."""
    with serving_by(mounted(create_app(models, **folders))) as address:
        wait_until(lambda: httpx.get(f"{address}/ml/health/ready").status_code == 200)
        body = {"inputs": {"x": ROWS.tolist()}}
        answer = httpx.post(f"{address}/ml/models/mlp/predict", json=body)
        assert answer.status_code == 200, answer.text
        output = only(answer.json()["outputs"])
        np.testing.assert_allclose(output, expected(models, ROWS), rtol=1e-5)
        assert httpx.post(f"{address}/models/mlp/predict", json=body).status_code == 404
        assert httpx.get(f"{address}/predict").json() == "mine"
        assert httpx.get(f"{address}/ml/v2/models/mlp").json()["name"] == "mlp"


def test_keys_are_asked_for_under_a_prefix_too(
    models: Path, folders: dict[str, Any], tmp_path: Path
) -> None:
    """They are required where the API needs one, and not on open routes."""
    keys = tmp_path / "keys.yaml"
    keys.write_text("[]\n")
    with serving(mounted(create_app(models, api_keys=keys, **folders))) as address:
        wait_until(lambda: httpx.get(f"{address}/ml/health/ready").status_code == 200)
        for path in ("/ml/models", "/ml/models/mlp", "/ml/health/ready/more"):
            assert httpx.get(f"{address}{path}").status_code == 401, path
        assert httpx.get(f"{address}/ml/").json()["status"] == "alive"


def test_rules_of_paths_hold_under_a_prefix(models: Path, folders: dict[str, Any]) -> None:
    """Health is open for any host, `/` leads to the page, what is guarded has one spelling."""
    inner = create_app(models, hosts=["ours.example"], **folders)
    ours = {"host": "ours.example"}
    with serving(mounted(inner)) as address:
        wait_until(lambda: httpx.get(f"{address}/ml/health/ready").status_code == 200)
        assert httpx.get(f"{address}/ml/models").status_code == 403
        assert httpx.get(f"{address}/ml/models/", headers=ours).status_code == 200
        assert httpx.get(f"{address}/ml/metrics/", headers=ours).status_code == 404
        front = httpx.get(f"{address}/ml/", headers={**ours, "accept": "text/html"})
        assert front.headers["location"].startswith("/ml/")
        slip = httpx.get(f"{address}/ml/healthz", headers=ours).json()["error"]
        assert "did you mean GET /health/live" in slip


async def test_an_error_of_the_program_around_it_ends_no_process(
    models: Path, folders: dict[str, Any]
) -> None:
    """It is the program's, and reaches it as it is."""
    ended: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: ended.append(number))
    try:
        inner = create_app(models, **folders)
        with pytest.raises(ZeroDivisionError):
            async with inner.router.lifespan_context(inner):
                _ = 1 // 0
    finally:
        signal.signal(signal.SIGTERM, before)
    assert not ended
