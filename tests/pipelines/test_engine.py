"""Pipelines that serve: what they answer, and what becomes of their models."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import numpy as np
import pytest

from cohort.batching import Outputs
from cohort.errors import (
    CohortError,
    DeadlineExceeded,
    InferenceFailed,
    InvalidInput,
    NotReady,
    Overloaded,
)
from cohort.registry import State
from cohort.tensors import Arrays
from tests import onnx_models
from tests.fakes import exposed
from tests.pipelines.graphs import Graphs, affine, alone, ends, rows
from tests.planes import infer
from tests.waiting import iterations, until

CASCADE = """
steps:
  small: {model: small, inputs: {x: x}}
  large: {model: large, inputs: {x: x}, when: max(small.y) < 10}
outputs:
  y: {from: [large.y, small.y]}
"""
CHAIN = """
steps:
  first: {model: small, inputs: {x: x}}
  second: {model: large, inputs: {x: first.y}}
outputs:
  y: {from: second.y}
"""


async def cascade(graphs: Graphs, text: str = CASCADE) -> None:
    graphs.put("small", affine(1))
    graphs.put("large", affine(100))
    graphs.put("cascade", text)
    await graphs.load()
    assert graphs.entry("cascade").reason == ""


async def test_steps_run_by_condition_for_each_row(graphs: Graphs) -> None:
    """Each row of a request gets what it gets alone, and no lease is left."""
    await cascade(graphs)
    answer = await graphs.ask("cascade", rows(1, 20, 3))
    np.testing.assert_array_equal(answer["y"], rows(100, 20, 300)["x"])
    assert graphs.leases == {}


@pytest.mark.parametrize("values", [(), (20,), (1,), (20, 30), (1, 2)])
async def test_a_step_for_no_row_or_all_of_them(graphs: Graphs, values: tuple[float, ...]) -> None:
    """No row, every row, and a request without rows are answered."""
    await cascade(graphs)
    answer = await graphs.ask("cascade", rows(*values))
    wanted = [value if value >= 10 else value * 100 for value in values]
    np.testing.assert_array_equal(answer["y"], rows(*wanted)["x"])


async def test_many_rows_are_decided_off_the_event_loop(graphs: Graphs) -> None:
    """The answer is the same."""
    await cascade(graphs)
    values = np.arange(40_000, dtype=np.float32) % 20
    answer = await graphs.ask("cascade", rows(*values))
    np.testing.assert_array_equal(
        answer["y"], rows(*np.where(values < 10, values * 100, values))["x"]
    )


async def test_what_a_step_gives_is_what_the_next_one_gets(graphs: Graphs) -> None:
    """Steps run in order, whatever their order in the file."""
    text = """
    steps:
      second: {model: large, inputs: {x: first.y}}
      first: {model: small, inputs: {x: x}}
    outputs: {y: second.y, between: {from: first.y}, same: {from: x}}
    """
    await cascade(graphs, text)
    answer = await graphs.ask("cascade", rows(2))
    assert {name: array[0, 0] for name, array in answer.items()} == {
        "y": 200, "between": 2, "same": 2,
    }  # fmt: skip


async def test_branches_join(graphs: Graphs) -> None:
    """A step takes what there is of two branches; of a list, each row from the first that ran."""
    graphs.put("up", affine(2))
    graphs.put("down", affine(-1))
    graphs.put("sum", affine(1, inputs=("x", "z")))
    graphs.put(
        "branches",
        """
        steps:
          up: {model: up, inputs: {x: x}, when: max(x) >= 5}
          down: {model: down, inputs: {x: x}, when: not max(x) >= 5 and min(x) > -100}
          sum: {model: sum, inputs: {x: [up.y, down.y], z: x}}
        outputs: {y: {from: sum.y}}
        """,
    )
    await graphs.load()
    answer = await graphs.ask("branches", rows(1, 5, 7))
    np.testing.assert_array_equal(answer["y"], rows(0, 15, 21)["x"])
    with pytest.raises(InferenceFailed, match=r"output 'y': no step ran for row 1 .*condition"):
        await graphs.ask("branches", rows(1, -200))
    with pytest.raises(InferenceFailed, match="output 'y': no step ran that it is from"):
        await graphs.ask("branches", rows(-200))
    assert graphs.leases == {}


async def test_rows_of_a_model_that_mixes_them_run_one_by_one(graphs: Graphs) -> None:
    """With conditions, a row never depends on the rows next to it; there is a limit to that."""
    graphs.put("sums", onnx_models.normalized_over_rows())
    inputs = onnx_models.normalized_over_rows().graph.input[0]
    width = inputs.type.tensor_type.shape.dim[1].dim_value
    name, output = ends(onnx_models.normalized_over_rows())
    graphs.put(
        "mixing",
        f"""
        steps:
          a: {{model: sums, inputs: {{{name}: x}}}}
          b: {{model: sums, inputs: {{{name}: x}}, when: max(x) > 100}}
        outputs: {{y: {{from: [b.{output}, a.{output}]}}}}
        """,
    )
    await graphs.load()
    sent: Arrays = {"x": np.arange(3 * width, dtype=np.float32).reshape(3, width)}
    together = (await graphs.ask("mixing", sent))["y"]
    for row in range(3):
        alone = (await graphs.ask("mixing", {"x": sent["x"][row : row + 1]}))["y"]
        np.testing.assert_array_equal(together[row : row + 1], alone)
    described = graphs.entry("mixing").engine
    assert described is not None
    pipeline = described.describe().pipeline
    assert pipeline is not None
    assert pipeline.row_by_row == ["a", "b"]
    with pytest.raises(InvalidInput, match=r"step 'a': .* one by one: at most 256 .*got 257"):
        await graphs.ask("mixing", {"x": np.ones((257, width), np.float32)})
    assert graphs.leases == {}


async def test_conditions_for_the_whole_request(graphs: Graphs) -> None:
    """They apply if the file asks for it, or if axis 0 does not hold rows."""
    await cascade(graphs, CASCADE + "conditions: request\n")
    answer = await graphs.ask("cascade", rows(1, 20, 3))
    np.testing.assert_array_equal(answer["y"], rows(1, 20, 3)["x"])
    answer = await graphs.ask("cascade", rows(1, 3))
    np.testing.assert_array_equal(answer["y"], rows(100, 300)["x"])


# -- models that come and go


async def test_models_may_load_later_or_not_at_all(graphs: Graphs) -> None:
    """A pipeline waits for the loads of its models, and serves once the last one has come."""
    graphs.put("cascade", CASCADE)
    graphs.put("small", affine(1))
    await graphs.load()
    assert "step 'large': model 'large' not found" in graphs.reason("cascade")
    graphs.put("large", affine(100))
    await graphs.load()
    assert graphs.entry("cascade").state is State.READY
    assert (await graphs.ask("cascade", rows(1)))["y"][0, 0] == 100


async def test_a_model_that_is_unloaded_takes_the_pipeline_with_it(graphs: Graphs) -> None:
    """The pipeline stops at once and names the model; it returns with the model."""
    await cascade(graphs)
    graphs.put("outer", "steps: {a: {model: cascade, inputs: {x: x}}}\noutputs: {y: a.y}")
    await graphs.load()
    with graphs.plane.pick("cascade") as lease:
        graphs.registry.unload_model("large")
        with pytest.raises(NotReady, match="step 'large': model 'large' is unloaded"):
            await infer(lease, rows(1))
    assert graphs.reason("cascade") == "step 'large': model 'large' is unloaded"
    assert graphs.reason("outer").startswith("step 'a': model 'cascade' has no ready version")
    assert graphs.registry.unavailable == []
    with pytest.raises(NotReady, match="step 'large': model 'large' is unloaded"):
        await graphs.ask("cascade", rows(1))
    graphs.registry.reload_model("large")
    await graphs.load()
    await graphs.registry.loaded("large")
    for name in ("cascade", "outer"):
        assert (await graphs.ask(name, rows(1)))["y"][0, 0] == 100
    assert graphs.leases == {}


async def test_a_model_that_is_swapped_is_used_from_the_next_request_on(graphs: Graphs) -> None:
    """Its former version closes once no request of the pipeline holds it."""
    await cascade(graphs)
    assert (await graphs.ask("cascade", rows(1)))["y"][0, 0] == 100
    graphs.put("large", affine(1000), version=2)
    snapshot_loaded = asyncio.ensure_future(graphs.load())
    seen = set()
    while not snapshot_loaded.done():
        seen.add(float((await graphs.ask("cascade", rows(1)))["y"][0, 0]))
        await iterations(1)
    await snapshot_loaded
    await graphs.registry.loaded()
    assert seen <= {100.0, 1000.0}
    assert (await graphs.ask("cascade", rows(1)))["y"][0, 0] == 1000
    assert list(graphs.registry.catalog["large"].versions) == [2]


async def test_a_model_that_does_not_fit_any_more(graphs: Graphs) -> None:
    """The pipeline names the step, and serves again with a model that fits."""
    await cascade(graphs, CHAIN)
    (graphs.models / "large/config.yaml").write_text("allow_signature_change: true")
    graphs.put("large", affine(1, width=8), version=2)
    await graphs.load()
    await graphs.registry.loaded()
    assert graphs.reason("cascade") == (
        "step 'second': input 'x' must be FP32 [N, 8], but first.y is FP32 [N, 4]: axis 1 is 4 "
        "long, not 8"
    )
    graphs.put("large", affine(5), version=3)
    await graphs.load()
    await graphs.registry.loaded()
    assert (await graphs.ask("cascade", rows(1)))["y"][0, 0] == 5


async def test_a_version_that_a_step_names_is_loaded(graphs: Graphs) -> None:
    """It is loaded in addition to the one that the model's own config wants."""
    graphs.put("small", affine(1), version=1)
    graphs.put("small", affine(7), version=2)
    graphs.put(
        "both",
        """
        steps:
          old: {model: small, version: 1, inputs: {x: x}}
          new: {model: small, inputs: {x: x}}
        outputs: {old: {from: old.y}, new: {from: new.y}}
        """,
    )
    await graphs.load()
    answer = await graphs.ask("both", rows(1))
    assert (answer["old"][0, 0], answer["new"][0, 0]) == (1, 7)
    await graphs.load()
    assert list(graphs.registry.catalog["small"].versions) == [1, 2]


async def test_pipelines_in_pipelines(graphs: Graphs) -> None:
    """Pipelines may contain others up to a depth, and not in a circle."""
    graphs.put("small", affine(2))
    below = "small"
    for depth in range(1, 6):
        name = f"p{depth}"
        graphs.put(name, f"steps: {{a: {{model: {below}, inputs: {{x: x}}}}}}\noutputs: {{y: a.y}}")
        below = name
    graphs.put("a", "steps: {s: {model: b, inputs: {x: x}}}\noutputs: {y: s.y}")
    graphs.put("b", "steps: {s: {model: a, inputs: {x: x}}}\noutputs: {y: s.y}")
    await graphs.load()
    assert (await graphs.ask("p4", rows(1)))["y"][0, 0] == 2
    assert "5 nested pipelines; the maximum is 4" in graphs.reason("p5")
    assert "step 's': it depends on this pipeline itself" in graphs.reason("a")
    assert "step 's': it depends on this pipeline itself" in graphs.reason("b")
    graphs.put("b", "steps: {s: {model: small, inputs: {x: x}}}\noutputs: {y: s.y}")
    await graphs.load()
    await graphs.registry.loaded()
    assert (await graphs.ask("a", rows(1)))["y"][0, 0] == 2


# -- errors, limits, and callers who leave


async def test_an_error_names_its_step_and_keeps_its_kind(graphs: Graphs) -> None:
    """What a model refuses is the caller's mistake where it is the caller's own data alone."""
    cast = onnx_models.cast("FP32", "INT64", ("N", 1))
    graphs.put("table", onnx_models.table())
    graphs.put("cast", cast)
    (taken, given), (cast_in, cast_out) = ends(onnx_models.table()), ends(cast)
    graphs.put("direct", alone("table", onnx_models.table()))
    graphs.put(
        "made",
        f"""
        steps:
          c: {{model: cast, inputs: {{{cast_in}: x}}}}
          t: {{model: table, inputs: {{{taken}: c.{cast_out}}}}}
        outputs: {{y: t.{given}}}
        """,
    )
    await graphs.load()
    with pytest.raises(InvalidInput, match=r"^step 's': ") as refused:
        await graphs.ask("direct", {"x": np.array([[99]], np.int64)})
    assert refused.value.code == "InvalidInput"
    with pytest.raises(InferenceFailed, match=r"^step 't': "):
        await graphs.ask("made", {"x": np.array([[99]], np.float32)})
    assert graphs.leases == {}


async def test_tensors_that_do_not_fit_the_next_step(graphs: Graphs) -> None:
    """A length that only a run determines is checked before the next step."""
    graphs.put("same", onnx_models.untouched("FP32", ("N", "W")))
    graphs.put("four", affine(1))
    name, output = ends(onnx_models.untouched("FP32", ("N", "W")))
    graphs.put(
        "lengths",
        f"""
        steps:
          a: {{model: same, inputs: {{{name}: x}}}}
          b: {{model: four, inputs: {{x: a.{output}}}}}
        outputs: {{y: b.y}}
        """,
    )
    await graphs.load()
    with pytest.raises(InferenceFailed, match=r"step 'b': input 'x' must have shape \[N, 4\], got"):
        await graphs.ask("lengths", rows(1, width=5))
    assert graphs.leases == {}


async def test_one_deadline_for_all_steps(graphs: Graphs) -> None:
    """It ends a running step and names it; the model is held until its run has ended."""
    graphs.put("slow", onnx_models.slow(nodes=4000))
    graphs.put("one", alone("slow", onnx_models.slow(nodes=1)))
    await graphs.load()
    engine = graphs.entry("one").engine
    assert engine is not None
    size = engine.inputs[0].shape
    assert size is not None
    sent: Arrays = {"x": np.ones([one if isinstance(one, int) else 1 for one in size], np.float32)}
    with pytest.raises(DeadlineExceeded, match=r"step 's': no response within 20 ms"):
        await graphs.ask("one", sent, timeout=0.02)
    await until(lambda: graphs.leases == {})
    exposition = exposed(graphs.metrics, graphs.registry.catalog.values())
    assert (
        'model_step_total{code="DeadlineExceeded",model="one",step="s",version="1"} 1.0'
        in exposition
    )


async def test_a_caller_who_leaves_cancels_what_runs(graphs: Graphs) -> None:
    """The caller gets no answer; the leases are given back once the run has ended."""
    graphs.put("slow", onnx_models.slow(nodes=4000))
    graphs.put("one", alone("slow", onnx_models.slow(nodes=1)))
    await graphs.load()
    engine = graphs.entry("one").engine
    assert engine is not None
    assert engine.by_tensors is not None
    size = engine.inputs[0].shape or ()
    sent: Arrays = {"x": np.ones([one if isinstance(one, int) else 1 for one in size], np.float32)}
    told: list[object] = []
    ticket = engine.by_tensors.submit(sent, lambda *result: told.append(result))
    await iterations(3)
    ticket.cancel()
    ticket.cancel()
    if ticket.when_over(lambda: told.append("over")):
        await until(lambda: told == ["over"])
    await until(lambda: graphs.leases == {})
    assert told in ([], ["over"])


async def test_a_step_that_nothing_needs_any_more_is_cancelled(graphs: Graphs) -> None:
    """A slow alternative ends as soon as a better one has all rows."""
    spec = onnx_models.slow(nodes=1)
    size = [one.dim_value or 1 for one in spec.graph.input[0].type.tensor_type.shape.dim]
    name, out = ends(spec)
    graphs.put("slow", onnx_models.slow(nodes=20_000))
    graphs.put("fast", onnx_models.slow(nodes=1))
    graphs.put(
        "race",
        f"""
        steps:
          fast: {{model: fast, inputs: {{{name}: x}}, when: max(x) > 0}}
          slow: {{model: slow, inputs: {{{name}: x}}}}
        outputs: {{y: {{from: [fast.{out}, slow.{out}]}}}}
        """,
    )
    await graphs.load()
    await graphs.ask("race", {"x": np.ones(size, np.float32)})
    text = exposed(graphs.metrics, graphs.registry.catalog.values())
    assert 'model_step_total{code="Cancelled",model="race",step="slow",version="1"} 1.0' in text
    await until(lambda: graphs.leases == {})


async def test_a_full_queue_of_a_later_step_is_an_overload(graphs: Graphs) -> None:
    """The error has the step's name."""
    graphs.put("small", affine(1))
    graphs.put("large", affine(100))
    (graphs.models / "large/config.yaml").write_text("batching: {max_queue_size: 1}")
    graphs.put("cascade", CHAIN)
    await graphs.load()
    with graphs.plane.pick("cascade") as one, graphs.plane.pick("cascade") as other:
        asked = asyncio.gather(infer(one, rows(1)), infer(other, rows(1)), return_exceptions=True)
        answers = await asked
    failed = [one for one in answers if isinstance(one, CohortError)]
    assert all(isinstance(one, Overloaded) and "step 'second': " in str(one) for one in failed)
    assert graphs.leases == {}


# -- what operators see


async def test_steps_are_counted_and_described(graphs: Graphs) -> None:
    """Models count the pipeline's requests, and steps have their own series."""
    await cascade(graphs)
    await graphs.ask("cascade", rows(1, 20, 3))
    await graphs.ask("cascade", rows(30))
    text = exposed(graphs.metrics, graphs.registry.catalog.values())
    for line in (
        'model_step_total{code="OK",model="cascade",step="small",version="1"} 2.0',
        'model_step_total{code="OK",model="cascade",step="large",version="1"} 1.0',
        'model_step_total{code="Skipped",model="cascade",step="large",version="1"} 1.0',
        'model_step_rows_total{model="cascade",step="large",version="1"} 2.0',
        'model_step_duration_seconds_count{model="cascade",step="small",version="1"} 2.0',
        'model_inference_total{code="OK",model="small",variant="",version="1"} 2.0',
        'model_inference_total{code="OK",model="large",variant="",version="1"} 1.0',
        'model_inference_total{code="OK",model="cascade",variant="",version="1"} 2.0',
    ):
        assert line in text
    engine = graphs.entry("cascade").engine
    assert engine is not None
    pipeline = engine.describe().pipeline
    assert pipeline is not None
    assert [(one.name, one.model, one.serving, one.when) for one in pipeline.steps] == [
        ("small", "small", 1, ""),
        ("large", "large", 1, "max(small.y) < 10"),
    ]
    assert pipeline.conditions == "rows"
    assert engine.describe().placement.active == "cpu"


async def test_copies_run_on_side_queues(graphs: Graphs) -> None:
    """The copies of a rollout's shadow get the same answer, and are not counted."""
    await cascade(graphs)
    engine = graphs.entry("cascade").engine
    assert engine is not None
    assert engine.by_tensors is not None
    queue = engine.by_tensors.side_queue(max_requests=8, shadow=True)
    answer: asyncio.Future[Outputs | None] = asyncio.get_running_loop().create_future()
    queue.submit(rows(1, 20), lambda outputs, error: answer.set_result(outputs))
    (y,) = await answer or []
    np.testing.assert_array_equal(y, rows(100, 20)["x"])
    queue.close()
    with pytest.raises(NotReady):
        queue.submit(rows(1), lambda outputs, error: None)
    text = exposed(graphs.metrics, graphs.registry.catalog.values())
    assert "model_step_total{code" not in text
    assert graphs.leases == {}


async def test_a_pipeline_in_the_models_folder_is_version_1(graphs: Graphs) -> None:
    """Further versions are in their own folders next to it."""
    graphs.put("small", affine(1))
    graphs.put("large", affine(100))
    (graphs.models / "cascade").mkdir()
    (graphs.models / "cascade/pipeline.yaml").write_text(CASCADE)
    await graphs.load()
    assert list(graphs.registry.catalog["cascade"].versions) == [1]
    assert (await graphs.ask("cascade", rows(1)))["y"][0, 0] == 100
    graphs.put("cascade", CHAIN, version=2)
    await graphs.load()
    assert list(graphs.registry.catalog["cascade"].versions) == [2]
    assert (await graphs.ask("cascade", rows(20)))["y"][0, 0] == 2000


async def test_a_bad_edit_leaves_the_former_pipeline(graphs: Graphs) -> None:
    """The version stays ready and its reason names the fault, as with models."""
    await cascade(graphs)
    graphs.put("cascade", CASCADE.replace("small.y) <", "smal.y) <"))
    await graphs.load()
    entry = graphs.entry("cascade")
    assert entry.state is State.READY
    assert "did you mean 'small'?" in entry.reason
    with suppress(NotReady):
        assert (await graphs.ask("cascade", rows(1)))["y"][0, 0] == 100
