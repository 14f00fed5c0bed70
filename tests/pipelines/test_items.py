"""Steps that run for each item of a tensor, such as the boxes of a picture."""

from __future__ import annotations

import numpy as np
import pytest

from cohort.errors import InferenceFailed, InvalidInput
from cohort.pipelines.items import MAX_ITEMS
from cohort.pipelines.step_run import MAX_ROWS_ALONE
from cohort.tensors import Array, Arrays
from tests import onnx_models
from tests.fakes import exposed
from tests.pipelines.graphs import Graphs, affine

FIND = "find: {model: find, inputs: {x: x}}"
EACH = f"""
steps:
  {FIND}
  work: {{model: tenfold, each: find.y, inputs: {{x: find.y}}}}
outputs: {{y: work.y}}
"""


def items(*counts: int, start: float = 1) -> Array:
    """[rows, items, 4], with a different value for each item."""
    numbers = np.arange(start, start + np.prod(counts), dtype=np.float32).reshape(counts)
    return np.repeat(numbers[..., None], 4, -1)


async def put(graphs: Graphs, text: str) -> None:
    """`find` gives its x [N, items, 4] as y; `tenfold` and `sum` have rows of 4 numbers."""
    graphs.put("find", onnx_models.identity(shape=("N", "K", 4)))
    graphs.put("tenfold", affine(10))
    graphs.put("sum", affine(inputs=("x", "of")))
    graphs.put("p", text)
    await graphs.load()


@pytest.mark.parametrize("counts", [(1, 3), (2, 1), (3, 2), (2, 0), (0, 2), (1, 300)])
async def test_each_item_is_a_row_and_goes_back_to_its_place(
    graphs: Graphs, counts: tuple[int, int]
) -> None:
    """This holds for any number of items, including 0; no lease is left."""
    await put(graphs, EACH)
    assert graphs.entry("p").reason == ""
    x = items(*counts)
    answer = await graphs.ask("p", {"x": x})
    np.testing.assert_array_equal(answer["y"], x * 10)
    assert graphs.leases == {}


async def test_what_is_of_a_request_row_is_repeated_for_its_items(graphs: Graphs) -> None:
    """Each item is joined with its row."""
    await put(
        graphs,
        "steps: {work: {model: sum, each: passages, inputs: {x: passages, of: query}}}\n"
        "outputs: {y: work.y}",
    )
    passages, query = items(2, 3), items(2, start=100)
    answer = await graphs.ask("p", {"passages": passages, "query": query})
    np.testing.assert_array_equal(answer["y"], np.add(passages, query[:, None]))


async def test_what_would_be_repeated_too_often_is_refused(graphs: Graphs) -> None:
    """It is refused before memory is taken; fewer repetitions are handled off the event loop."""
    graphs.put("sum", affine(inputs=("x", "of"), width=8192))
    graphs.put(
        "p",
        "steps: {work: {model: sum, each: x, when: max(s) > 1, inputs: {x: x, of: of}}}\n"
        "outputs: {y: work.y}\ninputs: {s: {datatype: FP32, shape: [N, 8192]}, x: {}, of: {}}",
    )
    await graphs.load()
    assert graphs.entry("p").reason == ""
    large = np.zeros((1, 8192), np.float32)
    for count in (100, 2049):
        asked: Arrays = {"x": np.zeros((1, count, 8192), np.float32), "of": large, "s": large}
        if count == 100:
            assert not (await graphs.ask("p", asked))["y"].any()
        else:
            with pytest.raises(InvalidInput, match="'s' would be repeated for 2049 items"):
                await graphs.ask("p", asked)


async def test_a_condition_is_decided_for_each_item(graphs: Graphs) -> None:
    """Those for which it does not hold have zeros, and are not counted."""
    await put(graphs, EACH.replace("each: find.y", "each: find.y, when: max(find.y) > 3"))
    answer = await graphs.ask("p", {"x": items(2, 3)})
    np.testing.assert_array_equal(
        answer["y"][..., 0], np.array([[0, 0, 0], [40, 50, 60]], np.float32)
    )
    text = exposed(graphs.metrics, graphs.registry.catalog.values())
    assert 'model_step_rows_total{model="p",step="work",version="1"} 3.0' in text
    nothing = await graphs.ask("p", {"x": items(1, 3)})
    np.testing.assert_array_equal(nothing["y"], np.zeros((1, 3, 4), np.float32))
    text = exposed(graphs.metrics, graphs.registry.catalog.values())
    assert 'step_total{code="Skipped",model="p",step="work",version="1"} 1.0' in text


async def test_a_condition_may_look_at_the_row_of_an_item(graphs: Graphs) -> None:
    """The tensor does not need items."""
    await put(
        graphs,
        "steps: {work: {model: tenfold, each: x, when: max(x) > 2 and max(of) > 1,\n"
        "        inputs: {x: x}}, other: {model: tenfold, inputs: {x: of}}}\n"
        "outputs: {y: work.y, z: other.y}",
    )
    answer = await graphs.ask("p", {"x": items(2, 3), "of": items(2)})
    np.testing.assert_array_equal(answer["y"][..., 0], [[0, 0, 0], [40, 50, 60]])


async def test_many_items_are_handled_off_the_event_loop(graphs: Graphs) -> None:
    """The answer is the same."""
    await put(graphs, EACH.replace("each: find.y", "each: find.y, when: max(find.y) > 40000"))
    x = items(4, 11_000)
    answer = await graphs.ask("p", {"x": x})
    np.testing.assert_array_equal(answer["y"], np.where(np.greater(x, 40_000), x * 10, 0))


async def test_steps_for_items_follow_each_other_and_stand_beside_conditions(
    graphs: Graphs,
) -> None:
    """The rows for which an alternative runs have their items there."""
    await put(
        graphs,
        f"""
steps:
  {FIND}
  one: {{model: tenfold, each: find.y, inputs: {{x: find.y}}}}
  more: {{model: find, inputs: {{x: one.y}}, when: max(find.y) > 3}}
  two: {{model: tenfold, each: more.y, inputs: {{x: more.y}}}}
outputs: {{y: [two.y, one.y]}}
""",
    )
    assert graphs.entry("p").reason == ""
    x = items(2, 3)
    answer = await graphs.ask("p", {"x": x})
    np.testing.assert_array_equal(answer["y"], np.stack([x[0] * 10, x[1] * 100]))


async def test_more_items_than_may_be(graphs: Graphs) -> None:
    """The status is 400 if the caller sent them, 500 if a step found them; both name the step."""
    await put(graphs, EACH)
    graphs.put(
        "q",
        "steps: {work: {model: tenfold, each: x, inputs: {x: x}}}\noutputs: {y: work.y}",
    )
    await graphs.load()
    most = {"x": items(2, MAX_ITEMS // 2)}
    assert (await graphs.ask("q", most))["y"].shape == most["x"].shape
    more = {"x": items(1, MAX_ITEMS + 1)}
    with pytest.raises(InvalidInput, match=f"step 'work': .*{MAX_ITEMS + 1} items of 'x'"):
        await graphs.ask("q", more)
    with pytest.raises(InferenceFailed, match=f"step 'work': .*at most {MAX_ITEMS}"):
        await graphs.ask("p", more)
    assert graphs.leases == {}


@pytest.mark.parametrize("config", ["", "batching: {trust: true}"])
async def test_a_model_that_takes_one_row_takes_one_item_after_another(
    graphs: Graphs, config: str
) -> None:
    """It does so up to the number of rows that run one by one."""
    await put(graphs, EACH.replace("tenfold", "one"))
    (graphs.models / "one").mkdir()
    (graphs.models / "one/config.yaml").write_text(config)
    graphs.put("one", onnx_models.identity(shape=(1, 4)))
    await graphs.load()
    assert graphs.entry("p").reason == ""
    x = items(2, 3)
    np.testing.assert_array_equal((await graphs.ask("p", {"x": x}))["y"], x)
    with pytest.raises(InferenceFailed, match=f"one by one: at most {MAX_ROWS_ALONE}"):
        await graphs.ask("p", {"x": items(1, MAX_ROWS_ALONE + 1)})


@pytest.mark.parametrize("length", ["M", 3])
async def test_items_along_axis_0_of_a_detector_without_rows(
    graphs: Graphs, length: str | int
) -> None:
    """They are of the one row that there may be then."""
    graphs.put("find", onnx_models.identity(shape=(length, 4)))
    graphs.put("sum", affine(inputs=("x", "of")))
    graphs.put(
        "p",
        f"steps: {{{FIND}, work: {{model: sum, each: find.y, inputs: {{x: find.y, of: q}}}}}}\n"
        "outputs: {y: work.y}",
    )
    await graphs.load()
    for count in (3, 1, 0) if length == "M" else (3,):
        answer = await graphs.ask("p", {"x": items(count), "q": items(1, start=100)})
        np.testing.assert_array_equal(answer["y"], items(count) + 100)
    with pytest.raises(InferenceFailed, match=r"step 'work': 'of' .*of 1 row"):
        await graphs.ask("p", {"x": items(3), "q": items(2)})


async def test_items_that_do_not_fit_each_other(graphs: Graphs) -> None:
    """Two tensors of different items are refused."""
    await put(
        graphs,
        "steps: {work: {model: sum, each: [a, b], inputs: {x: a, of: b}}}\noutputs: {y: work.y}",
    )
    with pytest.raises(InvalidInput, match=r"step 'work': .*\[1, 2, 4\].*\[1, 3, 4\]|items"):
        await graphs.ask("p", {"a": items(1, 2), "b": items(1, 3)})


async def test_texts_of_items_that_are_left_out_are_empty(graphs: Graphs) -> None:
    """Texts are empty as numbers are 0."""
    graphs.put("words", onnx_models.identity("BYTES", ("N", 1)))
    graphs.put(
        "p",
        "steps: {work: {model: words, each: [x, s], when: s > 1, inputs: {x: x}}}\n"
        "outputs: {y: work.y}\n"
        "inputs: {s: {datatype: FP32, shape: [N, items]}, x: {}}",
    )
    await graphs.load()
    assert graphs.entry("p").reason == ""
    words = np.array([[["a"], ["b"], ["c"]]], np.object_)
    answer = await graphs.ask("p", {"x": words, "s": np.array([[2, 0, 3]], np.float32)})
    assert answer["y"].tolist() == [[["a"], [""], ["c"]]]


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        ("each: nothing, inputs: {x: find.y}", "each has 'nothing', which no input uses"),
        ("each: find.z, inputs: {x: find.z}", "step 'find' has no output 'z'"),
        ("each: find.y, inputs: {x: [find.y, x]}", "'x' is also from 'x'"),
        (
            "each: x, inputs: {x: find.y}, when: max(x) > 1",
            "each names no tensor that is the source",
        ),
        ("each: 3, inputs: {x: find.y}", "must be a tensor"),
    ],
)
async def test_mistakes_name_the_step(graphs: Graphs, step: str, reason: str) -> None:
    """The version is UNAVAILABLE, and its reason has the mistake."""
    await put(
        graphs, f"steps: {{{FIND}, work: {{model: tenfold, {step}}}}}\noutputs: {{y: work.y}}"
    )
    assert reason in graphs.reason("p")


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        (("N", 2, "K", 4), "the items of find.y do not match: its shape is ['N', 2, 'K', 4]"),
        ((4,), "the items of find.y do not match"),
        (("N", "K", 5), "axis 2 is 5 long, not 4"),
    ],
)
async def test_tensors_without_such_items_are_refused(
    graphs: Graphs, shape: tuple[int | str, ...], reason: str
) -> None:
    """They are refused at load, with their shape."""
    graphs.put("find", onnx_models.identity(shape=shape))
    graphs.put("tenfold", affine(10))
    graphs.put("p", EACH)
    await graphs.load()
    assert "step 'work': input 'x' must " in graphs.reason("p")
    assert reason in graphs.reason("p")


async def test_a_model_of_several_rows_at_once_is_refused(graphs: Graphs) -> None:
    """It cannot take any number of items."""
    graphs.put("find", onnx_models.identity(shape=("N", "K", 3)))
    graphs.put("two", onnx_models.fixed_rows(2))
    graphs.put("p", EACH.replace("tenfold", "two"))
    await graphs.load()
    assert "step 'work': 'x' has shape [2, 3], but each needs models" in graphs.reason("p")


async def test_a_model_that_refuses_an_item_is_named_by_its_step(graphs: Graphs) -> None:
    """Nothing is left behind."""
    graphs.put("find", onnx_models.identity(shape=("N", "K", "W")))
    graphs.put("tenfold", affine(10))
    graphs.put("p", EACH)
    await graphs.load()
    with pytest.raises(
        InferenceFailed, match=r"step 'work': .*must have shape \[N, 4\], got \[6, 3\]"
    ):
        await graphs.ask("p", {"x": items(2, 3)[..., :3]})
    assert graphs.leases == {}


async def test_operators_see_what_a_step_runs_for(graphs: Graphs) -> None:
    """The description of the version contains it."""
    await put(graphs, EACH)
    engine = graphs.entry("p").engine
    assert engine is not None
    pipeline = engine.describe().pipeline
    assert pipeline is not None
    assert [one.each for one in pipeline.steps] == [(), ("find.y",)]
