"""Models with state: what they remember, for whom, and for how long."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import structlog
from onnx import TensorProto, helper

from cohort import Runtime
from cohort.errors import (
    DeadlineExceeded,
    InvalidInput,
    NotReady,
    Overloaded,
    SequenceEnded,
    TooLarge,
)
from tests import onnx_models
from tests.waiting import iterations, until

WIDTH = 3


def remembering(factor: float = 0.5, shape: tuple[Any, ...] = (1, "batch", WIDTH)) -> Any:
    """`x` [batch, 3], `h` → `y` = `h_out` = factor * h + x; where x is negative, it refuses."""
    floats = TensorProto.FLOAT
    graph = helper.make_graph(
        [
            helper.make_node("Mul", ["h", "factor"], ["faded"]),
            helper.make_node("Add", ["faded", "x"], ["h_out"]),
            helper.make_node("Reshape", ["h_out", "flat"], ["y"]),
        ],
        "remembering",
        [
            helper.make_tensor_value_info("x", floats, ["batch", WIDTH]),
            helper.make_tensor_value_info("h", floats, shape),
        ],
        [
            helper.make_tensor_value_info("y", floats, ["batch", WIDTH]),
            helper.make_tensor_value_info("h_out", floats, shape),
        ],
        [
            helper.make_tensor("factor", floats, [], [factor]),
            helper.make_tensor("flat", TensorProto.INT64, [2], [-1, WIDTH]),
        ],
    )
    opsets = [helper.make_opsetid("", 21)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def growing() -> Any:
    """`x` [batch, 1], `past` [batch, seen] → `past_out` has x at its end; `y` is its sum."""
    floats = TensorProto.FLOAT
    graph = helper.make_graph(
        [
            helper.make_node("Concat", ["past", "x"], ["past_out"], axis=1),
            helper.make_node("ReduceSum", ["past_out", "axes"], ["y"]),
        ],
        "growing",
        [
            helper.make_tensor_value_info("x", floats, ["batch", 1]),
            helper.make_tensor_value_info("past", floats, ["batch", "seen"]),
        ],
        [
            helper.make_tensor_value_info("y", floats, ["batch", 1]),
            helper.make_tensor_value_info("past_out", floats, ["batch", "seen_and_one"]),
        ],
        [helper.make_tensor("axes", TensorProto.INT64, [1], [1])],
    )
    opsets = [helper.make_opsetid("", 21)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def save(models: Path, model: onnx.ModelProto, config: str, version: int = 1) -> None:
    onnx_models.save(model, models / f"m/{version}/model.onnx")
    (models / "m/config.yaml").write_text(config)


STATE = "state: {h: h_out}\n"


@pytest.fixture
def models(tmp_path: Path) -> Iterator[Path]:
    save(tmp_path / "models", remembering(), STATE)
    yield tmp_path / "models"
    structlog.reset_defaults()


def runtime_of(models: Path, **settings: Any) -> Runtime:
    folders = {"state": models.parent / "state", "cache": models.parent / "cache"}
    return Runtime(models=models, **{**folders, **settings})


async def step(
    runtime: Runtime,
    x: Any,
    sequence: object = "a",
    *,
    start: bool = False,
    end: bool = False,
    **more: Any,
) -> Any:
    parameters: Mapping[str, object] = {
        "sequence_id": sequence, "sequence_start": start, "sequence_end": end
    }  # fmt: skip
    array = np.broadcast_to(np.asarray(x, np.float32).reshape(-1, 1), (np.size(x), WIDTH))
    answer = await runtime.infer("m", {"x": array.copy()}, parameters=parameters, **more)
    assert list(answer) == ["y"]  # the state is not answered
    return answer["y"][:, 0].tolist()


async def test_a_sequence_goes_on_where_it_was(models: Path) -> None:
    """The state begins with zeros, belongs to one id, and ends at its end or at a new start."""
    async with runtime_of(models) as runtime:
        assert await step(runtime, 8, start=True) == [8]
        assert await step(runtime, 0) == [4]
        assert await step(runtime, 1, "b", start=True) == [1]
        assert await step(runtime, 1) == [3]
        assert await step(runtime, 2, start=True) == [2]
        assert await step(runtime, 0, end=True) == [1]
        with pytest.raises(InvalidInput, match="sequence 'a' has not started"):
            await step(runtime, 1)
        assert await step(runtime, 0, "b") == [0.5]


@pytest.mark.parametrize("shape", [(1, "batch", WIDTH), ("batch", WIDTH), (1, None, WIDTH)])
async def test_state_has_its_rows_on_any_axis(models: Path, shape: Any) -> None:
    """A sequence may have several rows, the same number in each request."""
    save(models, remembering(shape=shape), STATE)
    async with runtime_of(models) as runtime:
        assert await step(runtime, [8, 4], start=True) == [8, 4]
        assert await step(runtime, [1, 1]) == [5, 3]
        with pytest.raises(InvalidInput, match=r"sequence 'a' must continue as it began.* 2.* 1"):
            await step(runtime, [1])
        assert await step(runtime, [0, 0]) == [2.5, 1.5]


async def test_a_state_may_grow(models: Path) -> None:
    """An open dimension that is not the callers' begins empty; past the limit the sequence ends."""
    save(models, growing(), "state: {past: past_out}\nsequences: {max_mb: 0.001}\n")

    async def add(x: float, **flags: bool) -> Any:
        parameters: Mapping[str, object] = {"sequence_id": 1, **flags}
        inputs = {"x": np.array([[x]], np.float32)}
        return (await runtime.infer("m", inputs, parameters=parameters))["y"].item()

    async with runtime_of(models) as runtime:
        assert await add(1, sequence_start=True) == 1
        assert await add(2) == 3
        assert await add(3) == 6
        for _ in range(259):
            await add(1)
        with pytest.raises(Overloaded, match=r"sequences take more than 0\.001 MB"):
            await add(1)
        with pytest.raises(InvalidInput, match="sequence '1' has not started"):
            await add(1)


async def test_what_a_request_says_of_its_sequence_is_checked(models: Path) -> None:
    """Each mistake is named, and the error contains "sequence"."""
    wrong: list[Mapping[str, object]] = [
        {}, {"sequence_id": 0}, {"sequence_id": ""}, {"sequence_id": True}, {"sequence_id": 1.5},
        {"sequence_id": "x" * 300}, {"sequence_id": 1, "sequence_start": "yes"},
        {"sequence_id": 2.0**70, "sequence_start": True},
        {"sequence_id": 1, "sequence_start": True, "sequence_end": 2}, {"sequence_id": 7},
    ]  # fmt: skip
    inputs = {"x": np.ones((1, WIDTH), np.float32)}
    async with runtime_of(models) as runtime:
        for parameters in wrong:
            with pytest.raises(InvalidInput, match="sequence"):
                await runtime.infer("m", inputs, parameters=parameters)
        h = np.ones((1, 1, WIDTH), np.float32)
        with pytest.raises(InvalidInput, match="'h' not found"):
            await runtime.infer("m", {**inputs, "h": h}, parameters={"sequence_id": 1})


async def test_requests_of_a_sequence_run_in_order(models: Path) -> None:
    """All are sent at once; each begins with the state of the one before."""
    async with runtime_of(models) as runtime:
        tasks = [step(runtime, 8, start=True), *(step(runtime, 0) for _ in range(20))]
        answers = await asyncio.gather(*tasks)
    assert [answer[0] for answer in answers] == [8 / 2**n for n in range(21)]


async def test_many_sequences_go_on_in_step(models: Path) -> None:
    """Each has the answers that it has alone, whatever sequences share its runs."""
    async with runtime_of(models) as runtime:

        async def one(number: int) -> list[float]:
            return [
                (await step(runtime, number + n, number, start=not n, end=n == 5))[0]
                for n in range(6)
            ]

        found = await asyncio.gather(*(one(number) for number in range(1, 60)))
    for number, answers in enumerate(found, 1):
        wanted, state = [], 0.0
        for n in range(6):
            state = state / 2 + number + n
            wanted.append(state)
        np.testing.assert_allclose(answers, wanted, rtol=1e-6)


async def test_a_request_that_leaves_changes_nothing(models: Path) -> None:
    """Those that wait for it run with the state from before; so do those after a refused one."""
    async with runtime_of(models) as runtime:
        await step(runtime, 8, start=True)
        tasks = [asyncio.create_task(step(runtime, 0)) for _ in range(3)]
        await iterations(1)
        for task in tasks[:2]:
            task.cancel()
        assert await tasks[2] in ([4], [2], [1])
        before = (await step(runtime, 0))[0]
        with pytest.raises(InvalidInput):
            await step(runtime, [1, 2])
        with pytest.raises(DeadlineExceeded):
            await step(runtime, 1, timeout=1e-9)
        assert await step(runtime, 0) == [before / 2]


async def test_idle_sequences_are_forgotten(models: Path) -> None:
    """After idle_seconds the state is freed, and its id has not started."""
    save(models, remembering(), f"{STATE}sequences: {{idle_seconds: 0.05}}\n")
    async with runtime_of(models) as runtime:
        await step(runtime, 8, start=True)
        table = _table(runtime)
        assert table.size > 0
        await until(lambda: not table.sequences)
        assert table.size == 0
        with pytest.raises(InvalidInput, match=r"no request for 0\.05 s"):
            await step(runtime, 1)
        counts = runtime._core.sequences.counts("m", 1)
        assert (counts.open, counts.size, counts.idle) == (0, 0, 1)


async def test_number_and_bytes_are_bounded(models: Path) -> None:
    """One sequence too many is refused until another ends; a state that is too large at once."""
    save(models, remembering(), f"{STATE}sequences: {{max_sequences: 2, max_mb: 0.001}}\n")
    async with runtime_of(models) as runtime:
        await step(runtime, 1, "a", start=True)
        await step(runtime, 1, "b", start=True)
        with pytest.raises(Overloaded, match="2 sequences are open"):
            await step(runtime, 1, "c", start=True)
        await step(runtime, 1, "b", end=True)
        with pytest.raises(TooLarge, match="sequence needs 12000 bytes"):
            await step(runtime, range(1000), "c", start=True)
        await step(runtime, 1, "c", start=True)
        await step(runtime, 1, "a", end=True)
        await step(runtime, 1, "c", end=True)
        assert _table(runtime).size == 0


async def test_another_version_has_other_sequences(models: Path) -> None:
    """After a swap the error names the change of version, and the sequence may begin again."""
    async with runtime_of(models, watch_seconds=0.05) as runtime:
        await step(runtime, 8, start=True)
        onnx_models.save(remembering(0.25), models / "m/2/model.onnx")
        await until(lambda: _version(runtime) == 2)
        with pytest.raises(SequenceEnded, match="sequence 'a' ended because the version changed"):
            await step(runtime, 0)
        shutil.rmtree(models / "m/1")
        await until(lambda: len(runtime._core.registry.catalog["m"].versions) == 1)
        assert _table(runtime).version == 2
        with pytest.raises(SequenceEnded, match="version 1 of the model, and now 2 answers"):
            await step(runtime, 0)
        assert await step(runtime, 8, start=True) == [8]
        assert await step(runtime, 0) == [2]


async def test_an_id_is_one_sequence_whatever_the_version(models: Path) -> None:
    """If versions alternate, a restarted sequence does not continue on the former version."""
    save(models, remembering(0.25), f"{STATE}versions: all\n", version=2)
    async with runtime_of(models) as runtime:
        assert await step(runtime, 8, start=True, version=1) == [8]
        assert await step(runtime, 8, "b", start=True, version=1) == [8]
        assert await step(runtime, 4, start=True, version=2) == [4]
        with pytest.raises(SequenceEnded, match="version 2 of the model, and now 1 answers"):
            await step(runtime, 0, version=1)
        assert await step(runtime, 0, version=2) == [1]
        assert await step(runtime, 0, "b", version=1) == [4]
        first, second = (runtime._core.sequences.counts("m", number) for number in (1, 2))
        assert (first.open, second.open) == (1, 1)


async def test_state_may_begin_with_other_numbers(models: Path) -> None:
    """`sequences.initial` contains them."""
    save(models, remembering(), f"{STATE}sequences: {{initial: {{h: 6}}}}\n")
    async with runtime_of(models) as runtime:
        assert await step(runtime, 1, start=True) == [4]


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ("state: {g: h_out}", r"m/config\.yaml: state\.g: the model has no such input"),
        ("state: {h: out}", r"state\.h: the model has no output out"),
        ("state: {h: y}", r"state\.h: .*input FP32 \[1, batch, 3\], output FP32 \[batch, 3\]"),
        ("state: {h: h_out}\nsequences: {initial: {x: 1}}", r"sequences\.initial\.x"),
    ],
)
async def test_what_is_no_state_of_the_model_is_named(models: Path, config: str, why: str) -> None:
    """The version is unavailable, with the key and both shapes."""
    save(models, remembering(), config + "\n")
    async with runtime_of(models) as runtime:
        with pytest.raises(NotReady, match=why):
            await step(runtime, 1, start=True)


def _version(runtime: Runtime) -> int:
    ready = runtime._core.registry.model("m").ready
    return max(ready)


def _table(runtime: Runtime) -> Any:
    (version,) = runtime._core.registry.catalog["m"].versions.values()
    engine: Any = version.engine
    return engine._table
