"""Answers that are kept: for which inputs, for how long, and who shares a run."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
import weakref
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import pytest
import structlog

from cohort import Runtime
from cohort.batching import Outputs
from cohort.errors import (
    CohortError,
    DeadlineExceeded,
    InferenceFailed,
    InvalidInput,
    NotReady,
)
from cohort.registry import RequestNotes
from cohort.response_cache import AnswerStore, CacheCounts, CachedEngine, key_of
from cohort.response_cache.store import ENTRY_BYTES, INPUT_BYTES
from cohort.tensors import BY_NAME
from tests import onnx_models
from tests.engines import ControlledEngine
from tests.waiting import iterations, until

ROW: Any = np.ones((1, 2), np.float32)


class Answers:
    """The results of replies, in their order."""

    def __init__(self) -> None:
        self.got: list[Any] = []

    def __call__(self, outputs: Outputs | None, error: CohortError | None) -> None:
        self.got.append(outputs[0].tolist() if outputs is not None else error)


@pytest.fixture
def inner() -> ControlledEngine:
    return ControlledEngine()


@pytest.fixture
def counts() -> CacheCounts:
    return CacheCounts()


@pytest.fixture
def engine(inner: ControlledEngine, counts: CacheCounts) -> Iterator[CachedEngine]:
    with ThreadPoolExecutor(1) as pool:

        def submit(work: Any, size: int) -> Future[Any]:
            return pool.submit(work)

        yield CachedEngine(inner, 1 << 20, counts, submit)


def answer(inner: ControlledEngine, place: int = -1, error: CohortError | None = None) -> None:
    request = inner.requests[place]
    request.answer(None if error else inner.model(request.inputs), error)


async def test_equal_inputs_are_run_once(
    engine: CachedEngine, inner: ControlledEngine, counts: CacheCounts
) -> None:
    """Values, shapes, datatypes and names are what is compared."""
    replies = Answers()
    engine.submit({"x": ROW}, replies)
    answer(inner)
    for _ in range(3):
        engine.submit({"x": ROW.copy()}, replies)
    await iterations(2)
    assert replies.got == [[[2, 2]]] * 4
    assert len(inner.requests) == 1
    for other in (ROW * 2, ROW.reshape(2, 1), ROW.view(np.int32), -0.0 * ROW, 0.0 * ROW):
        engine.submit({"x": other}, replies)
    engine.submit({"z": ROW}, replies)
    assert len(inner.requests) == 7
    assert (counts.hits, counts.misses) == (3, 7)


async def test_requests_that_come_meanwhile_wait_for_the_run(
    engine: CachedEngine, inner: ControlledEngine, counts: CacheCounts
) -> None:
    """They wait even if the first of them leaves; the run is cancelled once all have left."""
    replies = Answers()
    tickets = [engine.submit({"x": ROW}, replies) for _ in range(4)]
    assert len(inner.requests) == 1
    assert [one.remembered for one in tickets] == [False, True, True, True]
    tickets[0].cancel()
    tickets[2].cancel()
    assert not inner.requests[0].cancelled
    answer(inner)
    assert replies.got == [[[2, 2]]] * 2
    for ticket in [engine.submit({"x": ROW * 3}, replies) for _ in range(2)]:
        ticket.cancel()
    assert inner.requests[1].cancelled
    engine.submit({"x": ROW * 3}, replies)
    assert len(inner.requests) == 3


async def test_errors_are_not_kept(engine: CachedEngine, inner: ControlledEngine) -> None:
    """All who wait for the run get it, and the next request runs again."""
    replies = Answers()
    for _ in range(2):
        engine.submit({"x": ROW}, replies)
    answer(inner, error=InferenceFailed("no"))
    assert [str(one) for one in replies.got] == ["no", "no"]
    engine.submit({"x": ROW}, replies)
    assert len(inner.requests) == 2
    inner.refusal = NotReady("closing")
    with pytest.raises(NotReady):
        engine.submit({"x": ROW * 2}, replies)
    inner.refusal = None
    engine.submit({"x": ROW * 2}, replies)
    assert len(inner.requests) == 3


async def test_deadlines_are_each_request_s_own(
    engine: CachedEngine, inner: ControlledEngine
) -> None:
    """One that waits for another's run is answered in its time; a later one takes a run over."""
    replies, late = Answers(), Answers()
    engine.submit({"x": ROW}, replies)
    engine.submit({"x": ROW}, late, deadline=0.0, timeout=0.5)
    patient = engine.submit({"x": ROW}, replies)
    await until(lambda: bool(late.got))
    assert isinstance(late.got[0], DeadlineExceeded)
    answer(inner, error=DeadlineExceeded(1))
    assert not patient.remembered
    answer(inner)
    assert isinstance(replies.got[0], DeadlineExceeded)
    assert replies.got[1:] == [[[2, 2]]]


async def test_no_store_goes_past_it(
    engine: CachedEngine, inner: ControlledEngine, counts: CacheCounts
) -> None:
    """It neither takes an answer that is kept, nor leaves one."""
    replies = Answers()
    for _ in range(2):
        engine.submit_with(RequestNotes(no_store=True), {"x": ROW}, replies)
        answer(inner)
    engine.submit({"x": ROW}, replies)
    answer(inner)
    engine.submit_with(RequestNotes(no_store=True), {"x": ROW}, replies)
    assert len(inner.requests) == 4
    assert (counts.hits, counts.misses) == (0, 1)


async def test_an_answer_that_is_kept_may_be_left(
    engine: CachedEngine, inner: ControlledEngine
) -> None:
    """A caller who leaves at once gets nothing."""
    replies = Answers()
    engine.submit({"x": ROW}, replies)
    answer(inner)
    engine.submit({"x": ROW}, replies).cancel()
    await iterations(2)
    assert len(replies.got) == 1


async def test_keys_of_large_inputs_are_made_on_a_thread(
    engine: CachedEngine, inner: ControlledEngine, counts: CacheCounts
) -> None:
    """They are found again as small ones are; one who left is not run."""
    large: Any = np.ones((100_000, 2), np.float32)
    replies = Answers()
    engine.submit({"x": large}, replies)
    assert not inner.requests
    assert engine.waiting == 1
    await until(lambda: len(inner.requests) == 1)
    answer(inner)
    engine.submit({"x": large}, replies)
    await until(lambda: len(replies.got) == 2)
    engine.submit({"x": large * 2}, replies).cancel()
    await until(lambda: engine.waiting == 0)
    assert (counts.hits, counts.misses, len(inner.requests)) == (1, 1, 1)


def test_bytes_are_bounded() -> None:
    """What was not asked for longest goes; what is too large for all of it is not kept."""
    counts = CacheCounts()
    keys = [key_of({"x": np.full(50, number, np.float32)}) for number in range(5)]
    size = ENTRY_BYTES + INPUT_BYTES + 200 + 400
    store = AnswerStore(3 * size, counts)
    for number in range(3):
        store.put(keys[number], [np.zeros(100, np.float32)])
    assert store.get(keys[0]) is not None
    store.put(keys[3], [np.zeros(100, np.float32)])
    assert [store.get(key) is not None for key in keys[:4]] == [True, False, True, True]
    store.put(keys[4], [np.zeros(10_000, np.float32)])
    assert store.get(keys[4]) is None
    assert counts.size == 3 * size
    store.clear()
    assert counts.size == 0


@pytest.mark.parametrize("width", [1, 128, 1000])
def test_keys_are_a_part_of_what_is_kept(width: int) -> None:
    """Those of a table with many columns take more than its answers: the memory is what counts."""
    counts = CacheCounts()
    store = AnswerStore(1 << 40, counts)
    gc.collect()  # tracemalloc does not count tuples of free lists
    tracemalloc.start()
    try:
        begun = tracemalloc.get_traced_memory()[0]
        for number in range(600):
            table = {f"column {place}": np.full(width, number, "f4") for place in range(50)}
            store.put(key_of(table), [np.zeros(1, np.float32)])
        del table
        taken = tracemalloc.get_traced_memory()[0] - begun
    finally:
        tracemalloc.stop()
    assert 0.8 < counts.size / taken < 1.4


def test_what_is_kept_is_no_part_of_a_larger_run() -> None:
    """It is a copy, and cannot be written to."""
    run = np.arange(8, dtype=np.float32)
    store, key = AnswerStore(1 << 20, CacheCounts()), key_of({"x": run})
    store.put(key, [run[2:4]])
    run[:] = 0
    (kept,) = store.get(key) or []
    assert kept.tolist() == [2, 3]
    with pytest.raises(ValueError, match="read-only"):
        kept[0] = 1


def test_texts_and_their_bytes_are_other_keys() -> None:
    """ "a" is not b"a", nor are ["a", "b"] ["ab"]."""
    texts: list[list[object]] = [["a"], [b"a"], ["a", "b"], ["ab"], ["a', 'b"]]
    keys = {key_of({"x": np.array(one, np.object_)}) for one in texts}
    assert len(keys) == len(texts)


@pytest.mark.parametrize("size", [4, 4096, 65_536])
def test_keys_are_of_bits_shape_and_datatype(size: int) -> None:
    """This holds for any length: 0.0 is not -0.0, a NaN is itself, and views equal their copies."""
    zeros = np.zeros((2, size), np.float32)
    other, nan = zeros.copy(), zeros.copy()
    other[-1, -1], nan[-1, -1] = -0.0, np.nan
    payload = nan.copy()
    payload.view(np.uint32)[-1, -1] += 1
    arrays: list[Any] = [
        zeros, other, nan, payload, zeros.reshape(size, 2), zeros.view(np.int32),
        zeros.view(np.uint32), zeros.view(np.float64), zeros.view(BY_NAME["BF16"].dtype),
        zeros[:, 1:], zeros.ravel(),
    ]  # fmt: skip
    keys = [key_of({"x": array}) for array in arrays]
    assert len(set(keys)) == len(arrays)
    assert [key_of({"x": array.copy()}) for array in arrays] == keys
    wide: Any = np.zeros((2, 2 * size), np.float32)
    wide[:, 1::2] = 1
    assert key_of({"x": wide[:, ::2]}) == keys[0]
    assert key_of({"x": zeros, "y": zeros}) != key_of({"x": zeros, "z": zeros})
    assert key_of({"x": zeros, "y": nan}) != key_of({"x": nan, "y": zeros})


async def test_a_model_keeps_answers_by_its_config(tmp_path: Path) -> None:
    """It keeps them until another version answers, and not with state; metrics count by model."""
    models = tmp_path / "models"
    onnx_models.save(onnx_models.times(2), models / "m/1/model.onnx")
    (models / "m/config.yaml").write_text("cache: {max_mb: 16}\n")
    folders: dict[str, Any] = {"state": tmp_path / "s", "cache": tmp_path / "c"}
    try:
        async with Runtime(models=models, watch_seconds=0.05, **folders) as runtime:
            name = runtime._core.registry.catalog["m"].versions[1].engine.inputs[0].name  # type: ignore[union-attr]
            rows = {name: np.ones((1, 3), np.float32)}
            answers = [await runtime.infer("m", rows) for _ in range(3)]
            answers += await asyncio.gather(*(runtime.infer("m", rows) for _ in range(3)))
            assert all(next(iter(one.values())).tolist() == [[2, 2, 2]] for one in answers)
            counts = runtime._core.caches.counts("m", 1)
            assert (counts.hits, counts.misses) == (5, 1)
            onnx_models.save(onnx_models.times(3), models / "m/2/model.onnx")
            await until(lambda: set(runtime._core.registry.catalog["m"].versions) == {2})
            (changed,) = (await runtime.infer("m", rows)).values()
            assert changed.tolist() == [[3, 3, 3]]
            families = {one.name: one for one in runtime._core.caches.collect()}
            samples = families["model_cache_hits"].samples
            assert {(s.labels["model"], s.labels["version"]): s.value for s in samples} == {
                ("m", "1"): 5,
                ("m", "2"): 0,
            }
            with pytest.raises(InvalidInput):
                await runtime.infer("m", {name: np.ones((1, 3), np.float64)})
    finally:
        structlog.reset_defaults()


@pytest.mark.parametrize("running", [False, True])
async def test_inputs_are_free_once_they_are_answered(
    engine: CachedEngine, inner: ControlledEngine, running: bool
) -> None:
    """Large ones, whose key a thread makes, are not held until their deadline."""
    replies, deadline = Answers(), monotonic() + 1000
    engine.submit({"x": np.ones((1, 100_000), np.float32)}, replies, deadline=deadline)
    await until(lambda: len(inner.requests) == 1)
    if not running:
        answer(inner)
    inputs = np.ones((1, 100_000), np.float32)
    gone = weakref.ref(inputs)
    tickets = [engine.submit({"x": inputs}, replies, deadline=deadline)]
    await until(lambda: tickets[0].remembered)
    if running:
        answer(inner)
    await until(lambda: len(replies.got) == 2)
    tickets.clear()
    del inputs
    gc.collect()
    assert gone() is None
