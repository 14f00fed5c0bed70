"""Served requests that are run again alone, and the effects of a different answer."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest

from cohort.batching import BatchPolicy, Padding, Sample
from cohort.onnx_engine import measurement
from cohort.onnx_engine.batched_session import BatchedSession
from cohort.onnx_engine.measurer import MeasuredVersion
from cohort.onnx_engine.rechecks import Rechecked, Rechecks, VersionSampler
from cohort.profiling import Profile, RowFindings, profile_briefly
from cohort.profiling.exactness import Exactness
from cohort.registry import RequestQueue, VersionUnbatched
from cohort.tensors import Array, Arrays
from tests import onnx_models
from tests.engines import batching_of
from tests.fakes import RecordedReply
from tests.registry.on_disk import RegistryOnDisk
from tests.waiting import until

TRUSTED = "batching: {trust: true}"
BATCHED = Profile({1: 0.001, 8: 0.001}, 8)


async def engine_of(
    disk: RegistryOnDisk, model: onnx.ModelProto, config: str = "", name: str = "m"
) -> BatchedSession:
    """The engine of a model whose requests share runs, unless it is known that they must not."""
    onnx_models.save(model, disk.models / name / "1/model.onnx")
    (disk.models / name / "config.yaml").write_text(config)
    await disk.reconcile()
    engine = disk.registry.find(name).engine
    assert isinstance(engine, BatchedSession)
    if not engine.profile.profile.reason:
        found = replace(engine.profile, profile=BATCHED, complete=True)
        engine.adopt(MeasuredVersion(found, None, final=True))
    return engine


def row(value: float) -> Arrays:
    return {"x": np.full((1, 3), value, np.float32)}


async def ask_together(queue: RequestQueue, *values: float) -> list[Array]:
    """Return the answers to requests that share a run, where they may."""
    replies = [RecordedReply() for _ in values]
    for value, reply in zip(values, replies, strict=True):
        queue.submit(row(value), reply)
    return [(await reply.outputs())[0] for reply in replies]


@pytest.fixture
def cache(disk: RegistryOnDisk, tmp_path: Path) -> Path:
    disk.keep_in(tmp_path / "cache")
    return tmp_path / "cache"


async def test_an_answer_that_others_changed_ends_batching(
    disk: RegistryOnDisk, cache: Path
) -> None:
    """Batching ends at once for the next requests. The catalog and the operator get the reason."""
    engine = await engine_of(disk, onnx_models.summed_in_a_way_unknown(), TRUSTED)
    together = await ask_together(engine, 1.0, 2.0)
    assert [float(one[0, 0]) for one in together] == [-2.0, -1.0]
    await until(lambda: disk.registry.find("m").batching_off != "")
    reason = disk.registry.find("m").batching_off
    assert reason == "rows influence each other: output 'y' of a row changes"
    assert VersionUnbatched("m", 1, reason) in disk.events
    assert disk.registry.find("m").mixed == reason
    alone = await ask_together(engine, 1.0, 2.0)
    assert [float(one[0, 0]) for one in alone] == [0.0, 0.0]


async def test_it_stays_known_over_restarts(disk: RegistryOnDisk, cache: Path) -> None:
    """It holds for the same content under any name.

    An operator who trusts it later has the last word.
    """
    model = onnx_models.summed_in_a_way_unknown()
    engine = await engine_of(disk, model, TRUSTED)
    await ask_together(engine, 1.0, 2.0)
    await until(lambda: disk.registry.find("m").batching_off != "")
    digest = engine.describe().files["model.onnx"]
    assert digest
    await until(lambda: any((cache / "rows").glob("*.json")))
    again = await engine_of(disk, model, TRUSTED, "again")
    assert not batching_of(again).policy.batches
    found = disk.registry.find("again")
    assert found.batching_off == found.mixed == disk.registry.find("m").batching_off
    trusted = await engine_of(disk, model, "batching: {trust: refuted}", "trusted")
    assert batching_of(trusted).policy.batches
    assert disk.registry.find("trusted").mixed == ""
    mixed = await ask_together(trusted, 1.0, 2.0)
    assert [float(one[0, 0]) for one in mixed] == [-2.0, -1.0]


async def test_it_stays_known_to_a_version_that_is_measured_later(
    disk: RegistryOnDisk, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is forgotten if the operator's word no longer counts."""
    model = onnx_models.summed_in_a_way_unknown()
    engine = await engine_of(disk, model, TRUSTED)
    assert engine.measurement is not None
    RowFindings(cache).write(engine.measurement.opener.digest(), BatchPolicy(), "somebody saw it")
    brief = partial(profile_briefly, seconds=0.0)
    monkeypatch.setattr(measurement, "profile_briefly", brief)
    for name, config in (("later", TRUSTED), ("careful", "")):
        onnx_models.save(model, disk.models / name / "1/model.onnx")
        (disk.models / name / "config.yaml").write_text(config)
    await disk.reconcile()
    await until(lambda: disk.registry.find("later").mixed != "")
    later, careful = disk.registry.find("later"), disk.registry.find("careful")
    assert later.batching_off == later.mixed == "somebody saw it"
    assert careful.mixed == ""
    assert careful.batching_off.startswith("rows are not shown to be independent")


async def test_copies_of_requests_share_no_run_any_more(disk: RegistryOnDisk, cache: Path) -> None:
    """Copies are compared with the answers that callers got."""
    engine = await engine_of(disk, onnx_models.summed_in_a_way_unknown(), TRUSTED)
    copies = engine.side_queue(max_requests=8, shadow=False)
    await ask_together(copies, 1.0, 2.0)
    engine.forbid_batching("somebody saw it")
    assert [float(one[0, 0]) for one in await ask_together(copies, 1.0, 2.0)] == [0.0, 0.0]


async def test_an_independent_version_goes_on(
    disk: RegistryOnDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests are run again, and nothing changes."""
    taken: list[Sample] = []
    monkeypatch.setattr(VersionSampler, "take", lambda _, sample: taken.append(sample))
    engine = await engine_of(disk, onnx_models.identity())
    await ask_together(engine, 1.0, 2.0)
    (sample,) = taken
    assert sample.together == 2
    assert float(sample.inputs["x"][0, 0]) == float(sample.answer[0][0, 0]) == sample.place + 1.0


class Version:
    """A version that runs nothing."""

    closed = True
    name = "m"
    timeout = 1.0
    session = stacking = None

    def forbid_batching(self, reason: str) -> None:
        raise AssertionError(reason)


async def test_few_are_run_again() -> None:
    """One at a time, none that is large, none while the server stops; and each costs a pause."""
    sample = Sample(row(1.0), [np.ones((1, 3))], 0, 2)
    large = Sample({"x": np.ones(3 << 20)}, [], 0, 2)
    rechecks = Rechecks(wake=lambda _: None, started=lambda: 0)
    version = Version()
    assert not rechecks.begin(version, "m", large)  # type: ignore[arg-type]
    assert rechecks.begin(version, "m", sample)  # type: ignore[arg-type]
    assert not rechecks.begin(version, "m", sample)  # type: ignore[arg-type]
    await until(lambda: not rechecks._busy)
    assert rechecks._due > asyncio.get_running_loop().time()
    assert not rechecks.begin(version, "m", sample)  # type: ignore[arg-type]
    rechecks._due = 0.0
    rechecks.close()
    assert not rechecks.begin(version, "m", sample)  # type: ignore[arg-type]


def test_a_kept_finding_that_cannot_be_read_counts(tmp_path: Path) -> None:
    """A torn file means that a finding was written, so batching stays off."""
    findings = RowFindings(tmp_path)
    assert findings.read("a" * 64, BatchPolicy()) == ""
    findings.write("a" * 64, BatchPolicy(), "rows influence each other")
    assert findings.read("a" * 64, BatchPolicy()) == "rows influence each other"
    assert findings.read("b" * 64, BatchPolicy()) == ""
    (file,) = (tmp_path / "rows").iterdir()
    for torn in ("{", "[]", '{"model": "x", "reason": "y"}', ""):
        file.write_text(torn)
        assert "cannot be read" in findings.read("a" * 64, BatchPolicy())


def test_findings_need_no_folder_that_can_be_written(tmp_path: Path) -> None:
    """A finding that cannot be kept is logged, and the version continues to serve."""
    (tmp_path / "rows").write_text("a file")
    findings = RowFindings(tmp_path)
    findings.write("a" * 64, BatchPolicy(), "rows influence each other")
    assert findings.read("a" * 64, BatchPolicy()) == ""


def test_what_padded_runs_have_shown_counts_with_that_padding(tmp_path: Path) -> None:
    """Runs without padding, or with another value, are separate."""
    findings, digest = RowFindings(tmp_path), "a" * 64
    padded, other = (BatchPolicy(pad={"x": Padding(value=value)}) for value in (0, 1))
    findings.write(digest, padded, "a padded run gives other results")
    assert findings.read(digest, padded)
    assert not findings.read(digest, other)
    assert not findings.read(digest, BatchPolicy())
    findings.write(digest, BatchPolicy(), "rows influence each other")
    assert findings.read(digest, other) == "rows influence each other"


def rounding_otherwise_alone() -> onnx.ModelProto:
    """Return a sum over inner axes, which ONNX Runtime adds up in another order for a lone row."""
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 20]> g (float[N, 3] x) => (float[N, 48] y) '
        "<int64[3] shape = {-1, 16, 48}, int64[1] axes = {1}>"
        "{m = MatMul(x, w) h = Reshape(m, shape) y = ReduceSum <keepdims: int = 0> (h, axes)}"
    )
    weights = np.random.default_rng(0).standard_normal((3, 768)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    return model


async def exact_engine(disk: RegistryOnDisk, config: str, exactness: Exactness) -> BatchedSession:
    """Return the engine of that model, of which something else was found when it was tried."""
    engine = await engine_of(disk, rounding_otherwise_alone(), config)
    found = replace(engine.profile, profile=BATCHED, exactness=exactness)
    engine.adopt(MeasuredVersion(found, None, final=True))
    return engine


EXACT = "batching: {exact: true}"


async def test_other_bits_end_batching_where_the_very_same_are_promised(
    disk: RegistryOnDisk, cache: Path
) -> None:
    """Batching ends although only rounding differs.

    The finding counts only if equal bits are promised.
    """
    engine = await exact_engine(disk, EXACT, Exactness(1))
    await ask_together(engine, 1.3, 2.7)
    await until(lambda: disk.registry.find("m").batching_off != "")
    reason = "a shared run gave other bits: output 'y' of a request changes"
    assert disk.registry.find("m").batching_off == reason
    findings, digest = RowFindings(cache), engine.measurement.opener.digest()  # type: ignore[union-attr]
    await until(lambda: findings.read(digest, BatchPolicy(exact=True)) == reason)
    assert findings.read(digest, BatchPolicy()) == ""


async def test_runs_that_are_filled_up_give_the_same_bits(
    disk: RegistryOnDisk, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request is run again as it is served: a lone row as two."""
    engine = await exact_engine(disk, EXACT, Exactness(2, "it rounds"))
    filled = replace(engine.profile, profile=replace(BATCHED, least_rows=2))
    engine.adopt(MeasuredVersion(filled, None, final=True))
    over: list[str] = []
    on_over = Rechecks._on_over

    def noted(self: Rechecks, version: Rechecked, reason: str, spent: float) -> None:
        over.append(reason)
        on_over(self, version, reason, spent)

    monkeypatch.setattr(Rechecks, "_on_over", noted)
    alone = await ask_together(engine, 1.3)
    together = await ask_together(engine, 1.3, 2.7)
    assert alone[0].tobytes() == together[0].tobytes()
    await until(lambda: bool(over))
    assert over == [""]


async def test_other_bits_take_back_that_a_version_is_exact(
    disk: RegistryOnDisk, cache: Path
) -> None:
    """If equal bits are not promised, it continues to batch, and no longer claims them."""
    engine = await exact_engine(disk, "", Exactness(1))
    assert not engine.why_not_exact
    await ask_together(engine, 1.3, 2.7)
    await until(lambda: engine.why_not_exact != "")
    assert engine.why_not_exact.startswith("a shared run gave other bits: output 'y'")
    assert disk.registry.find("m").batching_off == ""


async def test_other_bits_of_whole_numbers_end_batching_too(
    disk: RegistryOnDisk, cache: Path
) -> None:
    """A number rounded by its last bit differs by a whole one, which is also rounding."""
    model = rounding_otherwise_alone()
    graph = model.graph
    graph.node.extend(
        [
            onnx.helper.make_node("Mul", ["y", "million"], ["scaled"]),
            onnx.helper.make_node("Cast", ["scaled"], ["whole"], to=onnx.TensorProto.INT64),
        ]
    )
    million = np.array(1e6, np.float32)
    graph.initializer.append(onnx.numpy_helper.from_array(million, "million"))
    graph.output.append(onnx.helper.make_tensor_value_info("whole", onnx.TensorProto.INT64, None))
    graph.output[1].type.tensor_type.ClearField("shape")
    engine = await engine_of(disk, model, EXACT)
    found = replace(engine.profile, profile=BATCHED, exactness=Exactness(1))
    engine.adopt(MeasuredVersion(found, None, final=True))
    await ask_together(engine, 1.3, 2.7)
    await until(lambda: disk.registry.find("m").batching_off != "")
    assert "a shared run gave other bits" in disk.registry.find("m").batching_off
