"""Engines that prepare what callers send, and finish what they get: any step, any order of ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import structlog

from cohort import Runtime
from cohort.errors import DeadlineExceeded, InvalidInput, NotReady, Overloaded
from cohort.processing import processing as under_test
from cohort.processing.outputs import read_labels
from cohort.processing.steps import Check, StepContext, files_spec
from cohort.processing.workroom import Workroom
from cohort.tensors import Array, Arrays
from tests import onnx_models
from tests.waiting import wait_until

ROWS: Any = np.array([[0.5, -1.25, 3.0, 0.001], [1.0, 2.0, 3.0, 4.0]], np.float32)


class FloatsOfBytes:
    """Each element is four floats as bytes. Waits while `gate` is closed."""

    def __init__(self, context: StepContext) -> None:
        self.spec = files_spec(context.name)
        self.fills = ["x"]
        self.example = np.array([bytes(16)], np.object_)
        self.description = "four floats"
        self.gate = threading.Event()
        self.gate.set()
        self.begun = 0
        made.append(self)

    def is_short(self, values: Array) -> bool:
        return len(values) == 1 and self.gate.is_set()

    def prepared_bytes(self, values: Array, check: Check) -> int:
        return 16 * len(values)

    def prepare(self, values: Array, check: Check) -> Arrays:
        self.begun += 1
        while not self.gate.wait(0.01):
            check()
        if any(len(one) != 16 for one in values):
            raise InvalidInput(f"input '{self.spec.name}': not four floats")
        flat = np.frombuffer(b"".join(values.tolist()), np.float32)
        return {"x": flat.reshape(-1, 4)}


made: list[FloatsOfBytes] = []


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A model "mlp" whose input comes as bytes, with softmax and labels."""
    made.clear()
    monkeypatch.setattr(under_test, "STEPS", {"tokenizer": FloatsOfBytes})
    folder = tmp_path / "models/mlp"
    onnx_models.save(onnx_models.mlp(), folder / "1/model.onnx")
    (folder / "config.yaml").write_text(
        "inputs: {x: {tokenizer: any}}\noutputs: {y: {softmax: true, labels: [a, b, c]}}\n"
    )
    yield tmp_path / "models"
    structlog.reset_defaults()


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, Any]:
    return {"state": tmp_path / "state", "cache": tmp_path / "cache"}


def sent(rows: Any) -> dict[str, Any]:
    values = np.empty(len(rows), np.object_)
    values[:] = [row.tobytes() for row in rows]
    return {"x": values}


def expected(models: Path, rows: Any) -> Any:
    session = onnxruntime.InferenceSession(str(models / "mlp/1/model.onnx"))
    (scores,) = session.run(None, {"x": rows})
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def close(answer: Any, wanted: Any) -> None:
    np.testing.assert_allclose(answer["y"], wanted, rtol=1e-5)


async def test_what_is_sent_is_prepared_and_what_is_answered_finished(
    models: Path, folders: dict[str, Any]
) -> None:
    """Short requests on the event loop and long ones on a thread give the same."""
    async with Runtime(models=models, **folders) as runtime:
        for rows in (ROWS[:1], ROWS, np.repeat(ROWS, 40, axis=0), np.repeat(ROWS, 4000, axis=0)):
            answer = await runtime.infer("mlp", sent(rows))
            close(answer, expected(models, rows))


async def test_one_whose_input_is_wrong_fails_alone(models: Path, folders: dict[str, Any]) -> None:
    """Other requests in the same batch get their answers."""
    async with Runtime(models=models, **folders) as runtime:
        wrong = {"x": np.array([b"short", b"er"], np.object_)}
        answers = await asyncio.gather(
            *(runtime.infer("mlp", sent(ROWS)) for _ in range(8)),
            runtime.infer("mlp", wrong),
            return_exceptions=True,
        )
    assert isinstance(answers[-1], InvalidInput)
    for answer in answers[:-1]:
        close(answer, expected(models, ROWS))


async def test_a_deadline_ends_the_wait_for_preparation(
    models: Path, folders: dict[str, Any]
) -> None:
    """The caller is answered at once, and the work ends later; the next request is served."""
    async with Runtime(models=models, **folders) as runtime:
        await runtime.infer("mlp", sent(ROWS))
        (step,) = made
        step.gate.clear()
        with pytest.raises(DeadlineExceeded):
            await runtime.infer("mlp", sent(ROWS), timeout=0.05)
        step.gate.set()
        answer = await runtime.infer("mlp", sent(ROWS))
        close(answer, expected(models, ROWS))


async def test_work_for_one_who_left_ends(models: Path, folders: dict[str, Any]) -> None:
    """A task that is cancelled while its input is prepared leaves nothing behind."""
    async with Runtime(models=models, **folders) as runtime:
        await runtime.infer("mlp", sent(ROWS))
        (step,) = made
        step.gate.clear()
        tasks = [asyncio.create_task(runtime.infer("mlp", sent(ROWS))) for _ in range(6)]
        await asyncio.to_thread(wait_until, lambda: step.begun >= 2)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        workroom = runtime._core.workroom
        await asyncio.to_thread(wait_until, lambda: workroom.used == 0)
        step.gate.set()
        answer = await runtime.infer("mlp", sent(ROWS))
        close(answer, expected(models, ROWS))


def test_memory_for_prepared_inputs_is_bounded() -> None:
    """One request may take more than there is; a second waits for no memory, but is refused."""
    room = Workroom(1, 100)
    room.take(500)
    with pytest.raises(Overloaded, match="prepared"):
        room.take(1)
    room.give_back(500)
    room.take(60)
    room.take(40)
    room.close()


async def test_what_does_not_fit_the_model_is_named(models: Path, folders: dict[str, Any]) -> None:
    """The version is unavailable, and its reason contains the file, the key and both numbers."""
    config = models / "mlp/config.yaml"
    config.write_text("outputs: {y: {labels: [a, b]}}\n")
    async with Runtime(models=models, **folders) as runtime:
        with pytest.raises(NotReady, match=r"mlp/config\.yaml: outputs\.y\.labels: 2 labels .* 3"):
            await runtime.infer("mlp", {"x": ROWS})


def test_only_line_feeds_end_a_label(tmp_path: Path) -> None:
    """Other separators of Unicode may be part of one: no later label moves to another column."""
    (tmp_path / "labels.txt").write_bytes("a\u2028b\r\nc\x0cd\ne\n\n".encode())
    assert read_labels("labels", tmp_path, "labels.txt") == ["a\u2028b", "c\x0cd", "e"]
